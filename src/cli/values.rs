//! `admix values`: learns the worth of impressions from exposures, evaluates it, and writes it down.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use crate::cancel;
use crate::collective::shares::Work;
use crate::files;
use crate::gpu::Device;
use crate::log::CompileOptions;
use crate::nodes::Job;
use crate::rank;
use crate::run::value_run::Prepared;
use crate::run::{RunDirectory, beginning, flight};
use crate::settings::{self, Configuration as _, ValueSettings, Weights};
use crate::sparse::file;
use crate::supervisor::children::bind_to_parent;
use crate::supervisor::failure::RunFailure;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::manifest;
use crate::supervisor::values::{self, Spent, ValueManifest, ValueOutcome};
use crate::supervisor::{ExitReason, resume};
use crate::values::join::{Share, join};
use crate::values::prior::FieldSd;
use crate::values::report::{self, LossDifference, Points, ValueReport};
use crate::values::{Fields, ValueModel, model, ratios};

use super::device::{self, ChosenDevice};
use super::exit::{Exit, UsageError};
use super::node;
use super::numbers::share;
use super::output::{print_json, print_text};

/// CPU seconds of a rank from which on it is told how evenly ranks share the work: less says little.
const SHOWS_WORK_S: f64 = 1.0;

#[derive(Debug, Subcommand)]
pub enum Values {
    /// Learn corrections of the logged predictions from exposures
    Train(Train),
    /// Compare a model's values with the logged ones on the exposures of days
    Eval(Eval),
    /// Write a model's rows as a sparse-parameter file, and its network as safetensors beside it
    Dump(Dump),
    /// Write the simplest model: for each ad the ratio of outcome to prediction, shrunk towards 1
    Ratios(Ratios),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  admix values ratios --log worlds/v/day-0 worlds/v/day-1 --out ratios\n  \
                        admix eval --log worlds/v/day-3 --values ratios")]
pub struct Ratios {
    /// Log directories with a joined_exposure
    #[arg(long = "log", value_name = "DIR", required = true, num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Folder of the model, for `--values`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of bad track rows above which a log is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  admix data synth --config configs/synth/values.toml --out worlds/v\n  \
                        admix values train --config configs/values.toml --run-dir runs/v \\\n      \
                        --set 'values.train=[\"worlds/v/day-0\", \"worlds/v/day-1\"]' \\\n      --set 'values.validation=[\"worlds/v/day-2\"]'")]
pub struct Train {
    /// Configuration file (TOML); configs/values.toml names every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Begin with the rows of a file written by `values dump`, or with rows and network of another run; sets values.from
    #[arg(long, value_name = "ROWS|RUN_DIR")]
    from: Option<PathBuf>,
    /// Device of the trainer: cpu, cuda, cuda:INDEX, or auto (a GPU, if it computes the CPU's losses); sets run.device. Rows lie on
    /// table.devices GPUs from this one on
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Set a configuration key, for example --set table.rate=0.1; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Directory of the run; new or empty, except with --resume. Default: runs/<config name>-<time>
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Resume the run in --run-dir from its newest snapshot; =auto starts it if there is none yet
    #[arg(
        long,
        value_name = "auto",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "must",
        hide_possible_values = true,
        requires = "run_dir"
    )]
    resume: Option<Resume>,
    /// End when this process does; set by the commands that start runs
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resume {
    Must,
    Auto,
}

impl From<Resume> for resume::Resume {
    fn from(how: Resume) -> Self {
        match how {
            Resume::Must => Self::Must,
            Resume::Auto => Self::Auto,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  admix values eval --values runs/v --log worlds/v/day-3 worlds/v/day-4")]
pub struct Eval {
    /// Run directory of `admix values train`, or the folder of a model
    #[arg(long, value_name = "DIR")]
    values: PathBuf,
    /// Log directories with a joined_exposure
    #[arg(long = "log", value_name = "DIR", required = true, num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Share of bad track rows above which a log is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
    /// Print one JSON object per line, one line per log
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  admix values dump --values runs/v --out values.bin")]
pub struct Dump {
    /// Run directory of `admix values train`, or the folder of a model
    #[arg(long, value_name = "DIR")]
    values: PathBuf,
    /// The sparse-parameter file; the network goes to FILE.safetensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Values {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Train(train) => train.run(),
            Self::Eval(eval) => eval.run(),
            Self::Dump(dump) => dump.run(),
            Self::Ratios(ratios) => ratios.run(),
        }
    }
}

impl Train {
    fn run(self) -> anyhow::Result<Exit> {
        cancel::catch(|| self.train()).unwrap_or_else(|cancel::Cancelled| {
            say!("interrupted before training began; logs that were compiled are kept for the next start");
            Ok(Exit::Interrupted)
        })
    }

    fn train(self) -> anyhow::Result<Exit> {
        if let Some(parent) = self.parent {
            bind_to_parent(parent)?;
        }
        let job = Job::join()?;
        let exit = self.train_in(&job)?;
        job.leave();
        Ok(exit)
    }

    fn train_in(self, job: &Job) -> anyhow::Result<Exit> {
        let mut settings: ValueSettings = settings::load(&self.config, &self.sets)?;
        settings.values.from = self.source(&settings.values.from)?;
        if let Some(device) = &self.device {
            settings.run.device.clone_from(device);
        }
        let ChosenDevice { device, why } = device::choose_for_values(&settings)?;
        let fields = Fields::parse(&settings.values.fields)?;
        let interrupt = Interrupt::listen(settings.watchdog.grace_s)?;
        values::check_job(&settings, &fields, job.node())?;
        let directory =
            node::directory(job, self.run_dir.as_deref(), self.resume.is_some(), || self.first_directory())?;
        let names = device::names(device, rank::device::subject(&settings));
        if device != Device::Cpu || why.is_some() {
            let others = match settings.table.devices {
                devices @ 2.. if device != Device::Cpu => format!(", rows on {devices} GPUs from it on"),
                _ => String::new(),
            };
            tell!(job, "device {names}{others}{}", why.map(|why| format!(" ({why})")).unwrap_or_default());
        }
        flight::begin(&directory.flight(), "main");
        let root = directory.root().to_owned();
        let how = self.resume.map_or(resume::Resume::Auto, Into::into);
        if let Some(exit) = learn(&settings, &fields, (&directory, &names), how, &interrupt, job)? {
            return Ok(exit);
        }
        if settings.chooses_weights() && Prepared::read(&directory)?.weighted > 0 {
            tell!(job, "learning beside it with equal weights");
            settings.values.weights = Weights::Equal;
            let beside = resume::open(&root.join(model::EQUAL), resume::Resume::Auto)?;
            if let Some(exit) = learn(&settings, &fields, (&beside, &names), resume::Resume::Auto, &interrupt, job)? {
                return Ok(exit);
            }
            // The first node has the models.
            let equal = job.node().is_first() && ValueModel::chosen(&root) != root;
            settings.values.weights = if job.tell(&equal)?[0] { Weights::Equal } else { Weights::Propensity };
            let chosen = if settings.values.weights == Weights::Equal { "equal weights" } else { "1 / propensity" };
            tell!(job, "the validation days choose {chosen}");
        }
        if settings.learns_again() {
            let meta = || ValueModel::read_meta(&ValueModel::chosen(&root).join("values"));
            let passes = job.node().is_first().then(meta).transpose()?.map_or(0, |meta| meta.epoch + 1);
            let passes = job.tell(&passes)?[0];
            tell!(job, "learning once more, {passes} passes over training and validation days together");
            let v = &mut settings.values;
            v.train.append(&mut v.validation);
            (v.epochs, v.patience) = (passes, 0);
            let again = resume::open(&root.join(model::REFIT), resume::Resume::Auto)?;
            if let Some(exit) = learn(&settings, &fields, (&again, &names), resume::Resume::Auto, &interrupt, job)? {
                return Ok(exit);
            }
        }
        if let Err(e) = beginning::forget(&directory) {
            tracing::warn!("a copy of values.from cannot be removed, it stays: {e:#}");
        }
        tell!(job, "values: {}", root.display());
        Ok(Exit::Done)
    }

    /// Returns what `--from` names, or the configuration's `from`, as an absolute path. One that is there was made absolute when the
    /// configuration was loaded; one that is gone has to be the path that the run began with.
    fn source(&self, from: &Path) -> anyhow::Result<PathBuf> {
        if let Some(from) = self.from.as_deref().filter(|from| !from.as_os_str().is_empty()) {
            return Ok(std::path::absolute(from)?);
        }
        if from.as_os_str().is_empty() || from.is_absolute() {
            return Ok(from.to_owned());
        }
        let beside = absolute(&self.config.parent().unwrap_or(Path::new("")).join(from));
        let before = self.run_dir.as_ref().map(|root| ValueSettings::read_resolved(&root.join("config.toml")));
        let began_there = matches!(before, Some(Ok(before)) if before.values.from == beside);
        Ok(if began_there { beside } else { absolute(from) })
    }

    fn first_directory(&self) -> anyhow::Result<RunDirectory> {
        match (self.resume, &self.run_dir) {
            (Some(how), Some(root)) => resume::open(root, how.into()),
            (_, Some(root)) => RunDirectory::create(root),
            (_, None) => {
                let name =
                    self.config.file_stem().map_or_else(|| "values".into(), |s| s.to_string_lossy().into_owned());
                let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
                RunDirectory::create_unique(Path::new("runs"), &format!("{name}-{time}"))
            }
        }
    }
}

/// Makes a path absolute of which the end may be gone, without symbolic links in what is there.
fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(found), ..) => found,
        (Err(_), Some(parent), Some(name)) => absolute(parent).join(name),
        _ => path.to_owned(),
    }
}

