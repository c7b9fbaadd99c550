//! Settings of `admix values train`: the value model, its table of embedding rows, and the run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cores::MOST_ACTORS;
use super::load::{Configuration, SettingsError};
use super::ranks::{KEPT_GRADIENTS, MOST_RANKS, MOST_RANKS_HERE, MOST_TABLES, RankSync, Ranks};
use super::sections::{Checkpoint, Watchdog};

/// Optimiser of the embedding rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowOptimizer {
    Sgd,
    /// A sum of squared gradients per element: charges and clicks, whose gradients differ a hundredfold, each get their own rate.
    #[default]
    Adagrad,
    /// One sum for the whole row: at the default width three fifths of the memory of `Adagrad`.
    RowwiseAdagrad,
    /// Adam whose moments change only when the row is in a batch. Dense Adam would let them decay and move the row in every
    /// update.
    LazyAdam,
}

/// How exposures weigh in training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// Both ways are learned, and the validation days choose.
    #[default]
    Auto,
    /// By 1 / propensity: what exploration shows too rarely counts for what it stands for.
    Propensity,
    /// All alike: more precise where the fields explain the errors.
    Equal,
}

/// All settings of a run of `admix values train`.
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
    /// Seed of everything random; 0..2^63. Blocks are taken in a fixed order, so the same seed gives the same bytes on the CPU.
    pub seed: u64,
    /// Device of the trainer: `cpu`, `cuda`, `cuda:INDEX`, or `auto`, which is a GPU if there is one that computes the CPU's losses.
    pub device: String,
}

impl Default for ValueRun {
    fn default() -> Self {
        Self { seed: 1, device: "cpu".into() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Log directories with the training exposures.
    pub train: Vec<PathBuf>,
    /// Log directories whose exposures choose the number of passes and end training; empty = all passes, and the last is kept.
    pub validation: Vec<PathBuf>,
    /// Start of the run: the rows of a sparse-parameter file, or rows and network of another run; empty = none.
    pub from: PathBuf,
    /// Share of bad rows above which a log is refused.
    pub max_bad_share: f64,
    /// Ids with an embedding, and their crosses: `ad`, `slot`, `region`, `user`, `gender`, `age`, `type`, joined by `*`.
    pub fields: Vec<String>,
    /// Width of a row: one weight for each of the two heads, the rest for pairwise products.
    pub dim: usize,
    /// Width of the hidden layers.
    pub hidden: usize,
    /// Samples in a batch of one rank, and in one write of a reader for it.
    pub batch: usize,
    /// Trainer processes of a table, each with a copy of the networks; a global batch has `batch` samples for each rank of all tables.
    pub ranks: usize,
    /// Reader processes.
    pub readers: usize,
    /// Passes over the training exposures.
    pub epochs: u64,
    /// Samples that a reader shuffles at a time.
    pub shuffle: usize,
    /// Evaluations on the validation days without an improvement after which training stops; 0 = never. There is one evaluation
    /// after each pass.
    pub patience: u64,
    /// Adam's rate for the networks.
    pub rate: f64,
    /// Share of the initial rates that remains at the end of the last pass. Rates decay linearly.
    pub final_rate_share: f64,
    /// Maximum weight of an exposure: the weight is 1 / propensity up to this, and 1 if no propensity is logged. Validation exposures
    /// are weighted in any case.
    pub most_weight: f64,
    pub weights: Weights,
    /// Standard deviation of the Gaussian prior on each element of a row: rare ids stay near 0.
    pub prior_sd: f64,
    /// Whether the prior of each field's direct weights is estimated from the exposures, so that the weights of an
    /// uninformative field shrink to 0; the estimate starts from `prior_sd`.
    pub learn_prior: bool,
    /// Whether the model is trained once more on training and validation days together, after the number of passes is chosen.
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
            weights: Weights::default(),
            prior_sd: 0.15,
            learn_prior: true,
            refit: true,
        }
    }
}

