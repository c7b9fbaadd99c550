//! What main finds out before it starts the processes of a value training.

use serde_json::Value;

use crate::collective::shares::Shares;
use crate::log::{self, CompiledLog};
use crate::nodes::{Job, MOST_BYTES, Node};
use crate::run::context::inputs_hash;
use crate::run::leakage::Roles;
use crate::run::value_run::{Prepared, compile_options, exchange_bytes};
use crate::run::{RunDirectory, beginning};
use crate::settings::{Configuration as _, RankSync, SettingsError, SparseAverage, ValueSettings};
use crate::supervisor::job::{self, Common};
use crate::supervisor::resume::{Refused, check_version};
use crate::values::Fields;
use crate::values::join::{JoinCounts, Share, join};
use crate::values::prior::PriorEstimate;

/// Least dispersion of charges, in units of the mean predicted charge: each scatters by a hundredth of itself, in the mean. Where all
/// charges are the predicted ones up to rounding, the rounding would decide which pass is best, when training ends and which weights are
/// chosen, because the charge loss is divided by the dispersion.
const LEAST_DISPERSION: f64 = 1e-4;

/// Checks that a configuration can run on several nodes, where there are several.
///
/// # Errors
/// A key whose value is for one machine alone.
pub fn check_job(settings: &ValueSettings, fields: &Fields, node: Node) -> Result<(), SettingsError> {
    let bad = |key: &str, why: String| Err(SettingsError::Value { key: key.into(), why });
    if node.is_alone() {
        return Ok(());
    }
    let v = &settings.values;
    if settings.ranks.tables > 1 {
        let why = format!(
            "is {}; several tables are for one machine, and each of several nodes has one: set it to 1",
            settings.ranks.tables
        );
        return bad("ranks.tables", why);
    }
    let ranks = node.world(v.ranks).ranks;
    job::check(node, ("values.ranks", v.ranks), &settings.checkpoint)?;
    if settings.ranks.sync == RankSync::Overlap {
        return bad("ranks.sync", "= \"overlap\" is for one machine; several nodes train with \"step\"".into());
    }
    let bytes = exchange_bytes(settings, fields, node.world(v.ranks));
    if bytes > MOST_BYTES {
        let why = format!(
            "is {}; the {ranks} ranks may exchange {bytes} bytes at once, and MPI counts to {MOST_BYTES}: lower it, or values.dim",
            v.batch
        );
        return bad("values.batch", why);
    }
    settings.check_ranks(ranks)
}

/// Checks that all nodes run the same, as [`job::agree_on_run`] does.
///
/// # Errors
/// As there.
pub fn agree_on_run(
    job: &Job,
    directory: &RunDirectory,
    settings: &ValueSettings,
    prepared: &Prepared,
) -> anyhow::Result<bool> {
    if job.node().is_alone() {
        return Ok(true);
    }
    let source = ("values.from", beginning::digest(settings));
    job::agree_on_run(job, directory, &Common { configuration: settings.to_toml(), inputs: &prepared.inputs, source })
}

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
    let mut scatter = Scatter::default();
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
            log::inputs::hash_table(&mut hasher, &path)?;
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
            scatter.add(s.seen.charge.into(), s.charged.into());
        }
    }
    prepared.dispersion = scatter.dispersion();
    if v.learn_prior {
        prepared.prior = prior.finish(v.prior_sd);
    }
    Ok(prepared)
}

/// How charges scatter around the predicted ones.
#[derive(Default)]
struct Scatter {
    charges: u64,
    expected: f64,
    /// Sum of squared differences, each over its prediction.
    squares: f64,
}

impl Scatter {
    fn add(&mut self, expected: f64, charged: f64) {
        self.charges += 1;
        self.expected += expected;
        self.squares += (charged - expected).powi(2) / expected;
    }

    /// Returns the ratio of variance to mean, at least [`LEAST_DISPERSION`] of the mean; 1 without charges.
    fn dispersion(&self) -> f32 {
        if self.charges == 0 {
            return 1.0;
        }
        let (found, mean) = (self.squares / self.charges as f64, self.expected / self.charges as f64);
        let least = LEAST_DISPERSION * mean;
        if found < least {
            tracing::warn!(
                "the charges are the predicted ones up to {:.1e} of each, and there is next to nothing to learn from them: they count as if \
                 they scattered by {:.0e}. If they were computed from the logged eCPM, log what was really charged",
                (found / mean).sqrt(),
                LEAST_DISPERSION.sqrt()
            );
        }
        found.max(least) as f32
    }
}

/// Days from 1970-01-01 to the date of a log.
fn day_number(log: &CompiledLog) -> u32 {
    let date: jiff::civil::Date = log.day().date.parse().expect("a compiled log has a date");
    let since = date.since(jiff::civil::date(1970, 1, 1)).expect("days apart");
    u32::try_from(since.get_days()).unwrap_or(0)
}