/// Learns in a run directory, from the beginning or from where it was interrupted; returns the exit if the program is to end.
fn learn(
    settings: &ValueSettings,
    fields: &Fields,
    (directory, device): (&RunDirectory, &str),
    how: resume::Resume,
    interrupt: &Interrupt,
    job: &Job,
) -> anyhow::Result<Option<Exit>> {
    let node = job.node();
    tell!(job, "run directory {}", directory.root().display());
    let prepared = values::prepare(settings, fields, node)?;
    let known = values::agree_on_run(job, directory, settings, &prepared)?;
    let earlier = earlier_manifest(directory);
    let has_model = || ValueModel::read_meta(&directory.root().join("values")).is_ok();
    let finished = job.tell(&(node.is_first() && manifest::is_finished(&earlier) && has_model()))?[0];
    if directory.manifest().exists() {
        values::check_resume(directory, &earlier, settings, &prepared)?;
    }
    if finished {
        values::check_snapshots(directory, (job, known))?;
        tell!(job, "the run that was begun here is finished and stays as it is");
        return Ok(None);
    }
    let before = Spent::before(directory, &earlier);
    if directory.manifest().exists() {
        if node.is_alone() {
            values::check_begun(directory, how, before.saved())?;
        }
    } else if node.is_first() {
        directory.check_manifest()?;
    }
    // Whoever is refused finds the run as it was.
    let snapshot = values::newest(directory, (job, known))?;
    if directory.manifest().exists() {
        say!("the run that was begun here goes on");
    }
    directory.replace(&directory.config(), settings.to_toml().as_bytes())?;
    prepared.write(directory)?;
    let begin = || ValueManifest::begin(settings, &prepared, device, (manifest::starts(&earlier), before));
    let mut manifest = node.is_first().then(begin);
    if let Some(manifest) = &manifest {
        manifest.write(directory)?;
    }
    tell!(
        job,
        "{} exposures to learn from, {} to validate on; fields, with how far their ids err (charge, click): {}",
        prepared.samples,
        prepared.validation.samples,
        described(&settings.values.fields, &prepared.prior)
    );
    interrupt.supervise();
    let result = values::train(settings, fields, directory, interrupt, (job, snapshot)).map(|last| before.and(last));
    flight::end(&result);
    if interrupt.count() > 1 {
        if let Err(e) = &result {
            say!("{e:#}");
        }
        // Without taking leave, which would wait for the other nodes.
        ensure!(node.is_alone(), RunFailure::NotSaved { node: node.index });
        return Ok(Some(Exit::Interrupted));
    }
    let written = manifest.as_mut().map_or(Ok(()), |manifest| {
        manifest.end(&result);
        manifest.write(directory)
    });
    let outcome = result?;
    written?;
    tell!(job, "{}", summary(&outcome));
    if outcome.reason == ExitReason::Interrupted {
        let saved = values::holds_snapshots(directory)?;
        let how = if saved { "--resume to go on" } else { "--resume=auto to begin again" };
        tell!(job, "interrupted; repeat the command with --run-dir and {how}");
        return Ok(Some(Exit::Interrupted));
    }
    interrupt.leave();
    Ok(None)
}