/// Limits after which main replaces a process or ends the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueWatchdog {
    /// Seconds without a heartbeat after which a process is killed and replaced; 0 = never.
    pub silent_s: f64,
    /// Seconds without a new sample and without an update after which the run ends; 0 = never.
    pub stuck_s: f64,
    /// Seconds that an interrupted run may take to save and end; after that its processes are killed.
    pub grace_s: f64,
    /// Number of times that a process is restarted before the run ends with an error.
    pub max_restarts: u32,
}

impl Default for ValueWatchdog {
    fn default() -> Self {
        let Watchdog { silent_s, stuck_s, grace_s, max_restarts, .. } = Watchdog::default();
        Self { silent_s, stuck_s, grace_s, max_restarts }
    }
}

/// Behaviour when the table has no room for another row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The run ends with an error that states the number of rows needed.
    #[default]
    Error,
    /// An id without a row is read at its initial value and learns nothing.
    Ignore,
    /// The row that no batch has used for the longest time gives its place to the new one.
    Oldest,
}

/// Largest number of arenas of the cache.
pub const MOST_DEVICES: usize = 64;
/// Rows that may at least change between two snapshots, where that is not configured.
const SNAPSHOT_ROWS: usize = 1 << 17;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Table {
    /// Capacity of the table, rows.
    pub max_rows: usize,
    pub when_full: WhenFull,
    /// Exposures of the first pass after which an id gets a row. Until then it is read at its first value and learns nothing.
    pub admit_after: u32,
    /// Counters, of a byte each, that count the exposures of ids without a row. Ids may share counters, so an id can be admitted
    /// early, never late.
    pub counters: usize,
    /// A run that begins with another run's rows drops those that were not seen in that run's last so many days; 0 = none.
    pub keep_days: u32,
    pub optimizer: RowOptimizer,
    /// Rate of the rows' optimiser.
    pub rate: f64,
    /// Rows of the device cache; 0 = none, and the CPU uses the table itself. With several ranks: rows of which each rank, but the one that
    /// writes the table, keeps copies.
    pub cache_rows: usize,
    /// Number of batches whose rows are prefetched into the cache.
    pub prefetch: usize,
    /// Number of arenas over which the cache is distributed; on GPUs, each on a device of its own.
    pub devices: usize,
    /// Rows that may change between two snapshots: the next one begins early; 0 = [as many as suffice](ValueSettings::snapshot_rows).
    pub snapshot_rows: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            max_rows: 1 << 18,
            when_full: WhenFull::Error,
            admit_after: 1,
            counters: 1 << 20,
            keep_days: 0,
            optimizer: RowOptimizer::Adagrad,
            rate: 0.05,
            cache_rows: 0,
            prefetch: 2,
            devices: 1,
            snapshot_rows: 0,
        }
    }
}

impl ValueSettings {
    /// Returns the maximum weight of an exposure that is learned from.
    pub fn training_weight(&self) -> f64 {
        match self.values.weights {
            Weights::Equal => 1.0,
            Weights::Auto | Weights::Propensity => self.values.most_weight,
        }
    }

    /// Whether the validation days choose how exposures weigh.
    pub fn chooses_weights(&self) -> bool {
        self.values.weights == Weights::Auto && self.values.most_weight > 1.0 && !self.values.validation.is_empty()
    }

    /// Whether the model is trained once more on all days.
    pub fn learns_again(&self) -> bool {
        self.values.refit && !self.values.validation.is_empty()
    }

    /// Whether each row carries a mark of its last use.
    pub fn marks(&self) -> bool {
        self.table.when_full == WhenFull::Oldest || self.table.keep_days > 0
    }

    /// Returns the number of batches whose rows are fetched before their turn.
    pub fn ahead(&self) -> usize {
        if self.table.cache_rows > 0 { self.table.prefetch } else { 1 }
    }

    /// Returns the number of rows that GPUs hold: those of the cache, or all.
    pub fn device_rows(&self) -> usize {
        if self.table.cache_rows > 0 { self.table.cache_rows } else { self.table.max_rows }
    }

