//! Pretraining: one start of the bids for all worlds.
//!
//! The network's inputs are independent of a world's size and money, so lessons of many worlds can be mixed. Each world is
//! drawn from a world file with its own seed, planned from its first days, and played on the days after them, which no plan
//! knows. The hindsight prices of all worlds are then learned in one regression. Training on a user's days starts from the
//! result.

mod kinds;
mod lessons;
pub mod volume;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};
use rayon::prelude::*;

use crate::env::Vocabulary;
use crate::learner::Device;
use crate::learner::hindsight::LessonRows;
use crate::learner::trainer::{Batch, Train, UpdatePlan};
use crate::plan::Plan;
use crate::policy::PolicySpec;
use crate::policy::file::PolicyFile;
use crate::settings::{Settings, Target};
use crate::synth::WorldSettings;

use kinds::Kinds;
use lessons::World;

/// Number of rows in an update.
const BATCH: usize = 1024;
/// One world in this many is held out; the progress shows its loss.
const HELD_OUT: usize = 10;
/// Sd of the noise added to every feature in training, against overfitting. With less of it the loss on worlds held out is lower, but
/// policies earn no more, and what they earn differs more between worlds (BENCHMARKS.md, a start from two hundred worlds).
const NOISE: f32 = 0.25;
/// Share of the learned outputs that the start keeps. A world to come differs from all of these: with half of them policies earn as much
/// in worlds like these, more evenly, and more in others (BENCHMARKS.md, half of what is learned).
const KEPT: f32 = 0.5;
/// Random stream of the order of the rows in training.
const SHUFFLE: u64 = 0x5FFE << 32;

/// Parameters of a pretraining.
#[derive(Debug, Clone)]
pub struct Pretraining {
    pub world: WorldSettings,
    /// First seed of the worlds; the others follow it.
    pub first_seed: u64,
    pub worlds: usize,
    /// Number of episodes played in each world.
    pub episodes: usize,
    /// Number of passes of the regression over all rows.
    pub epochs: usize,
    /// Folder for the worlds' temporary files.
    pub scratch: PathBuf,
    /// Number of worlds played in parallel.
    pub threads: usize,
}

/// Returns the settings of the pretrained network: the outlook over a planner, without a controller.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.policy.outlook = true;
    settings.policy.pacing = false;
    settings.policy.shipped_start = false;
    settings.learner.target = Target::Hindsight;
    // The worlds have their own random drift; episodes add the variation that a single day lacks.
    let e = &mut settings.episodes;
    (e.start_error, e.shock_sd, e.jump_share) = (0.0, 0.0, 0.15);
    (e.demand_jitter, e.price_jitter, e.volume_jitter, e.supply_error) = (0.08, 0.08, 0.08, 0.08);
    (e.volume_noise, e.price_noise) = (0.4, 0.2);
    e.start_spread = 0.2;
    settings
}

impl Pretraining {
    /// Plays the worlds and learns from them.
    ///
    /// # Errors
    /// If a world cannot be generated, there is no room for it, or the worlds have too few rows for an update.
    pub fn run(&self) -> anyhow::Result<PolicyFile> {
        let settings = settings();
        let spec = Arc::new(PolicySpec {
            score_mode: settings.score_mode,
            policy: settings.policy.clone(),
            vocabulary: Vocabulary::default(),
        });
        let (rows, held_out, plan) = self.play(&settings, &spec)?;
        let trainer = self.fit(&settings, &spec, &rows, &held_out)?;
        let mut actor = trainer.actors().1;
        for part in spec.actor_shape().parts().iter().filter(|part| matches!(part.name.as_str(), "w3" | "b3")) {
            actor[part.range()].iter_mut().for_each(|weight| *weight *= KEPT);
        }
        // A serving policy knows a user's days; of these worlds only the weights are kept.
        Ok(PolicyFile { spec, plan: plan.unit_only(), actor, updates: 0 })
    }

