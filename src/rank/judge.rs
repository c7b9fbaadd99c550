//! Evaluates parameters on the exposures of the validation days.
//!
//! The level of a day's charges is nobody's to know beforehand, and it would drown the differences between parameters: charges are
//! judged at the level that fits the validation days best.

use crate::run::value_run::compile_options;
use crate::settings::ValueSettings;
use crate::sparse::lookup::Finder;
use crate::sparse::{HostTable, Lookup};
use crate::values::join::{Share, join_watched};
use crate::values::net::{Embedded, Losses, Net, clamped};
use crate::values::{Block, Fields};

/// Samples that are evaluated at a time.
const AT_ONCE: usize = 4096;

/// The validation exposures.
pub struct Judge {
    blocks: Vec<Block>,
}

impl Judge {
    /// Joins the exposures of the validation days; calls `beat` now and then.
    ///
    /// # Errors
    /// A log that cannot be used.
    pub fn open(settings: &ValueSettings, fields: &Fields, beat: impl Fn()) -> anyhow::Result<Self> {
        let mut blocks = Vec::new();
        for dir in &settings.values.validation {
            let joined = join_watched(dir, compile_options(settings), fields, Share::ALL, |_| beat())?;
            for (samples, ids) in joined.samples.chunks(AT_ONCE).zip(joined.ids.chunks(AT_ONCE * fields.len())) {
                let mut block = Block::default();
                for (sample, ids) in samples.iter().zip(ids.chunks_exact(fields.len())) {
                    block.push(sample, ids, settings.values.most_weight);
                }
                blocks.push(block);
            }
        }
        Ok(Self { blocks })
    }

    /// Losses of the parameters on all validation exposures; ids without a row are read at their first value. `beat` is called now and
    /// then.
    pub fn losses(
        &self,
        net: &mut Net,
        parameters: &[f32],
        table: &HostTable,
        dispersion: f32,
        beat: impl Fn(),
    ) -> Losses {
        let shape = table.shape();
        let (mut finder, mut lookup) = (Finder::default(), Lookup::default());
        let (mut rows, mut record) = (Vec::new(), vec![0; shape.words()]);
        let mut sum = Losses::default();
        let (mut charged, mut expected) = (0.0, 0.0);
        for block in &self.blocks {
            beat();
            finder.find(&block.ids, &mut lookup);
            rows.clear();
            for &id in &lookup.unique {
                table.read(id, &mut record);
                rows.extend_from_slice(bytemuck::cast_slice::<u32, f32>(&record[..shape.dim]));
            }
            let corrections = net.forward(parameters, &block.dense, Embedded { rows: &rows, inverse: &lookup.inverse });
            for (i, correction) in corrections.chunks_exact(2).enumerate() {
                if block.auction[i] && block.predicted[i] > 0.0 {
                    let weight = f64::from(block.weight[i]);
                    charged += weight * f64::from(block.charged[i]);
                    expected += weight * f64::from(block.predicted[i] * clamped(correction[0]).exp());
                }
            }
            sum.add(net.losses(block, dispersion));
        }
        if charged > 0.0 && expected > 0.0 {
            let level = charged / expected;
            // What the Poisson deviance falls by when all expectations are multiplied by the level.
            sum.charge -= (charged * level.ln() - (level - 1.0) * expected) / f64::from(dispersion);
        }
        sum
    }
}
