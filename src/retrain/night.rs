//! One night, from the newest day to an entry in the history.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use jiff::tz::TimeZone;

use crate::cancel;
use crate::env::Delay;
use crate::evaluate::ComparedPolicy;
use crate::evaluate::{self, DayReport, Kind, TestDay, verdict};
use crate::log::{CompileOptions, LogError};
use crate::plan::{Plan, Use};
use crate::policy::file::PolicyFile;
use crate::policy::stored::{BaselineFile, Stored};
use crate::report::RunReport;
use crate::run::context::{compile_options, open_logs};
use crate::settings::Settings;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::prepare::Planning;
use crate::values::{Told, store};

use super::check::{self, Checked};
use super::config::{Job, Keep, NO_VALUES};
use super::days::{self, DayDir};
use super::history::{History, HistoryEntry, Outcome};
use super::judge::{self, CANDIDATE, INCUMBENT, NextPolicy};
use super::roles::Roles;
use super::training;
use super::values::{self, NightValues};
use super::window::{self, Window};

/// Baseline used where nothing can be selected: on a single day every baseline would be judged on the day that it was tuned on.
const DEFAULT_BASELINE: &str = "receding-horizon";

/// Checks what a job's file names, before anything is written.
///
/// # Errors
/// A folder of days that is missing; a configuration of training that cannot be read or that a job cannot use.
pub fn ready(job: &Job) -> anyhow::Result<()> {
    let dir = &job.days.dir;
    ensure!(
        dir.is_dir(),
        "`days.dir`, {}, is not a directory: make it, or name the folder of the day directories",
        dir.display()
    );
    let settings = training::load(job, &[], &[], None)?;
    ensure!(settings.data.values.as_os_str().is_empty(), "`data.values` in {}: {NO_VALUES}", job.config.display());
    values::ready(job)
}

/// Runs one night and returns its entry in the history; with a `window`, a refresh on the newest windows of the days.
///
/// # Errors
/// A failure that keeps the night from being recorded at all: the jobs' folder is in use or cannot be written. Later failures
/// become an entry with [`Outcome::Failed`].
pub fn run(job: &Job, window: Option<Window>, interrupt: &Interrupt) -> anyhow::Result<HistoryEntry> {
    let mut history = History::open(&job.jobs)?;
    note_killed(&mut history)?;
    let night = match uncancelled(|| Night::open(job, window, &history)) {
        Ok(night) => night,
        Err(e) => {
            // Whole days are checked one by one; a window cannot be cut from an unreadable day.
            let unreadable = e.chain().any(|cause| cause.is::<LogError>());
            let outcome = match unreadable {
                _ if interrupt.count() > 0 => Outcome::Interrupted,
                true => Outcome::DataSuspect,
                false => Outcome::Failed,
            };
            let mut entry = HistoryEntry::new(outcome, format!("{e:#}"));
            entry.window = window.map(|window| window.to_string());
            return history.note(entry);
        }
    };
    let folder = night.folder(&history);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Holds the window of a refresh.
    let marker = folder.join("running");
    std::fs::write(&marker, window.map_or_else(String::new, |window| window.to_string()))
        .with_context(|| format!("cannot write {}", marker.display()))?;
    let mut entry = match uncancelled(|| night.carry_out(&mut history, &folder, interrupt)) {
        Ok(entry) => entry,
        Err(_) if interrupt.count() > 0 => {
            night.entry(Outcome::Interrupted, "the next start goes on with what was trained".to_owned())
        }
        Err(e) => night.entry(Outcome::Failed, format!("{e:#}")),
    };
    if entry.n == 0 {
        entry = history.note(entry)?;
    }
    // Last: a night that is killed before this is recorded as killed.
    std::fs::remove_file(&marker).with_context(|| format!("cannot remove {}", marker.display()))?;
    prune(&history, &job.keep);
    history.settled()?;
    Ok(entry)
}

/// Does work whose cancellation is an error.
fn uncancelled<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    cancel::catch(work).unwrap_or_else(|cancelled| Err(cancelled.into()))
}

/// Records the nights that were killed.
fn note_killed(history: &mut History) -> anyhow::Result<()> {
    for folder in nights(history)? {
        let marker = folder.join("running");
        if marker.exists() {
            let mut entry = HistoryEntry::new(Outcome::Killed, "it was killed before it had come to an end");
            entry.night = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            let window = std::fs::read_to_string(&marker).unwrap_or_default();
            entry.window = (!window.is_empty()).then_some(window);
            history.note(entry)?;
            std::fs::remove_file(&marker).with_context(|| format!("cannot remove {}", marker.display()))?;
        }
    }
    Ok(())
}

