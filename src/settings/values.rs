//! What `admix values train` can be told: the value model, its table of embedding rows, and the run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cores::MOST_ACTORS;
use super::load::{Configuration, SettingsError};
use super::ranks::{KEPT_GRADIENTS, MOST_RANKS, RankSync, Ranks};
use super::sections::{Checkpoint, Watchdog};

/// How a row moves along its gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowOptimizer {
    Sgd,
    /// A sum of squared gradients for each element: charges and clicks, whose gradients differ a hundredfold, each move at their own rate.
    #[default]
    Adagrad,
    /// One sum for the whole row: at the default width three fifths of the memory of `Adagrad`.
    RowwiseAdagrad,
    /// Adam whose moments stand still while the row is not in a batch. Dense Adam would let them decay and move the row all the while.
    LazyAdam,
}

/// Everything that a run of `admix values train` can be told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueSettings {
    pub run: ValueRun,
    pub values: Values,
    pub table: Table,
    pub ranks: Ranks,
    pub checkpoint: Checkpoint,
    pub watchdog: ValueWatchdog,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueRun {
    /// Seed of everything random; 0..2^63. Blocks are taken in a fixed order, so the same seed gives the same bytes.
    pub seed: u64,
}

impl Default for ValueRun {
    fn default() -> Self {
        Self { seed: 1 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Log directories whose exposures are learned from.
    pub train: Vec<PathBuf>,
    /// Log directories whose exposures choose the number of passes and end training; empty = all passes, the last is kept.
    pub validation: Vec<PathBuf>,
    /// What the run begins with: the rows of a sparse-parameter file, or rows and network of another run; empty = nothing.
    pub from: PathBuf,
    /// Share of bad rows above which a log is refused.
    pub max_bad_share: f64,
    /// Ids that have an embedding, and their crosses: `ad`, `slot`, `region`, `user`, `gender`, `age`, `type`, joined by `*`.
    pub fields: Vec<String>,
    /// Width of a row: one weight for each of the two heads, the rest for pairwise products.
    pub dim: usize,
    /// Width of the hidden layers.
    pub hidden: usize,
    /// Samples in a batch of one rank, and in one write of a reader for it.
    pub batch: usize,
    /// Trainer processes, each with a copy of the networks; a batch of all has `ranks` times `batch` samples.
    pub ranks: usize,
    /// Reader processes.
    pub readers: usize,
    /// Passes over the training exposures.
    pub epochs: u64,
    /// Samples that a reader shuffles at a time.
    pub shuffle: usize,
    /// Evaluations on the validation days without an improvement after which training stops; 0 = never. There is one after
    /// each pass.
    pub patience: u64,
    /// Adam's rate for the networks.
    pub rate: f64,
    /// Share of the initial rates that remains at the end of the last pass. Rates decay linearly.
    pub final_rate_share: f64,
    /// The most that an exposure weighs: its weight is 1 / propensity up to this, and 1 where no propensity is logged. At 1 all weigh
    /// alike.
    pub most_weight: f64,
    /// Standard deviation of the Gaussian prior on each element of a row: rare ids stay near 0.
    pub prior_sd: f64,
    /// Whether the prior of each field's direct weights is estimated from the exposures, which a field that tells nothing shows
    /// nothing in; `prior_sd` is where the estimate starts from.
    pub learn_prior: bool,
    /// Whether, once the number of passes is chosen, the model is learned once more from training and validation days together.
    pub refit: bool,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            train: vec![],
            validation: vec![],
            from: PathBuf::new(),
            max_bad_share: 0.01,
            fields: ["ad", "slot", "region", "ad*slot", "ad*region"].map(String::from).to_vec(),
            dim: 8,
            hidden: 32,
            batch: 1024,
            ranks: 1,
            readers: 1,
            epochs: 8,
            shuffle: 1 << 20,
            patience: 4,
            rate: 1e-3,
            final_rate_share: 0.05,
            most_weight: 10.0,
            prior_sd: 0.15,
            learn_prior: true,
            refit: true,
        }
    }
}

/// When main stops believing in a process, or in the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueWatchdog {
    /// Seconds without a sign of life after which the trainer is killed and replaced; 0 = never.
    pub silent_s: f64,
    /// Seconds without a new sample and without an update after which the run ends; 0 = never.
    pub stuck_s: f64,
    /// Seconds that an interrupted run may take to save and end; then its processes are killed.
    pub grace_s: f64,
    /// Times that a process is started again before the run ends with an error.
    pub max_restarts: u32,
}

impl Default for ValueWatchdog {
    fn default() -> Self {
        let Watchdog { silent_s, stuck_s, grace_s, max_restarts, .. } = Watchdog::default();
        Self { silent_s, stuck_s, grace_s, max_restarts }
    }
}

/// What happens when the table has no room for another row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The run ends and says how many rows it needs.
    #[default]
    Error,
    /// An id without a row is read at its first value and learns nothing.
    Ignore,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Table {
    /// Rows that the table has room for.
    pub max_rows: usize,
    pub when_full: WhenFull,
    pub optimizer: RowOptimizer,
    /// Rate of the rows' optimiser.
    pub rate: f64,
    /// Rows of the device cache; 0 = none, the CPU works on the table itself.
    pub cache_rows: usize,
    /// Batches whose rows are fetched ahead into the cache.
    pub prefetch: usize,
    /// Arenas that the cache is spread over.
    pub devices: usize,
    /// Rows that may change between two snapshots; when they have, one begins early.
    pub snapshot_rows: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            max_rows: 1 << 18,
            when_full: WhenFull::Error,
            optimizer: RowOptimizer::Adagrad,
            rate: 0.05,
            cache_rows: 0,
            prefetch: 1,
            devices: 1,
            snapshot_rows: 1 << 17,
        }
    }
}

