//! One night, from the newest day to an entry in the history.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::evaluate::entry::Entry as Entrant;
use crate::evaluate::{self, DayReport, Judge, Kind, TestDay, verdict};
use crate::log::CompileOptions;
use crate::plan::Plan;
use crate::policy::file::PolicyFile;
use crate::policy::stored::{BaselineFile, Stored};
use crate::report::RunReport;
use crate::run::context::{compile_options, open_logs};
use crate::settings::{self, Settings};
use crate::study::jobs;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::prepare::Planning;
use crate::values::Told;

use super::check::{self, Checked};
use super::config::Job;
use super::days::{self, DayDir, Roles};
use super::history::{Entry, History, Outcome};
use super::judge::{self, CANDIDATE, Choice, INCUMBENT};

/// Taken where nothing can choose: on a single day every baseline would be judged on the day that it was tuned on.
const DEFAULT_BASELINE: &str = "receding-horizon";

/// Runs one night and returns its entry in the history.
///
/// # Errors
/// What keeps the night from being noted at all: the jobs' folder is in use or cannot be written. What fails after that is an
/// entry with [`Outcome::Failed`].
pub fn run(job: &Job, interrupt: &Interrupt) -> anyhow::Result<Entry> {
    let mut history = History::open(&job.jobs)?;
    note_killed(&mut history)?;
    let night = match Night::open(job, &history) {
        Ok(night) => night,
        Err(e) => return history.note(Entry::new(Outcome::Failed, format!("{e:#}"))),
    };
    let date = night.newest().date.to_string();
    let folder = history.root().join("nights").join(&date);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let marker = folder.join("running");
    std::fs::write(&marker, std::process::id().to_string())
        .with_context(|| format!("cannot write {}", marker.display()))?;
    let mut entry = match night.carry_out(&mut history, &folder, interrupt) {
        Ok(entry) => entry,
        Err(_) if interrupt.count() > 0 => {
            night.entry(Outcome::Interrupted, "the next start goes on with what was trained".to_owned())
        }
        Err(e) => night.entry(Outcome::Failed, format!("{e:#}")),
    };
    if entry.n == 0 {
        entry = history.note(entry)?;
    }
    // Last: a night that is killed before this is one that was.
    std::fs::remove_file(&marker).with_context(|| format!("cannot remove {}", marker.display()))?;
    if let Err(e) = history.prune(job.keep.policies).and_then(|()| prune_nights(&history, job.keep.nights)) {
        tracing::warn!("old nights and policies stay: {e:#}");
    }
    Ok(entry)
}

/// Notes the nights that came to no end.
fn note_killed(history: &mut History) -> anyhow::Result<()> {
    for folder in nights(history)? {
        let marker = folder.join("running");
        if marker.exists() {
            let mut entry = Entry::new(Outcome::Killed, "it was killed before it had come to an end");
            entry.night = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            history.note(entry)?;
            std::fs::remove_file(&marker).with_context(|| format!("cannot remove {}", marker.display()))?;
        }
    }
    Ok(())
}

