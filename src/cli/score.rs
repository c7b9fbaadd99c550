//! `admix score`: reads requests from standard input and writes scores to standard output.

use std::io::{BufReader, BufWriter, Read, Stdin, Stdout, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::files::{self, replace};
use crate::log::error::BadValue;
use crate::score::{self, DayFiles, Format, Requests, ScoreOptions, Scorer, ServedDay, ServedPolicy, ServedValues};

use super::exit::{Exit, UsageError};
use super::numbers::some_seconds;
use super::replayed::Replayed;
use super::told::warn_of_delay;

#[derive(Debug, Args)]
#[command(after_help = "Example, a day of a log directory scored as `eval` decides it:\n\n    \
    admix score --policy runs/default-1 --control day-4/control.tsv \\\n        --inventory day-4/inventory.tsv \
    --day day-4/day.toml < day-4/track_log.tsv > scores.tsv")]
pub struct Score {
    #[command(flatten)]
    served: Served,
    /// Input and output: track_log columns in and `request_id, ad_id, score, chosen` out, or one JSON object per line
    #[arg(long, value_enum, default_value_t = FormatArgument::Tsv)]
    format: FormatArgument,
    /// Score every request at the same state, without counting deliveries
    #[arg(long, conflicts_with_all = ["exposures", "confirm_within"])]
    stateless: bool,
    /// Impressions really shown (request_id, ad_id, ts_ms[, arrival_ms]): they confirm or correct the choices
    #[arg(long, value_name = "FILE")]
    exposures: Option<PathBuf>,
    /// Take back a choice that no exposure confirms within this many seconds; deliveries are observed when confirmed. Default: a
    /// choice counts as shown
    #[arg(long, value_name = "SECONDS", requires = "exposures", value_parser = some_seconds)]
    confirm_within: Option<f64>,
    /// Start from a saved state
    #[arg(long, value_name = "FILE", conflicts_with = "delivered")]
    state: Option<PathBuf>,
    /// Save the state at the end
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
}

/// Policy and day of `score` and `serve`.
#[derive(Debug, Args)]
pub struct Served {
    /// A run directory (its best policy), the folder of a nightly job (the promoted one), a policy file, or baseline:NAME, which needs
    /// --plan
    #[arg(long, value_name = "RUN_DIR|JOBS|FILE|baseline:NAME")]
    pub policy: String,
    /// Contracts of the day
    #[arg(long, value_name = "FILE")]
    pub control: PathBuf,
    /// Plan of a baseline; a policy file carries its own
    #[arg(long, value_name = "RUN_DIR|FILE")]
    pub plan: Option<PathBuf>,
    /// Impressions delivered since the start of the day (ad_id, delivered), for a start in the middle of it
    #[arg(long, value_name = "FILE")]
    pub delivered: Option<PathBuf>,
    /// Supply forecast of the day; default: the plan's
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// The day's date and time zone; default: UTC, and the date of the first request (`serve`: today)
    #[arg(long, value_name = "DAY.TOML")]
    pub day: Option<PathBuf>,
    /// Values that the policy is told: those of a run of `admix values train`, or those of the requests. Default: the ones that it was
    /// made at
    #[arg(long, value_name = "RUN_DIR|logged")]
    pub values: Option<PathBuf>,
    #[command(flatten)]
    replayed: Replayed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArgument {
    Tsv,
    Jsonl,
}

impl Served {
    /// Opens the policy.
    pub fn open(&self) -> anyhow::Result<ServedPolicy> {
        let policy = ServedPolicy::open(&self.policy, self.plan.as_deref());
        let policy = policy.map_err(|e| UsageError(format!("{e:#}")))?;
        if !policy.predicts() {
            warn_of_delay("the policy", policy.plan(), self.replayed.feedback_delay);
        }
        if self.plan.is_some() && !self.policy.starts_with("baseline:") {
            tracing::info!("the policy goes by the plan that it carries, as in `eval`; --plan is for baselines");
        }
        Ok(policy)
    }

    /// Returns the values that the policy is told.
    pub fn values(&self) -> ServedValues {
        self.values.as_deref().map_or(ServedValues::Own, ServedValues::from)
    }

    /// Returns the files that describe the day.
    pub fn files(&self) -> DayFiles {
        DayFiles { control: self.control.clone(), inventory: self.inventory.clone(), day: self.day.clone() }
    }

    /// Returns the options of the scorer.
    pub fn options(&self) -> ScoreOptions {
        self.replayed.score()
    }

    /// Adds the deliveries of `--delivered` to the scorer.
    pub fn begin(&self, scorer: &mut Scorer) -> anyhow::Result<()> {
        if let Some(path) = &self.delivered {
            let unknown = scorer.begin_with(&score::delivered(path)?);
            if let Some(first) = unknown.first() {
                tracing::warn!("--delivered names {} ads without a control row, {first} first", unknown.len());
            }
        }
        Ok(())
    }
}

impl Score {
    pub fn run(self) -> anyhow::Result<Exit> {
        let format = match self.format {
            FormatArgument::Tsv => Format::Tsv,
            FormatArgument::Jsonl => Format::Jsonl,
        };
        if let Some(path) = &self.save_state {
            files::check_place(path)
                .map_err(|e| UsageError(format!("cannot write {}: {e}; name another --save-state", path.display())))?;
        }
        let policy = self.served.open()?;
        let told = policy.values(&self.served.values()).map_err(|e| UsageError(format!("{e:#}")))?;
        policy.log_values(&told);
        let exposures = match &self.exposures {
            Some(path) => score::exposures(path)?,
            None => vec![],
        };
        let mut skipped = 0u64;
        let mut bad = |line: u64, why: &BadValue| {
            skipped += 1;
            if skipped <= 20 {
                say!(
                    "line {line} skipped: {}{}`{}`: {}",
                    why.column,
                    if why.column.is_empty() { "" } else { " " },
                    why.value,
                    why.rule
                );
            }
        };
        let output = Output::default();
        let input = Answered { input: std::io::stdin(), output: output.clone() };
        let mut requests = Requests::new(Box::new(BufReader::with_capacity(1 << 18, input)), format)?;
        let first = requests.first_time(&mut bad)?;
        if first.is_none() && self.served.day.is_none() && self.save_state.is_some() {
            let why = "there is no request that says which day it is; no state is saved. --day FILE names the day.toml";
            return Err(UsageError(why.into()).into());
        }
        let first = first.unwrap_or(0);
        let day = ServedDay::read(&self.served.files(), first)?.told(&told);
        if let Some(new) = day.new_to(&policy) {
            tracing::warn!("{new}");
        }
        let options = ScoreOptions {
            stateless: self.stateless,
            exposures: self.exposures.is_some(),
            confirm_within_s: self.confirm_within,
            ..self.served.options()
        };
        let mut scorer = Scorer::new(&day, &policy, options)?;
        self.served.begin(&mut scorer)?;
        if let Some(path) = &self.state {
            let mut bytes = Vec::new();
            let read = std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
            read.with_context(|| format!("cannot read the state {}", path.display()))?;
            let restored = scorer.restore(&bytes).map_err(|e| UsageError(format!("{}: {e:#}", path.display())))?;
            if !restored.goes_on {
                tracing::warn!(
                    "{}: saved by another policy or with other contracts; its counts are taken over, by ad id",
                    path.display()
                );
            }
        }
        let report = match score::stream(&mut scorer, &mut requests, &exposures, format, &mut { output }, &mut bad) {
            Ok(report) => report,
            Err(e) if is_broken_pipe(&e) => return Ok(Exit::Done),
            Err(e) => return Err(e),
        };
        if let Some(path) = &self.save_state {
            let saved = replace(path, &scorer.save());
            saved.with_context(|| format!("cannot write the state {}", path.display()))?;
        }
        let skipped: u64 = report.bad.values().sum();
        if skipped > 0 {
            let reasons: Vec<String> = report.bad.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
            let skipped = format!("{skipped} of {} lines were skipped: {}", report.lines, reasons.join(", "));
            if report.decided == 0 {
                let hint = match report.bad.contains_key("outside_day") {
                    true => "; --day FILE names the day.toml with the date and UTC offset of the day to serve",
                    false => "",
                };
                return Err(UsageError(format!("no request was decided: {skipped}{hint}")).into());
            }
            tracing::warn!("{skipped}");
        }
        if report.other_day > 0 {
            tracing::warn!(
                "{} exposures are not of {} and were not counted; is --exposures another day's file?",
                report.other_day,
                scorer.day().date
            );
        }
        if report.unknown > 0 {
            tracing::warn!(
                "{} exposures are of requests that were not decided here or are forgotten, or of contracts that are gone; \
                 they changed nothing",
                report.unknown
            );
        }
        tracing::info!("{} requests decided, {} candidates scored", report.decided, report.candidates);
        Ok(Exit::Done)
    }
}

/// Standard output, buffered.
#[derive(Clone)]
struct Output(Arc<Mutex<BufWriter<Stdout>>>);

impl Default for Output {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(BufWriter::with_capacity(1 << 18, std::io::stdout()))))
    }
}

impl Output {
    fn buffer(&self) -> MutexGuard<'_, BufWriter<Stdout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.buffer().write(bytes);
        written.map_err(|e| std::io::Error::new(e.kind(), format!("cannot write to standard output: {e}")))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.buffer().flush();
        flushed.map_err(|e| std::io::Error::new(e.kind(), format!("cannot write to standard output: {e}")))
    }
}

/// Input that is read on only when all that came before is answered: whoever sends a request and waits gets the decision.
struct Answered {
    input: Stdin,
    output: Output,
}

impl Read for Answered {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        // What fails here fails again when it is written next.
        let _ = self.output.flush();
        self.input.read(bytes)
    }
}

/// Returns whether the reader closed the pipe.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(broken))
}
