//! What main finds out before it starts the processes of a value training.

use crate::log::{self, CompiledLog};
use crate::nodes::Node;
use crate::run::RunDirectory;
use crate::run::context::inputs_hash;
use crate::run::leakage::Roles;
use crate::run::value_run::{Prepared, compile_options};
use crate::settings::{Configuration as _, RankSync, SparseAverage, ValueSettings};
use crate::supervisor::resume::Refused;
use crate::values::Fields;
use crate::values::join::{JoinCounts, Share, join};
use crate::values::prior::PriorEstimate;

/// Joins all exposures once: counts what is wrong with them, and measures how charges scatter. For a run of this `node`.
///
/// # Errors
/// A day that cannot be used, or that is trained on and validated on ([`crate::run::leakage::Leak`]).
pub fn prepare(settings: &ValueSettings, fields: &Fields, node: Node) -> anyhow::Result<Prepared> {
    let mut prepared = Prepared {
        samples: 0,
        dispersion: 1.0,
        weighted: 0,
        prior: vec![[settings.values.prior_sd as f32; 2]; fields.len()],
        train: JoinCounts::default(),
        validation: JoinCounts::default(),
        days: vec![],
        inputs: Default::default(),
        node,
    };
    let (mut scatter, mut charges) = (0.0, 0u64);
    let v = &settings.values;
    let mut prior = PriorEstimate::new(fields.len(), v.train.len());
    let mut roles = Roles::default();
    for (dir, training) in v.train.iter().map(|d| (d, true)).chain(v.validation.iter().map(|d| (d, false))) {
        let joined = join(dir, compile_options(settings), fields, Share::ALL)?;
        if let Some(complaint) = joined.counts.complaint() {
            tracing::warn!("{}: {complaint}", joined.log.name());
        }
        roles.add(if training { "values.train" } else { "values.validation" }, dir, &joined.log)?;
        let mut hash = inputs_hash(dir, &joined.log)?;
        if let Some(path) = log::table::find(dir, "joined_exposure")? {
            let mut hasher = twox_hash::XxHash3_128::new();
            log::compile::hash_table(&mut hasher, &path)?;
            hash += &format!("-{:032x}", hasher.finish_128());
        }
        prepared.inputs.insert(dir.clone(), hash);
        if !training {
            prepared.validation.add(&joined.counts);
            continue;
        }
        prepared.samples += joined.samples.len() as u64;
        prepared.weighted += joined.samples.iter().filter(|sample| sample.weight > 1.0).count() as u64;
        prepared.days.push(day_number(&joined.log));
        prepared.train.add(&joined.counts);
        if v.learn_prior {
            prior.add(&joined);
        }
        for s in joined.samples.iter().filter(|s| s.auction && s.seen.charge > 0.0) {
            let (expected, charged) = (f64::from(s.seen.charge), f64::from(s.charged));
            scatter += (charged - expected).powi(2) / expected;
            charges += 1;
        }
    }
    if charges > 0 && scatter > 0.0 {
        prepared.dispersion = (scatter / charges as f64) as f32;
    }
    if v.learn_prior {
        prepared.prior = prior.finish(v.prior_sd);
    }
    Ok(prepared)
}

/// Days from 1970-01-01 to the date of a log.
fn day_number(log: &CompiledLog) -> u32 {
    let date: jiff::civil::Date = log.day().date.parse().expect("a compiled log has a date");
    let since = date.since(jiff::civil::date(1970, 1, 1)).expect("days apart");
    u32::try_from(since.get_days()).unwrap_or(0)
}

/// Checks that a run may go on under these settings and inputs.
///
/// # Errors
/// [`Refused`], with what differs.
pub fn check_resume(directory: &RunDirectory, settings: &ValueSettings, now: &Prepared) -> anyhow::Result<()> {
    let (then, before) = (ValueSettings::read_resolved(&directory.config())?, Prepared::read(directory)?);
    let free = |s: &ValueSettings, ranks: usize| {
        let mut s = s.clone();
        s.ranks.timeout_s = 0.0;
        // The sum over all ranks does not depend on how many there are; the mean over those that hold a row does.
        if s.ranks.sparse_average == SparseAverage::World && s.ranks.sync == RankSync::Step {
            s.values.batch *= ranks;
            s.values.ranks = 1;
        } else {
            s.values.ranks = ranks;
        }
        (s.checkpoint, s.watchdog, s.values.epochs, s.values.patience) = Default::default();
        s.run.device.clear();
        // Cache and snapshots change no number; another device changes their rounding.
        (s.table.cache_rows, s.table.prefetch, s.table.devices, s.table.snapshot_rows) = Default::default();
        s
    };
    let refused = |why: &str| Refused { root: directory.root().to_owned(), why: why.to_owned() };
    let (ranks_before, ranks) = (before.world(&then).ranks, now.world(settings).ranks);
    let same = free(&then, ranks_before) == free(settings, ranks);
    if ranks_before != ranks && !same {
        let of = |s: &ValueSettings, node: Node| match node.of {
            1 => s.values.ranks.to_string(),
            nodes => format!("{} on each of {nodes} nodes", s.values.ranks),
        };
        let (before, ranks) = (of(&then, before.node), of(settings, now.node));
        return Err(refused(&format!(
            "values.ranks was {before} and is {ranks} now; set it back. Another number of ranks goes on with the same updates only with \
             ranks.sparse_average = \"world\" and the same number of ranks x values.batch"
        ))
        .into());
    }
    if !same {
        return Err(refused(
            "the run has another configuration; go on with its own, or start a new run in another --run-dir",
        )
        .into());
    }
    if then.values.epochs != settings.values.epochs {
        return Err(refused("values.epochs has changed, and the rates decay over it; set it back").into());
    }
    if before.inputs != now.inputs {
        return Err(refused("a log has changed since the run began; put it back, or start a new run").into());
    }
    Ok(())
}