/// The folders of nights, oldest first.
fn nights(history: &History) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(history.root().join("nights"))?.collect::<Result<Vec<_>, _>>()?;
    let mut folders: Vec<PathBuf> = entries.into_iter().map(|e| e.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

fn prune_nights(history: &History, keep: usize) -> anyhow::Result<()> {
    for folder in nights(history)?.iter().rev().skip(keep) {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Tonight's days and what was found of them.
struct Night<'a> {
    job: &'a Job,
    /// Oldest first; the last one is the newest day.
    checked: Vec<Checked>,
    options: CompileOptions,
}

impl<'a> Night<'a> {
    /// Finds and checks the newest days.
    fn open(job: &'a Job, history: &History) -> anyhow::Result<Self> {
        let all = days::find(&job.days.dir, &job.days.pattern)?;
        if all.is_empty() {
            bail!("no directory in {} is named like `days.pattern`, {}", job.days.dir.display(), job.days.pattern);
        }
        let options = compile_options(&load(job, &[], &[])?);
        // Days that are left out make room for older ones.
        let wanted = 2 * (job.days.train + job.days.validation + job.days.heldout);
        let newest = &all[all.len().saturating_sub(wanted)..];
        say!("checking {} days up to {}", newest.len(), newest[newest.len() - 1].date);
        let night = Self { job, checked: check::all(newest, job, options), options };
        let path = history.root().join("nights").join(night.newest().date.to_string()).join("check.json");
        std::fs::create_dir_all(path.parent().unwrap_or(history.root()))?;
        std::fs::write(&path, serde_json::to_vec_pretty(&night.checked)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        for found in &night.checked {
            for why in &found.suspect {
                say!("{} is suspect: {why}", found.date);
            }
        }
        for change in &night.found_newest().drift {
            say!("{} drifts: {change}", night.newest().date);
        }
        Ok(night)
    }

    fn found_newest(&self) -> &Checked {
        self.checked.last().expect("a night has a day")
    }

    fn newest(&self) -> &DayDir {
        &self.found_newest().day
    }

    fn valid(&self) -> Vec<DayDir> {
        self.checked.iter().filter(|c| c.is_valid()).map(|c| c.day.clone()).collect()
    }

    /// An entry that says what was found of the days.
    fn entry(&self, outcome: Outcome, reason: String) -> Entry {
        let mut entry = Entry::new(outcome, reason);
        entry.night = Some(self.newest().date.to_string());
        for found in &self.checked {
            entry.notes.extend(found.suspect.iter().map(|why| format!("{} left out: {why}", found.date)));
        }
        let drift = self.found_newest().drift.iter().map(|why| format!("{} drifts: {why}", self.newest().date));
        entry.notes.extend(drift);
        entry
    }

    fn carry_out(&self, history: &mut History, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Entry> {
        let newest = self.found_newest();
        if !newest.is_valid() {
            return Ok(self.entry(Outcome::DataSuspect, newest.suspect.join("; ")));
        }
        let valid = self.valid();
        let incumbent = history.incumbent().context("the promoted policy cannot be served; roll back")?;
        let roles = Roles::of(&valid, &self.job.days);
        match (roles, incumbent) {
            (Some(roles), Some(incumbent)) => self.train(history, folder, &roles, &incumbent, interrupt),
            (None, Some(Stored::Learned(_))) => {
                let n = valid.len();
                Ok(self.entry(Outcome::Kept, format!("{n} valid days are too few to train, validate and hold out")))
            }
            (roles, _) => self.promote_best_baseline(history, &valid, roles.is_some()),
        }
    }

    /// Where there is nothing to compare with: the best baseline is the floor that a learned policy has to be above.
    fn promote_best_baseline(&self, history: &mut History, valid: &[DayDir], enough: bool) -> anyhow::Result<Entry> {
        let most = self.job.days.train + self.job.days.validation;
        let recent = &valid[valid.len().saturating_sub(most)..];
        let settings = load(self.job, recent, recent)?;
        let plan = |days: &[DayDir]| self.plan(&settings, days);
        let why = if enough { "there is no incumbent" } else { "there are too few days to train" };
        let (name, reason) = match recent {
            [_] => (self.default_baseline(), format!("{why}; one day cannot choose between baselines")),
            [earlier @ .., newest] => {
                let report = self.replay(newest, &[], &plan(earlier)?, &self.job.promote.baselines(), &settings)?;
                let best = verdict::best_baseline(&[report]);
                let name = best.unwrap_or_else(|| self.default_baseline());
                (name, format!("{why}; the best on {}, planned and tuned on the days before", newest.date))
            }
            [] => bail!("no valid day"),
        };
        let file = BaselineFile::new(&name, settings.baselines.interval_s, plan(recent)?)?;
        let mut entry = self.entry(Outcome::Promoted, format!("the tuned best baseline, {name}: {reason}"));
        entry.policy = Some(name);
        entry.train = Roles::dates(recent);
        history.promote(entry, &file.encode()?)
    }

    /// The baseline that is taken where nothing can choose.
    fn default_baseline(&self) -> String {
        let allowed = self.job.promote.baselines();
        let preferred = allowed.iter().find(|name| *name == DEFAULT_BASELINE).or(allowed.first());
        preferred.cloned().unwrap_or_else(|| DEFAULT_BASELINE.to_owned())
    }

    fn plan(&self, settings: &Settings, days: &[DayDir]) -> anyhow::Result<Plan> {
        let dirs = Roles::dirs(days);
        let told = &Told::of(&settings.data)?;
        let logs = open_logs(&dirs, self.options, told)?;
        let Settings { env, baselines, policy, .. } = settings;
        let (options, validation) = (self.options, &[]);
        Planning { dirs: &dirs, logs, served: None, validation, options, told, env, baselines, policy }.plan()
    }

    fn replay(
        &self,
        day: &DayDir,
        entrants: &[Entrant],
        plan: &Plan,
        baselines: &[String],
        settings: &Settings,
    ) -> anyhow::Result<DayReport> {
        let told = Told::of(&settings.data)?;
        let test_day = TestDay::open(&day.dir, self.options, (&told, Judge::Logged), None)?;
        evaluate::compare(&test_day, entrants, Some(plan), baselines, settings, &mut |_, _| Ok(()))
    }

    /// Trains a candidate and rules between it, the incumbent and the best baseline.
    fn train(
        &self,
        history: &mut History,
        folder: &Path,
        roles: &Roles,
        incumbent: &Stored,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Entry> {
        let settings = load(self.job, &roles.train, &roles.validation)?;
        let from = match incumbent {
            Stored::Learned(_) => history.serves().map(|n| history.archived(n)),
            Stored::Baseline(_) => None,
        };
        let spec = format!("{}{from:?}", settings.to_toml());
        // The same night with another configuration is another run; with the same, it goes on.
        let run = folder.join(format!("run-{:08x}", twox_hash::XxHash3_64::oneshot(spec.as_bytes()) as u32));
        if !is_finished(&run) {
            self.train_candidate(roles, &run, from.as_deref(), interrupt)?;
        }
        let candidate = PolicyFile::read(&run).context("training left no policy")?;
        let report = RunReport::read(&run)?.context("training left no report")?;
        let allowed = self.job.promote.baselines();
        // Best first.
        let named =
            report.validation.policies.into_iter().find(|p| p.kind == Kind::Baseline && allowed.contains(&p.name));
        let baseline = named.map_or_else(|| self.default_baseline(), |p| p.name);
        let entrants = [
            Entrant::stored(CANDIDATE, Kind::Trained, Stored::Learned(candidate.clone())),
            Entrant::stored(INCUMBENT, Kind::Trained, incumbent.clone()),
        ];
        let mut reports = Vec::new();
        for day in &roles.heldout {
            say!("comparing on {}", day.date);
            let names = std::slice::from_ref(&baseline);
            reports.push(self.replay(day, &entrants, &candidate.plan, names, &settings)?);
            if interrupt.count() > 0 {
                bail!("interrupted");
            }
        }
        let ruling = judge::rule(&reports, &baseline, &self.job.promote);
        let mut entry = self.entry(Outcome::Kept, ruling.reason);
        entry.train = Roles::dates(&roles.train);
        entry.validation = Roles::dates(&roles.validation);
        entry.heldout = Roles::dates(&roles.heldout);
        entry.comparisons = ruling.comparisons;
        let (policy, bytes) = match ruling.choice {
            Choice::Keep => return Ok(entry),
            Choice::Candidate => ("learned".to_owned(), candidate.encode()?),
            Choice::Baseline => {
                let file = BaselineFile::new(&baseline, settings.baselines.interval_s, candidate.plan)?;
                entry.reason =
                    format!("the baseline {baseline} is better than incumbent and candidate: {}", entry.reason);
                (baseline, file.encode()?)
            }
        };
        entry.outcome = Outcome::Promoted;
        entry.policy = Some(policy);
        history.promote(entry, &bytes)
    }

    fn train_candidate(
        &self,
        roles: &Roles,
        run: &Path,
        from: Option<&Path>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let mut arguments: Vec<OsString> = vec!["train".into(), "--config".into(), self.job.config.clone().into()];
        for set in assigned(self.job, &roles.train, &roles.validation) {
            arguments.extend(["--set".into(), set.into()]);
        }
        arguments.extend(["--run-dir".into(), run.into(), "--resume=auto".into()]);
        if let Some(from) = from {
            arguments.extend(["--from".into(), from.into()]);
        }
        arguments.extend(["--parent".into(), std::process::id().to_string().into()]);
        say!("training on {}; progress: admix watch {}", Roles::dates(&roles.train).join(", "), run.display());
        let job = jobs::Job { name: "training".into(), arguments, log: run.with_extension("log") };
        let mut failure = None;
        jobs::run(&[job], 1, interrupt, &mut |ended| failure = ended.failure)?;
        if interrupt.count() > 0 {
            bail!("interrupted");
        }
        failure.map_or(Ok(()), |why| bail!("training failed: {why}"))
    }
}

/// Whether training in a run directory came to its end and was reported.
fn is_finished(run: &Path) -> bool {
    let text = std::fs::read(run.join("manifest.json")).unwrap_or_default();
    let manifest: Value = serde_json::from_slice(&text).unwrap_or_default();
    let reason = manifest["outcome"]["reason"].as_str();
    matches!(reason, Some("budget" | "converged")) && run.join("report.json").is_file()
}

/// The job's settings and tonight's days, as `--set` takes them.
fn assigned(job: &Job, train: &[DayDir], validation: &[DayDir]) -> Vec<String> {
    let list = |key: &str, days: &[DayDir]| {
        let dirs = Roles::dirs(days).into_iter().map(|dir| dir.canonicalize().unwrap_or(dir));
        let list = dirs.map(|dir| toml::Value::String(dir.to_string_lossy().into_owned())).collect();
        format!("data.{key}={}", toml::Value::Array(list))
    };
    let days = [list("train", train), list("validation", validation), "data.test=[]".to_owned()];
    job.set.iter().cloned().chain(days).collect()
}

fn load(job: &Job, train: &[DayDir], validation: &[DayDir]) -> anyhow::Result<Settings> {
    // Before the days are known, any will do: what is wanted are the other settings.
    let unknown = ["data.train=[\"-\"]".to_owned(), "data.validation=[\"-\"]".to_owned()];
    let sets = match train {
        [] => job.set.iter().cloned().chain(unknown).collect(),
        _ => assigned(job, train, validation),
    };
    settings::load(&job.config, &sets).with_context(|| "the job's configuration of training")
}