/// Checks that the run of a `manifest` may go on under these settings and inputs, and by this version.
///
/// # Errors
/// [`Refused`], with what differs.
pub fn check_resume(
    directory: &RunDirectory,
    manifest: &Value,
    settings: &ValueSettings,
    now: &Prepared,
) -> anyhow::Result<()> {
    check_version(directory, manifest)?;
    if manifest["mode"] != "values" {
        let why = "it is a run of `admix train`: go on with that, or start a new run in another --run-dir".to_owned();
        return Err(Refused { root: directory.root().to_owned(), why }.into());
    }
    let (then, before) = (ValueSettings::read_resolved(&directory.config())?, Prepared::read(directory)?);
    let summed = |s: &ValueSettings| s.ranks.sparse_average == SparseAverage::World && s.ranks.sync == RankSync::Step;
    let free = |s: &ValueSettings, ranks: usize| {
        let mut s = s.clone();
        s.ranks.timeout_s = 0.0;
        // All tables hold the same rows, and a snapshot is of one of them: only the number of all ranks counts.
        s.ranks.tables = 1;
        s.ranks.first_share = 1.0;
        // The sum over all ranks does not depend on how many there are; the mean over those that hold a row does.
        if summed(&s) {
            s.values.batch *= ranks;
            s.values.ranks = 1;
        } else {
            s.values.ranks = ranks;
        }
        (s.checkpoint, s.watchdog, s.values.epochs, s.values.patience) = Default::default();
        s.run.device.clear();
        // It may have been written down as it was given.
        s.values.from = std::path::absolute(&s.values.from).unwrap_or_default();
        // Cache and snapshots change no number; another device changes their rounding.
        (s.table.cache_rows, s.table.prefetch, s.table.devices, s.table.snapshot_rows) = Default::default();
        s
    };
    let refused = |why: &str| Refused { root: directory.root().to_owned(), why: why.to_owned() };
    let (ranks_before, ranks) = (before.world(&then).ranks, now.world(settings).ranks);
    let same = free(&then, ranks_before) == free(settings, ranks);
    if same && !summed(settings) && Shares::of(&then, ranks_before) != Shares::of(settings, ranks) {
        return Err(refused(
            "ranks.first_share, or the ranks of a table that it is about, has changed: samples would go to other ranks. Set it back",
        )
        .into());
    }
    if ranks_before != ranks && !same {
        let of = |s: &ValueSettings, node: Node| match (node.of, s.ranks.tables) {
            (1, 1) => s.values.ranks.to_string(),
            (1, tables) => format!("{} of each of {tables} tables", s.values.ranks),
            (nodes, _) => format!("{} on each of {nodes} nodes", s.values.ranks),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::WhenFull;

    /// Charges that were the logged eCPM / 1000 up to rounding had a dispersion of nearly 0: the charge loss, divided by it, drowned the
    /// clicks.
    #[test]
    fn charges_that_are_the_predicted_ones_have_a_least_dispersion() {
        let of = |charges: &[(f64, f64)]| {
            let mut scatter = Scatter::default();
            charges.iter().for_each(|(expected, charged)| scatter.add(*expected, *charged));
            scatter.dispersion()
        };
        assert_eq!(of(&[]), 1.0);
        assert_eq!(of(&[(2.0, 1.0), (4.0, 8.0)]), (0.5f32 + 4.0) / 2.0, "what scatters keeps its dispersion");
        for charged in [3.0, 3.00001] {
            assert_eq!(of(&[(3.0, charged), (1.0, 1.0)]), (2.0 * LEAST_DISPERSION) as f32, "{charged}");
        }
    }

    type Change = fn(&mut ValueSettings);

    /// Keys that several ranks must not have were ignored with one rank on each of several nodes, and with `oldest` all rows were
    /// saved as dropped ones.
    #[test]
    fn several_nodes_refuse_what_several_ranks_refuse() {
        let cases: [(&str, Change); 9] = [
            ("table.admit_after", |s| s.table.admit_after = 2),
            ("table.when_full", |s| s.table.when_full = WhenFull::Oldest),
            ("table.keep_days", |s| s.table.keep_days = 7),
            ("table.devices", |s| s.table.devices = 2),
            ("table.snapshot_rows", |s| s.table.snapshot_rows = 100_000),
            ("ranks.timeout_s", |s| (s.ranks.timeout_s, s.watchdog.silent_s) = (60.0, 30.0)),
            ("checkpoint.keep", |s| s.checkpoint.keep = 1),
            ("values.batch", |s| (s.values.batch, s.values.dim, s.checkpoint.every_s) = (1 << 20, 256, 0.0)),
            ("ranks.tables", |s| s.ranks.tables = 2),
        ];
        let mut good = ValueSettings::default();
        good.values.train = vec!["day".into()];
        let two = Node { index: 1, of: 2 };
        let fields = Fields::parse(&good.values.fields).unwrap();
        check_job(&good, &fields, two).unwrap();
        for (key, change) in cases {
            let mut settings = good.clone();
            change(&mut settings);
            check_job(&settings, &fields, Node::default()).unwrap();
            if key != "table.snapshot_rows" {
                settings.validate().unwrap();
            }
            let refused = check_job(&settings, &fields, two).unwrap_err().to_string();
            assert!(refused.contains(key), "{refused}");
        }
    }
}