/// Reads the manifest of the last start of a run; `null` where there is none that can be read.
fn earlier_manifest(directory: &RunDirectory) -> Value {
    let text = std::fs::read(directory.manifest()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Formats fields with the standard deviations of their priors.
fn described(fields: &[String], prior: &[FieldSd]) -> String {
    let one = |(name, [charge, click]): (&String, &FieldSd)| format!("{name} ({charge:.3}, {click:.3})");
    fields.iter().zip(prior).map(one).collect::<Vec<_>>().join(", ")
}

fn summary(o: &ValueOutcome) -> String {
    let reason = match o.reason {
        ExitReason::Budget => "all passes done",
        ExitReason::Converged => "converged",
        ExitReason::Interrupted => "interrupted",
    };
    let best =
        if o.best_loss.is_finite() { format!("; best validation loss {:.6}", o.best_loss) } else { String::new() };
    let mut text = format!(
        "{reason} after {:.0} s: {} updates, {} samples, {} passes{best}\nsamples: {}\nsnapshots: {} in {:.1} s",
        o.seconds, o.updates, o.samples, o.passes, o.ledger, o.snapshots, o.snapshot_s
    );
    if o.reader_restarts + o.went_back > 0 {
        let _ = write!(
            text,
            "\nreaders started again {} times; went back to a snapshot {} times",
            o.reader_restarts, o.went_back
        );
    }
    if let Some(work) = o.work.filter(|work| work.other_busy_s > SHOWS_WORK_S) {
        let Work { first_busy_s: first, other_busy_s: other, first_share, even_share } = work;
        let _ = write!(text, "\nranks: CPU time of the first {first:.1} s, of another {other:.1} s");
        if work.is_uneven() {
            let _ = write!(text, "; about even with ranks.first_share = {even_share} (it is {first_share})");
        }
    }
    text
}

impl Eval {
    fn run(self) -> anyhow::Result<Exit> {
        let model = read(&self.values)?;
        let options = CompileOptions { max_bad_share: self.max_bad_share, ..CompileOptions::default() };
        let fields = model.fields.len();
        let (learned, seen) = training_points(&self.values, options, &model.fields).unzip();
        let mut reports = Vec::new();
        let (mut losses, mut logged) = (Vec::new(), Vec::new());
        for dir in &self.logs {
            let joined = join(dir, options, &model.fields, Share::ALL)?;
            let dispersion = f64::from(model.meta.dispersion);
            losses.extend(report::losses(&joined, fields, Some(&mut model.predictor()), dispersion));
            logged.extend(report::losses(&joined, fields, None, dispersion));
            if let Some(complaint) = joined.counts.complaint() {
                tracing::warn!("{}: {complaint}", joined.log.name());
            }
            if joined.log.content().is_some_and(|content| seen.iter().flatten().any(|seen| *seen == content)) {
                tracing::warn!("the model was learned from {}: figures on it are too good", joined.log.name());
            }
            let report = report::compare(&joined, fields, &mut model.predictor(), learned.as_ref());
            if self.json {
                print_json(&report)?;
            }
            reports.push(report);
        }
        if !self.json {
            print_text(&render(&reports))?;
            if let Some(found) = LossDifference::of(&losses, &logged) {
                let relation = match found.verdict() {
                    "level" => "level with".to_owned(),
                    verdict => format!("{verdict} than"),
                };
                print_text(&format!("On these days the model is {relation} the logged predictions: {found}.\n"))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn read(dir: &Path) -> anyhow::Result<ValueModel> {
    ValueModel::warn_of_unfinished(dir);
    ValueModel::read(dir).map_err(|e| UsageError(format!("{e:#}")).into())
}

/// Reads the logged points of the days that the model was trained on, if they still exist; and what their logs contain.
fn training_points(dir: &Path, options: CompileOptions, fields: &Fields) -> Option<(Points, Vec<String>)> {
    let roots = [dir.to_owned(), dir.join("..")];
    let ValueSettings { values, .. } =
        roots.iter().find_map(|r| ValueSettings::read_resolved(&r.join("config.toml")).ok())?;
    // The days that the model has seen: for a run with a refit, validation days as well.
    let refit = values.refit && dir.join(model::REFIT).join("values").exists();
    let days = values.train.iter().chain(values.validation.iter().filter(|_| refit));
    let (mut points, mut contents) = (Points::default(), Vec::new());
    for dir in days {
        match join(dir, options, fields, Share::ALL) {
            Ok(joined) => {
                points.extend(Points::of(&joined, fields.len(), None));
                contents.extend(joined.log.content());
            }
            Err(e) => {
                tracing::warn!("no simpler corrections to compare with: {e}");
                return None;
            }
        }
    }
    Some((points, contents))
}

fn render(reports: &[ValueReport]) -> String {
    let mut text = String::new();
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.6}"));
    let width = reports.iter().map(|r| r.log.len()).max().unwrap_or(0).max(10);
    for (title, rows) in [
        (
            "click log loss",
            reports
                .iter()
                .map(|r| {
                    let c = &r.click;
                    let rest = [c.log_loss_isotonic, c.log_loss_ad_ratios];
                    (r.log.as_str(), r.exposures, [Some(c.log_loss), Some(c.log_loss_logged), rest[0], rest[1]])
                })
                .collect::<Vec<_>>(),
        ),
        (
            "charge deviance",
            reports
                .iter()
                .filter_map(|r| {
                    let c = r.charge.as_ref()?;
                    let rest = [c.deviance_isotonic, c.deviance_ad_ratios];
                    let n = c.calibration.deciles.iter().map(|bin| bin.count).sum();
                    Some((r.log.as_str(), n, [Some(c.deviance), Some(c.deviance_logged), rest[0], rest[1]]))
                })
                .collect(),
        ),
    ] {
        let _ = writeln!(
            text,
            "{title}\n{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}",
            "log", "exposures", "values", "logged", "isotonic", "ad ratios"
        );
        for (log, n, figures) in rows {
            let [a, b, c, d] = figures.map(optional);
            let _ = writeln!(text, "{log:width$}  {n:>10}  {a:>10}  {b:>10}  {c:>10}  {d:>10}");
        }
        text.push('\n');
    }
    for report in reports {
        let Some(charge) = &report.charge else { continue };
        let _ = writeln!(
            text,
            "{}: outcome over prediction, charges by tenth of the prediction: values, logged",
            report.log
        );
        for (here, logged) in charge.calibration.deciles.iter().zip(&charge.calibration_logged.deciles) {
            let _ = writeln!(
                text,
                "  {:>3}  {:>8.3}  {:>8.3}",
                here.of,
                here.outcome / here.predicted,
                logged.outcome / logged.predicted
            );
        }
    }
    text.push_str(
        "Lower is better. Isotonic and ad ratios correct the logged prediction by the training days alone.\n",
    );
    text
}

impl Dump {
    fn run(self) -> anyhow::Result<Exit> {
        let model = read(&self.values)?;
        let copy = |to: &Path| Ok(file::copy(model.rows.path(), to, false, |last| Some(last.unwrap_or_default()))?);
        let rows = files::replace_synced_with(&self.out, copy)
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        let mut name = self.out.as_os_str().to_owned();
        name.push(".safetensors");
        let dense = PathBuf::from(name);
        files::replace_synced_with(&dense, |to| Ok(std::fs::copy(model.folder.join("values.safetensors"), to)?))
            .with_context(|| format!("cannot write {}", dense.display()))?;
        say!("{rows} rows written to {}, the network to {}", self.out.display(), dense.display());
        Ok(Exit::Done)
    }
}

impl Ratios {
    fn run(self) -> anyhow::Result<Exit> {
        let options = CompileOptions { max_bad_share: self.max_bad_share, ..CompileOptions::default() };
        let join = |dir: &PathBuf| join(dir, options, &ratios::fields(), Share::ALL);
        let days = self.logs.iter().map(join).collect::<Result<Vec<_>, _>>()?;
        let ads = ratios::write(&self.out, &days)?;
        say!("ratios of {ads} ads written to {}", self.out.display());
        Ok(Exit::Done)
    }
}
