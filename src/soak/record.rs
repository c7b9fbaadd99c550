//! Records of the blows and their outcomes, one per line, which add up over sessions.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Kind of a blow to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blow {
    /// SIGKILL to one child.
    Kill,
    /// SIGKILL to several children, at once or while the first is being replaced.
    Burst,
    /// SIGKILL to main; the run is resumed.
    Main,
    /// SIGKILL to all processes at once; the run is resumed.
    Group,
    /// SIGKILL to main, then to its successors and their children while they start or read their snapshot.
    Start,
    /// SIGSTOP to some processes, possibly including main, and SIGCONT after a while.
    Pause,
    /// SIGTERM to main; the run is resumed.
    Term,
    /// SIGTERM to main twice; the run is resumed.
    TermTwice,
    /// SIGTERM to all processes at once, as a service supervisor does; the run is resumed.
    TermAll,
    /// SIGTERM to main, then SIGKILL to some processes while they save and end; the run is resumed.
    Shutdown,
}

impl Blow {
    pub const ALL: [Self; 10] = [
        Self::Kill,
        Self::Burst,
        Self::Main,
        Self::Group,
        Self::Start,
        Self::Pause,
        Self::Term,
        Self::TermTwice,
        Self::TermAll,
        Self::Shutdown,
    ];

    fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// One line of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    Blow(BlowRecord),
    /// An orderly end of a free run, with an exact ledger and nothing left behind.
    Session {
        seed: u64,
        /// Growth of the resident memory of main and of the learner over the session's second half, MB.
        main_growth_mb: f64,
        learner_growth_mb: f64,
    },
    /// The end of a lock-step run, with the bytes of the undisturbed run.
    LockStep {
        seed: u64,
        blows: u32,
    },
}

/// One blow and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlowRecord {
    pub seed: u64,
    pub blow: Blow,
    /// Whether the run was in lock-step; otherwise its actors ran freely.
    pub lock_step: bool,
    /// Roles of the struck processes, in order.
    pub victims: Vec<String>,
    /// Number of SIGKILLs, and of other signals.
    pub kills: u32,
    pub signals: u32,
    /// Seconds until the struck processes were replaced, in a free run.
    pub replaced_s: Option<f64>,
    /// Seconds until all processes made progress again, in a free run.
    pub progress_s: Option<f64>,
    /// Seconds by which children outlived main, where main was killed.
    pub orphans_s: Option<f64>,
}

/// Totals of a record.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SoakReport {
    pub kills: u64,
    pub other_signals: u64,
    pub seeds: Vec<u64>,
    pub blows: BTreeMap<String, Recovery>,
    /// Free runs with an orderly end and an exact ledger, and lock-step runs that ended with the same bytes.
    pub sessions: usize,
    pub lock_step_runs: usize,
    pub orphans_max_s: f64,
    /// Growth of resident memory over the second half of a session: median and maximum, MB.
    pub main_growth_mb: (f64, f64),
    pub learner_growth_mb: (f64, f64),
}

/// Outcomes of all blows of one kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Recovery {
    pub times: usize,
    /// Number of these in lock-step runs.
    pub in_lock_step: usize,
    pub kills: u64,
    pub other_signals: u64,
    /// Median and maximum, seconds.
    pub replaced_s: Option<(f64, f64)>,
    pub progress_s: Option<(f64, f64)>,
}

fn median_and_max(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    Some((*values.get(values.len().checked_sub(1)? / 2)?, *values.last()?))
}

impl SoakReport {
    pub fn of(records: &[Record]) -> Self {
        let mut report = Self::default();
        let mut times = BTreeMap::<Blow, (Vec<f64>, Vec<f64>)>::new();
        let (mut main, mut learner) = (vec![], vec![]);
        for record in records {
            let seed = match record {
                Record::Blow(b) => {
                    report.kills += u64::from(b.kills);
                    report.other_signals += u64::from(b.signals);
                    report.orphans_max_s = report.orphans_max_s.max(b.orphans_s.unwrap_or(0.0));
                    let of_kind = report.blows.entry(b.blow.name()).or_default();
                    of_kind.times += 1;
                    of_kind.in_lock_step += usize::from(b.lock_step);
                    of_kind.kills += u64::from(b.kills);
                    of_kind.other_signals += u64::from(b.signals);
                    let (replaced, progress) = times.entry(b.blow).or_default();
                    replaced.extend(b.replaced_s);
                    progress.extend(b.progress_s);
                    b.seed
                }
                Record::Session { seed, main_growth_mb, learner_growth_mb } => {
                    report.sessions += 1;
                    main.push(*main_growth_mb);
                    learner.push(*learner_growth_mb);
                    *seed
                }
                Record::LockStep { seed, .. } => {
                    report.lock_step_runs += 1;
                    *seed
                }
            };
            if !report.seeds.contains(&seed) {
                report.seeds.push(seed);
            }
        }
        for (blow, (replaced, progress)) in times {
            let of_kind = report.blows.entry(blow.name()).or_default();
            of_kind.replaced_s = median_and_max(replaced);
            of_kind.progress_s = median_and_max(progress);
        }
        report.main_growth_mb = median_and_max(main).unwrap_or_default();
        report.learner_growth_mb = median_and_max(learner).unwrap_or_default();
        report
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Option<(f64, f64)>| {
            time.map_or_else(|| format!("{:>18}", "-"), |(median, max)| format!("{median:>8.2} s {max:>6.2} s"))
        };
        let head = ["blow", "times", "kills", "signals", "replaced (median, max)", "got on (median, max)"];
        writeln!(f, "{:12} {:>6} {:>6} {:>8}  {:>22}  {:>20}", head[0], head[1], head[2], head[3], head[4], head[5])?;
        for (blow, r) in &self.blows {
            let (replaced, progress) = (seconds(r.replaced_s), seconds(r.progress_s));
            writeln!(
                f,
                "{blow:12} {:>6} {:>6} {:>8}  {replaced:>22}  {progress:>20}",
                r.times, r.kills, r.other_signals
            )?;
        }
        write!(
            f,
            "{} kills and {} other signals, {} seeds: 0 hangs, nothing left behind; {} free runs ended with an exact ledger, \
             {} lock-step runs with the same bytes; children outlived main by {:.2} s at most; resident memory grew by \
             {:.1} MB (main) and {:.1} MB (learner) over half a session, in the median",
            self.kills,
            self.other_signals,
            self.seeds.len(),
            self.sessions,
            self.lock_step_runs,
            self.orphans_max_s,
            self.main_growth_mb.0,
            self.learner_growth_mb.0
        )
    }
}

/// Reads the lines of a record; none where there is no file.
///
/// # Errors
/// A file that cannot be read or is not a record.
pub fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let parse = |line: &str| serde_json::from_str(line).with_context(|| format!("{}: `{line}`", path.display()));
    text.lines().map(parse).collect()
}

/// Appends a line.
///
/// # Errors
/// A file that cannot be written.
pub fn append(path: Option<&Path>, record: &Record) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{}", serde_json::to_string(record)?).with_context(|| format!("cannot write {}", path.display()))
}