/// Returns the folders of nights, oldest first.
fn nights(history: &History) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(history.root().join("nights"))?.collect::<Result<Vec<_>, _>>()?;
    let mut folders: Vec<PathBuf> = entries.into_iter().map(|e| e.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

/// Removes what is not to be kept. What cannot be removed stays, with a warning, and does not keep the rest.
fn prune(history: &History, keep: &Keep) {
    for (what, pruned) in [
        ("policies", history.prune(keep.policies)),
        ("value models", values::prune(history)),
        ("nights", prune_nights(history, keep.nights)),
    ] {
        if let Err(e) = pruned {
            tracing::warn!("old {what} stay: {e:#}");
        }
    }
}

/// Keeps the newest `keep` nights and the newest `keep` refreshes.
fn prune_nights(history: &History, keep: usize) -> anyhow::Result<()> {
    let is_refresh = |folder: &PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().contains('T'));
    let (refreshes, whole): (Vec<PathBuf>, Vec<PathBuf>) = nights(history)?.into_iter().partition(is_refresh);
    for folder in refreshes.iter().rev().skip(keep).chain(whole.iter().rev().skip(keep)) {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// The days of this night and the results of their check.
struct Night<'a> {
    job: &'a Job,
    /// Results of the check, oldest first; the last one is the newest day.
    checked: Vec<Checked>,
    options: CompileOptions,
    /// Window length of a refresh.
    window: Option<Window>,
    /// A day that has not ended, behind the newest one of a night.
    under_way: Option<DayDir>,
    /// Entry of an earlier night that had the same newest day.
    earlier: Option<u64>,
}

impl<'a> Night<'a> {
    /// Finds and checks the newest days.
    fn open(job: &'a Job, window: Option<Window>, history: &History) -> anyhow::Result<Self> {
        let mut all = days::find(&job.days.dir, &job.days.pattern)?;
        if all.is_empty() {
            bail!("no directory in {} is named like `days.pattern`, {}", job.days.dir.display(), job.days.pattern);
        }
        let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        // Complete windows of it can be used, the whole of it cannot.
        let under_way = if window.is_none() { days::take_under_way(&mut all, now_ms) } else { None };
        if all.is_empty() {
            bail!("the only day in {} has not ended; start the job when it has", job.days.dir.display());
        }
        let settings = training::load(job, &[], &[], None)?;
        let options = compile_options(&settings);
        let wanted = job.days.train + job.days.validation + job.days.heldout;
        let newest = match window {
            // Twice as many as needed, so that older days can replace days that are left out.
            None => all[all.len().saturating_sub(2 * wanted)..].to_vec(),
            Some(window) => {
                let incumbent = history.incumbent().context("the promoted policy cannot be served; roll back")?;
                let incumbent =
                    incumbent.context("nothing is served yet; run `admix retrain` without --window first")?;
                let folder = history.root().join("windows");
                window::newest(window, &all, wanted, &incumbent.plan().forecast, &folder, options)?
            }
        };
        let unit = unit(window);
        say!("checking {} {unit}s up to {}", newest.len(), newest[newest.len() - 1].label());
        let checked = check::all(&newest, job, options, settings.env.feedback_delay_s);
        let mut night = Self { job, checked, options, window, under_way, earlier: None };
        night.earlier = night.find_earlier(history);
        if let Some(note) = night.repetition() {
            tracing::warn!("{note}");
        }
        if let Some(note) = night.not_ended() {
            say!("{note}");
        }
        let path = night.folder(history).join("check.json");
        std::fs::create_dir_all(path.parent().unwrap_or(history.root()))?;
        std::fs::write(&path, serde_json::to_vec_pretty(&night.checked)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        for found in &night.checked {
            for why in &found.suspect {
                say!("{} is suspect: {why}", found.label);
            }
        }
        for change in &night.found_newest().drift {
            say!("{} drifts: {change}", night.newest().label());
        }
        Ok(night)
    }

    /// Returns the folder of the night.
    fn folder(&self, history: &History) -> PathBuf {
        history.root().join("nights").join(self.newest().label())
    }

    /// Returns the entry of the last night that came to an end with the same newest day.
    fn find_earlier(&self, history: &History) -> Option<u64> {
        let (label, window) = (self.newest().label(), self.window.map(|window| window.to_string()));
        let same = |e: &&HistoryEntry| {
            matches!(e.outcome, Outcome::Promoted | Outcome::Kept)
                && e.night.as_ref() == Some(&label)
                && e.window == window
        };
        history.entries().iter().rev().find(same).map(|e| e.n)
    }

    /// Says that no new day has arrived since an earlier night.
    fn repetition(&self) -> Option<String> {
        let (n, unit) = (self.earlier?, unit(self.window));
        Some(format!("NO NEW {} since entry {n}: {} is still the newest", unit.to_uppercase(), self.newest().label()))
    }

    /// Says that a newer day was left out.
    fn not_ended(&self) -> Option<String> {
        let day = self.under_way.as_ref()?;
        Some(format!("{} left out: the day has not ended", day.label()))
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

    /// Builds an entry with the findings about the days.
    fn entry(&self, outcome: Outcome, reason: String) -> HistoryEntry {
        let mut entry = HistoryEntry::new(outcome, reason);
        entry.night = Some(self.newest().label());
        entry.window = self.window.map(|window| window.to_string());
        entry.notes.extend(self.repetition());
        entry.notes.extend(self.not_ended());
        for found in &self.checked {
            entry.notes.extend(found.suspect.iter().map(|why| format!("{} left out: {why}", found.label)));
        }
        let drift = self.found_newest().drift.iter().map(|why| format!("{} drifts: {why}", self.newest().label()));
        entry.notes.extend(drift);
        entry
    }

    fn carry_out(&self, history: &mut History, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<HistoryEntry> {
        let newest = self.found_newest();
        let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
        if let Some(why) = days::stale(newest.day.date, today, self.job.days.max_age_days) {
            return Ok(self.entry(Outcome::DataSuspect, why));
        }
        if !newest.is_valid() {
            return Ok(self.entry(Outcome::DataSuspect, newest.suspect.join("; ")));
        }
        let valid = self.valid();
        let incumbent = history.incumbent().context("the promoted policy cannot be served; roll back")?;
        let roles = Roles::of(&valid, &self.job.days);
        match (roles, incumbent) {
            (Some(roles), Some(incumbent)) => self.train(history, folder, &roles, &incumbent, interrupt),
            (None, incumbent) if self.window.is_some() || matches!(incumbent, Some(Stored::Learned(_))) => {
                let (n, unit) = (valid.len(), unit(self.window));
                Ok(self.entry(Outcome::Kept, format!("{n} valid {unit}s are too few to train, validate and hold out")))
            }
            (roles, _) => self.promote_best_baseline(history, &valid, roles.is_some()),
        }
    }

    /// Promotes the best baseline where there is no policy to compare with: a learned policy must later exceed it.
    fn promote_best_baseline(
        &self,
        history: &mut History,
        valid: &[DayDir],
        enough: bool,
    ) -> anyhow::Result<HistoryEntry> {
        let most = self.job.days.train + self.job.days.validation;
        let recent = &valid[valid.len().saturating_sub(most)..];
        let settings = training::load(self.job, recent, recent, None)?;
        let plan = |train: &[DayDir], validation: &[DayDir]| self.plan(&settings, train, validation);
        let why = if enough { "there is no incumbent" } else { "there are too few days to train" };
        let (name, reason) = match recent {
            [_] => (self.default_baseline(), format!("{why}; one day cannot choose between baselines")),
            [earlier @ .., newest] => {
                // Judged like a trained policy's rivals: tuned on validation days, where there are several days.
                let validation = match earlier.len() {
                    1 => 0,
                    n => (n / 4).clamp(1, self.job.days.validation),
                };
                let (train, validation) = earlier.split_at(earlier.len() - validation);
                let plan = plan(train, validation)?;
                let values = NightValues::all_at(Told::Logged, Told::Logged);
                let known = (&plan, &*self.job.promote.baselines(Delay::from(&settings.env)));
                let report = self.replay(newest, &[], known, &values, &settings)?;
                let best = verdict::best_baseline(&[report]);
                let name = best.unwrap_or_else(|| self.default_baseline());
                (name, format!("{why}; the best on {}, planned and tuned on the days before", newest.label()))
            }
            [] => bail!("no valid day"),
        };
        // The served plan knows every day. None is left for validation: each day is judged with a plan from the others.
        let bytes = BaselineFile::new(&name, plan(recent, &[])?)?.encode()?;
        let again = why_not_again(history, &bytes);
        let why = again.as_ref().unwrap_or(&reason);
        let mut entry = self.entry(Outcome::Kept, format!("the tuned best baseline, {name}: {why}"));
        entry.train = Roles::labels(recent);
        if again.is_some() {
            return Ok(entry);
        }
        entry.outcome = Outcome::Promoted;
        entry.policy = Some(name);
        cancel::point();
        history.promote(entry, &bytes)
    }

    /// Returns the baseline that is used where nothing can be selected.
    fn default_baseline(&self) -> String {
        let allowed = self.job.promote.baselines(Delay::fixed(0.0));
        let preferred = allowed.iter().find(|name| *name == DEFAULT_BASELINE).or(allowed.first());
        preferred.cloned().unwrap_or_else(|| DEFAULT_BASELINE.to_owned())
    }

    fn plan(&self, settings: &Settings, train: &[DayDir], validation: &[DayDir]) -> anyhow::Result<Plan> {
        let (dirs, validation) = (Roles::dirs(train), Roles::dirs(validation));
        let told = &Told::of(&settings.data)?;
        let logs = open_logs(&dirs, self.options, told)?;
        let Settings { env, episodes, baselines, policy, .. } = settings;
        let (options, per_step) = (self.options, settings.requests_per_step());
        let (dirs, validation, served) = (&dirs, &validation, None);
        Planning { dirs, logs, served, validation, options, told, env, episodes, per_step, baselines, policy }.plan()
    }

    /// Replays baselines and policies on a day at the night's values, and the incumbent at those that it is served at.
    fn replay(
        &self,
        day: &DayDir,
        entrants: &[ComparedPolicy],
        (plan, baselines): (&Plan, &[String]),
        values: &NightValues,
        settings: &Settings,
    ) -> anyhow::Result<DayReport> {
        let compare = |told: &Told, entrants: &[ComparedPolicy], baselines: &[String]| {
            let test_day = TestDay::open(&day.dir, self.options, (told, &values.told), None)?;
            evaluate::compare(&test_day, entrants, Some(plan), baselines, settings, &mut |_, _| Ok(()))
        };
        if values.incumbent.is_same(&values.told) {
            return compare(&values.told, entrants, baselines);
        }
        let (incumbent, others): (Vec<_>, Vec<_>) = entrants.iter().cloned().partition(|e| e.name == INCUMBENT);
        let mut report = compare(&values.told, &others, baselines)?;
        let served = compare(&values.incumbent, &incumbent, &[])?;
        report.policies.extend(served.policies.into_iter().filter(|row| row.name == INCUMBENT));
        report.seen.extend(served.seen);
        Ok(report)
    }

    /// Returns the values of the night. A refresh keeps those of the incumbent: windows are too short to learn values from.
    fn values(
        &self,
        history: &History,
        folder: &Path,
        roles: &Roles,
        incumbent: &Stored,
        interrupt: &Interrupt,
    ) -> anyhow::Result<NightValues> {
        let served = values::of_incumbent(history, incumbent)?;
        if self.window.is_some() {
            return Ok(NightValues::all_at(served.clone(), served));
        }
        if self.job.values.train.as_os_str().is_empty() {
            return Ok(NightValues::all_at(Told::Logged, served));
        }
        values::of_night(self.job, folder, roles, served, self.options, interrupt)
    }

    /// Trains a candidate and decides between it, the incumbent and the best baseline.
    fn train(
        &self,
        history: &mut History,
        folder: &Path,
        roles: &Roles,
        incumbent: &Stored,
        interrupt: &Interrupt,
    ) -> anyhow::Result<HistoryEntry> {
        let values = self.values(history, folder, roles, incumbent, interrupt)?;
        let model = match &values.told {
            Told::Model(model) => Some(model.folder.as_path()),
            Told::Logged | Told::Table(_) => None,
        };
        let settings = training::load(self.job, &roles.train, &roles.validation, model)?;
        let from = match incumbent {
            Stored::Learned(_) => history.serves().map(|n| history.archived(n)),
            Stored::Baseline(_) => None,
        };
        let run = training::directory(folder, "run", &format!("{}{from:?}", settings.to_toml()));
        if !training::is_finished(&run) {
            // Windows do not represent the whole day: only the network is refreshed, under the served plan.
            let plan = self.window.map(|_| folder.join("plan.json"));
            if let Some(plan) = &plan {
                incumbent.plan().write(plan)?;
            }
            training::policy(self.job, roles, &run, (from.as_deref(), plan.as_deref()), model, interrupt)?;
        }
        let candidate = PolicyFile::read(&run).context("training left no policy")?;
        let report = RunReport::read(&run)?.context("training left no report")?;
        let allowed = self.job.promote.baselines(Delay::from(&settings.env));
        // Sorted best first.
        let named =
            report.validation.policies.into_iter().find(|p| p.kind == Kind::Baseline && allowed.contains(&p.name));
        let baseline = named.map_or_else(|| self.default_baseline(), |p| p.name);
        let entrants = [
            ComparedPolicy::stored(CANDIDATE, Kind::Trained, Stored::Learned(candidate.clone())),
            ComparedPolicy::stored(INCUMBENT, Kind::Trained, incumbent.clone()),
        ];
        let mut reports = Vec::new();
        for day in &roles.heldout {
            say!("comparing on {}", day.label());
            let names = std::slice::from_ref(&baseline);
            reports.push(self.replay(day, &entrants, (&candidate.plan, names), &values, &settings)?);
        }
        let ruling = judge::rule(&reports, &baseline, &self.job.promote, unit(self.window));
        let mut entry = self.entry(Outcome::Kept, ruling.reason);
        entry.train = Roles::labels(&roles.train);
        entry.validation = Roles::labels(&roles.validation);
        entry.heldout = Roles::labels(&roles.heldout);
        entry.comparisons = ruling.comparisons;
        entry.values = values.comparison;
        entry.notes.extend(values.note);
        for day in &reports {
            entry.notes.extend(day.seen.iter().map(|seen| {
                let what = match seen.used {
                    Use::Train => "trained or planned on it",
                    Use::Validation => "was chosen or tuned on it",
                };
                format!("held-out {}: {} {what}, which favours it", day.log, seen.policy)
            }));
        }
        let (policy, bytes) = match ruling.next {
            NextPolicy::Keep => return Ok(entry),
            NextPolicy::Candidate => ("learned".to_owned(), candidate.encode()?),
            NextPolicy::Baseline => {
                let file = BaselineFile::new(&baseline, candidate.plan)?;
                entry.reason =
                    format!("the baseline {baseline} is better than incumbent and candidate: {}", entry.reason);
                (baseline, file.encode()?)
            }
        };
        if let Some(why) = why_not_again(history, &bytes) {
            entry.reason = why;
            return Ok(entry);
        }
        cancel::point();
        if let Told::Model(model) = &values.told {
            store::put(model, history.root())?;
        }
        entry.outcome = Outcome::Promoted;
        entry.policy = Some(policy);
        history.promote(entry, &bytes)
    }
}

/// Returns why a repeated night does not promote a policy with these bytes once more, if it does not.
fn why_not_again(history: &History, bytes: &[u8]) -> Option<String> {
    if let Some(n) = history.serves()
        && std::fs::read(history.archived(n)).is_ok_and(|archived| archived == bytes)
    {
        return Some(format!("it is policy {n}, which is served already"));
    }
    let n = history.withdrawn(bytes)?;
    Some(format!("it is policy {n} again, which was replaced by hand; `admix promote --to {n}` serves it"))
}

/// Returns the name of the unit of a job's data.
fn unit(window: Option<Window>) -> &'static str {
    if window.is_some() { "window" } else { "day" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry of a killed refresh did not say that it was one.
    #[test]
    fn a_killed_refresh_is_recorded_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        for (night, window) in [("2026-01-05", ""), ("2026-01-06T0800", "2h")] {
            let night = folder.path().join("nights").join(night);
            std::fs::create_dir_all(&night).unwrap();
            std::fs::write(night.join("running"), window).unwrap();
        }
        note_killed(&mut history).unwrap();
        let windows: Vec<_> = history.entries().iter().map(|entry| entry.window.as_deref()).collect();
        assert_eq!(windows, [None, Some("2h")]);
        assert!(history.entries().iter().all(|entry| entry.outcome == Outcome::Killed));
    }

    /// One archived policy that could not be read kept all old nights, and the disk filled up.
    #[test]
    fn a_damaged_archive_keeps_value_models_and_no_old_nights() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        let policy = BaselineFile::new("contract-first", Plan::empty()).unwrap().encode().unwrap();
        for bytes in [&policy[..policy.len() / 2], &policy] {
            history.promote(HistoryEntry::new(Outcome::Promoted, "a test"), bytes).unwrap();
        }
        for name in ["nights/2026-01-05", "nights/2026-01-06", "nights/2026-01-07", "values/model"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let left = || {
            let nights = nights(&history).unwrap();
            let names: Vec<_> = nights.iter().map(|night| night.file_name().unwrap().to_owned()).collect();
            (names, folder.path().join("values/model").exists())
        };
        let keep = Keep { nights: 2, policies: 10 };
        prune(&history, &keep);
        assert_eq!(left(), (vec!["2026-01-06".into(), "2026-01-07".into()], true));
        std::fs::remove_file(history.archived(1)).unwrap();
        prune(&history, &keep);
        assert!(!left().1, "no policy was made at it");
    }
}