    /// Returns the number of ranks of a machine: of all its tables.
    pub fn ranks_here(&self) -> usize {
        self.values.ranks * self.ranks.tables
    }

    /// Returns the number of rows that may change, or be inserted, before the next update at which a snapshot can begin, with so many
    /// `ranks` in all.
    pub fn rows_in_flight(&self, ranks: usize) -> usize {
        let batches = match self.ranks.sync {
            RankSync::Overlap if self.ranks_here() > 1 => self.ranks.period as usize + KEPT_GRADIENTS,
            _ => 4 + self.ahead().max(1),
        };
        batches * self.values.batch * ranks * self.values.fields.len()
    }

    /// Returns the number of rows that may change between two snapshots, with so many `ranks` in all. Where it is not configured, that is four
    /// times the rows of the batches under way, but at least [`SNAPSHOT_ROWS`]; never more than `table.max_rows`.
    pub fn snapshot_rows(&self, ranks: usize) -> usize {
        let rows = match self.table.snapshot_rows {
            0 => (4 * self.rows_in_flight(ranks)).max(SNAPSHOT_ROWS),
            rows => rows,
        };
        rows.min(self.table.max_rows)
    }

    /// Checks the keys whose permitted values depend on the number of `ranks` in all, those of other machines among them.
    ///
    /// # Errors
    /// A key whose value does not go with so many ranks.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), SettingsError> {
        let bad = |key: &str, why: String| Err(SettingsError::Value { key: key.into(), why });
        let t = &self.table;
        let least = 2 * self.rows_in_flight(ranks);
        if self.snapshot_rows(ranks) < least.min(t.max_rows) && self.checkpoint.every_s > 0.0 {
            let why = format!(
                "is {}; the batches under way may change {least} rows: leave it out, or lower values.batch (or ranks.period, if ranks overlap)",
                t.snapshot_rows
            );
            return bad("table.snapshot_rows", why);
        }
        if ranks == 1 {
            return Ok(());
        }
        for (key, set) in [
            ("table.admit_after", t.admit_after > 1),
            ("table.when_full", t.when_full == WhenFull::Oldest),
            ("table.keep_days", t.keep_days > 0),
        ] {
            if set {
                let why = format!(
                    "goes with values.ranks = 1 and ranks.tables = 1 on one node, and there are {ranks} ranks: they read the table while one \
                     writes it"
                );
                return bad(key, why);
            }
        }
        let (timeout, silent) = (self.ranks.timeout_s, self.watchdog.silent_s);
        if silent > 0.0 && timeout >= silent {
            let why =
                format!("is {timeout}; must be less than watchdog.silent_s = {silent}, or the wrong rank is blamed");
            return bad("ranks.timeout_s", why);
        }
        if t.devices > 1 {
            let why = format!("is {}; must be 1 with {ranks} ranks, each of which has a device of its own", t.devices);
            return bad("table.devices", why);
        }
        if t.cache_rows > 0 && self.ranks.sync == RankSync::Overlap {
            let why = "goes with ranks.sync = \"step\"; ranks that overlap read the newest rows in the table";
            return bad("table.cache_rows", why.into());
        }
        Ok(())
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
            ("ranks.tables", self.ranks.tables, 1, MOST_TABLES),
            ("values.readers", v.readers, 1, MOST_ACTORS),
            ("values.shuffle", v.shuffle, 1, 1 << 28),
            ("table.max_rows", t.max_rows, 1, (1 << 32) - 2),
            ("table.cache_rows", t.cache_rows, 0, (1 << 32) - 2),
            ("table.prefetch", t.prefetch, 0, 64),
            ("table.devices", t.devices, 1, MOST_DEVICES),
            ("table.snapshot_rows", t.snapshot_rows, 0, (1 << 32) - 2),
            ("table.admit_after", t.admit_after as usize, 1, 255),
            ("table.counters", t.counters, 64, 1 << 36),
            ("table.keep_days", t.keep_days as usize, 0, 36_500),
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
            ("ranks.first_share", self.ranks.first_share, 0.0, 1.0),
            ("ranks.timeout_s", self.ranks.timeout_s, 1.0, 1e6),
            ("watchdog.silent_s", self.watchdog.silent_s, 0.0, 1e9),
            ("watchdog.stuck_s", self.watchdog.stuck_s, 0.0, 1e9),
            ("watchdog.grace_s", self.watchdog.grace_s, 0.0, 1e9),
        ] {
            if !(low..=high).contains(&value) {
                return bad(key, format!("is {value}; must lie within {low}..={high}"));
            }
        }
        if v.epochs == 0 {
            return bad("values.epochs", "must be at least 1".into());
        }
        // A GPU counts them with 32 bits.
        let fields = v.fields.len();
        let widest = v.hidden.max(fields * v.dim).max(v.dim + (fields + 1) * fields / 2);
        if u32::try_from(v.batch * widest).is_err() {
            let why = format!(
                "is {}; with {fields} fields, values.dim = {} and values.hidden = {} a batch has 2^32 numbers or more in one array: lower one of them",
                v.batch, v.dim, v.hidden
            );
            return bad("values.batch", why);
        }
        let (r, ranks) = (&self.ranks, self.ranks_here());
        if ranks > MOST_RANKS_HERE {
            return bad(
                "ranks.tables",
                format!(
                    "is {}; with values.ranks = {} each, that makes {ranks} ranks, and a machine has at most {MOST_RANKS_HERE}",
                    r.tables, v.ranks
                ),
            );
        }
        if !(1..=1 << 20).contains(&r.period) {
            return bad("ranks.period", format!("is {}; must lie within 1..={}", r.period, 1 << 20));
        }
        if r.quorum > ranks {
            return bad(
                "ranks.quorum",
                format!("is {}; there are {ranks} ranks (values.ranks x ranks.tables), 0 = all", r.quorum),
            );
        }
        if self.checkpoint.keep == 0 {
            return bad("checkpoint.keep", "must be at least 1; checkpoint.every_s = 0 takes no snapshots".into());
        }
        self.check_ranks(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places in the arrays of such a batch wrapped around on a GPU.
    #[test]
    fn batches_whose_numbers_32_bits_do_not_count_are_refused() {
        let mut settings = ValueSettings::default();
        settings.values.train = vec!["day".into()];
        settings.values.fields = (0..16).map(|_| "ad".into()).collect();
        (settings.values.batch, settings.values.dim) = (1 << 20, 255);
        settings.validate().unwrap();
        settings.values.dim = 256;
        assert!(settings.validate().unwrap_err().to_string().contains("values.batch"));
        (settings.values.dim, settings.values.hidden) = (16, 4095);
        settings.validate().unwrap();
        settings.values.hidden = 4096;
        assert!(settings.validate().unwrap_err().to_string().contains("values.batch"));
    }

    /// Batches of 512 samples and periods of 16 were refused with the default, which was a number.
    #[test]
    fn overlapping_ranks_need_no_snapshot_rows_of_their_own() {
        for (batch, ranks, period) in [(512, 2, 16), (4096, 8, 64), (1, 1, 1), (1024, 4, 1024)] {
            let mut settings = ValueSettings::default();
            settings.values.train = vec!["day".into()];
            (settings.values.batch, settings.values.ranks) = (batch, ranks);
            (settings.ranks.sync, settings.ranks.period) = (RankSync::Overlap, period);
            settings.table.max_rows = 1 << 24;
            settings.validate().unwrap();
            let rows = settings.snapshot_rows(ranks);
            assert!(rows == 1 << 24 || rows >= 4 * settings.rows_in_flight(ranks), "{rows}");
            settings.table.snapshot_rows = (2 * settings.rows_in_flight(ranks)).min(1 << 24) - 1;
            assert!(settings.validate().unwrap_err().to_string().contains("table.snapshot_rows"));
            settings.checkpoint.every_s = 0.0;
            settings.validate().unwrap();
        }
    }
}