impl ValueSettings {
    /// Batches whose rows are fetched before their turn.
    pub fn ahead(&self) -> usize {
        if self.table.cache_rows > 0 { self.table.prefetch } else { 1 }
    }

    /// Rows that may change, or be inserted, before the next update at which a snapshot can begin, with so many `ranks` in all.
    pub fn rows_in_flight(&self, ranks: usize) -> usize {
        let batches = match self.ranks.sync {
            RankSync::Overlap if self.values.ranks > 1 => self.ranks.period as usize + KEPT_GRADIENTS,
            _ => 4 + self.ahead().max(1),
        };
        batches * self.values.batch * ranks * self.values.fields.len()
    }
}

impl Configuration for ValueSettings {
    const PATHS: &'static [(&'static str, &'static str)] =
        &[("values", "train"), ("values", "validation"), ("values", "from")];

    fn validate(&self) -> Result<(), SettingsError> {
        let bad = |key: &str, why: String| Err(SettingsError::Value { key: key.into(), why });
        let (v, t) = (&self.values, &self.table);
        if v.train.is_empty() {
            return bad("values.train", "names no log directory; list at least one with a joined_exposure".into());
        }
        for (key, value, low, high) in [
            ("values.dim", v.dim, 3, 256),
            ("values.hidden", v.hidden, 1, 4096),
            ("values.batch", v.batch, 1, 1 << 20),
            ("values.ranks", v.ranks, 1, MOST_RANKS),
            ("values.readers", v.readers, 1, MOST_ACTORS),
            ("values.shuffle", v.shuffle, 1, 1 << 28),
            ("table.max_rows", t.max_rows, 1, (1 << 32) - 2),
            ("table.cache_rows", t.cache_rows, 0, (1 << 32) - 2),
            ("table.prefetch", t.prefetch, 0, 64),
            ("table.devices", t.devices, 1, 64),
            ("table.snapshot_rows", t.snapshot_rows, 1, (1 << 32) - 2),
        ] {
            if !(low..=high).contains(&value) {
                return bad(key, format!("is {value}; must lie within {low}..={high}"));
            }
        }
        for (key, value, low, high) in [
            ("values.max_bad_share", v.max_bad_share, 0.0, 1.0),
            ("values.rate", v.rate, 0.0, 1.0),
            ("values.final_rate_share", v.final_rate_share, 0.0, 1.0),
            ("values.most_weight", v.most_weight, 1.0, 1e6),
            ("values.prior_sd", v.prior_sd, 1e-6, 1e6),
            ("table.rate", t.rate, 0.0, 10.0),
            ("checkpoint.every_s", self.checkpoint.every_s, 0.0, 1e9),
            ("ranks.timeout_s", self.ranks.timeout_s, 1.0, 1e6),
            ("watchdog.silent_s", self.watchdog.silent_s, 0.0, 1e9),
            ("watchdog.stuck_s", self.watchdog.stuck_s, 0.0, 1e9),
            ("watchdog.grace_s", self.watchdog.grace_s, 0.0, 1e9),
        ] {
            if !(low..=high).contains(&value) {
                return bad(key, format!("is {value}; must lie within {low}..={high}"));
            }
        }
        let least = 2 * self.rows_in_flight(v.ranks);
        if t.snapshot_rows < least.min(t.max_rows) && self.checkpoint.every_s > 0.0 {
            let why = format!(
                "is {}; the batches under way may change {least} rows: raise it, or lower values.batch (or ranks.period, if ranks overlap)",
                t.snapshot_rows
            );
            return bad("table.snapshot_rows", why);
        }
        if v.epochs == 0 {
            return bad("values.epochs", "must be at least 1".into());
        }
        if t.when_full == WhenFull::Ignore && t.cache_rows > 0 {
            return bad("table.when_full", "= \"ignore\" goes with table.cache_rows = 0 alone".into());
        }
        let r = &self.ranks;
        let silent = self.watchdog.silent_s;
        if v.ranks > 1 && silent > 0.0 && r.timeout_s >= silent {
            let why = format!(
                "is {}; must be less than watchdog.silent_s = {silent}, or the wrong rank is blamed",
                r.timeout_s
            );
            return bad("ranks.timeout_s", why);
        }
        if !(1..=1 << 20).contains(&r.period) {
            return bad("ranks.period", format!("is {}; must lie within 1..={}", r.period, 1 << 20));
        }
        if r.quorum > v.ranks {
            return bad(
                "ranks.quorum",
                format!("is {}; there are {} ranks (values.ranks), 0 = all", r.quorum, v.ranks),
            );
        }
        if v.ranks > 1 && t.cache_rows > 0 {
            return bad(
                "table.cache_rows",
                "must be 0 with values.ranks > 1: the ranks of a machine read one table".into(),
            );
        }
        if self.checkpoint.keep == 0 {
            return bad("checkpoint.keep", "must be at least 1; checkpoint.every_s = 0 takes no snapshots".into());
        }
        Ok(())
    }
}