    /// Returns the training rows of all worlds, in the order of their seeds, the held-out rows, and one plan.
    fn play(&self, settings: &Settings, spec: &Arc<PolicySpec>) -> anyhow::Result<(LessonRows, LessonRows, Plan)> {
        let started = Instant::now();
        let done = AtomicUsize::new(0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().context("no threads")?;
        let kinds = Kinds::of(&self.world);
        let indices: Vec<usize> = (0..self.worlds).collect();
        let played: Vec<anyhow::Result<(LessonRows, Plan)>> = pool.install(|| {
            let play = |&i: &usize| {
                let Self { episodes, scratch, .. } = self;
                let (world, seed) = (kinds.of_world(i), self.first_seed + i as u64);
                let played = World { world, seed, episodes: *episodes, scratch }.play(settings, spec);
                // Relaxed: the counter orders nothing else.
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if let Ok((rows, _)) = &played {
                    let (worlds, seconds) = (self.worlds, started.elapsed().as_secs());
                    say!("world {seed}: {} rows; {done} of {worlds} worlds, {seconds} s", rows.len());
                }
                played.with_context(|| format!("world {seed} cannot be played"))
            };
            indices.par_iter().with_max_len(1).map(play).collect()
        });
        let (mut rows, mut held_out, mut plan) = (LessonRows::default(), LessonRows::default(), None);
        for (i, played) in played.into_iter().enumerate() {
            let (of_world, its_plan) = played?;
            if i % HELD_OUT == HELD_OUT - 1 { &mut held_out } else { &mut rows }.append(of_world);
            plan.get_or_insert(its_plan);
        }
        Ok((rows, held_out, plan.context("no world to pretrain on")?))
    }

    fn fit(
        &self,
        settings: &Settings,
        spec: &Arc<PolicySpec>,
        rows: &LessonRows,
        held_out: &LessonRows,
    ) -> anyhow::Result<Box<dyn Train>> {
        ensure!(
            rows.len() >= BATCH,
            "the worlds that are not held out give {} rows, and an update takes {BATCH}: nothing would be learned; give more --worlds or \
             --episodes",
            rows.len()
        );
        let mut trainer = Device::Cpu.trainer(&[], spec, settings)?;
        let width = (spec.features(), 0);
        let mut rng = ChaCha8Rng::seed_from_u64(self.first_seed);
        rng.set_stream(SHUFFLE);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let per_epoch = rows.len() / BATCH;
        let updates = per_epoch * self.epochs;
        let held_out_loss = |actor: &[f32]| match held_out.labels.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.5}", lessons::loss(spec, actor, held_out)),
        };
        for epoch in 0..self.epochs {
            order.shuffle(&mut rng);
            let mut loss = 0.0;
            for (i, batch) in order.chunks_exact(BATCH).enumerate() {
                let rate = 2.0 * (1.0 - 0.95 * (epoch * per_epoch + i) as f64 / updates as f64);
                let mut batch = rows.select(batch, width);
                for feature in &mut batch.features {
                    let noise: f32 = StandardNormal.sample(&mut rng);
                    *feature += NOISE * noise;
                }
                let batch = Batch::Rows(vec![], batch);
                let stats = trainer.update(&batch, UpdatePlan { rate, train_actor: true, read: true })?;
                loss += stats.map_or(0.0, |stats| stats.actor_loss);
            }
            let averaged = trainer.actors().1;
            say!(
                "epoch {} of {}: loss {:.5}; on worlds held out {}, before learning {}",
                epoch + 1,
                self.epochs,
                loss / per_epoch as f64,
                held_out_loss(&averaged),
                held_out_loss(&vec![0.0; averaged.len()]),
            );
        }
        Ok(trainer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing was learned from them, and the untrained start was written as if it were a result.
    #[test]
    fn worlds_with_fewer_rows_than_an_update_takes_are_refused() {
        let settings = settings();
        let spec = Arc::new(PolicySpec {
            score_mode: settings.score_mode,
            policy: settings.policy.clone(),
            vocabulary: Vocabulary::default(),
        });
        let pretraining = Pretraining {
            world: WorldSettings::default(),
            first_seed: 1,
            worlds: 1,
            episodes: 1,
            epochs: 1,
            scratch: PathBuf::new(),
            threads: 1,
        };
        let none = LessonRows::default();
        let error = pretraining.fit(&settings, &spec, &none, &none).err().unwrap().to_string();
        assert!(error.contains("0 rows") && error.contains("--worlds or --episodes"), "{error}");
    }
}
