//! `admix eval`: replays whole days under policies and baselines and compares them with the bound.

use std::collections::HashSet;
use std::path::PathBuf;

use clap::Args;

use crate::evaluate::compared::{self, ComparedPolicy};
use crate::evaluate::decisions::DecisionWriter;
use crate::evaluate::stress::PARTS;
use crate::evaluate::{self, DayReport, Judgement, Kind, Stress, TestDay, logged, table, verdict};
use crate::plan::Plan;
use crate::policy::baselines;
use crate::policy::informed;
use crate::report::RunReport;
use crate::run::context::compile_options;
use crate::settings::Settings;
use crate::values::{Table, Told};

use super::exit::{Exit, UsageError};
use super::numbers::share;
use super::output::{print_json, print_text};
use super::replayed::Replayed;
use super::told::{ToldArguments, warn_of_delay, warn_of_logged};

#[derive(Debug, Args)]
#[command(
    after_help = "Above the table stands what its reader has to know first: days that a policy was trained or chosen on, and days that are partly \
                  new to it.\n\n\
                  Example: admix eval --log day-4 day-5 --policy runs/default-20261120-030000 \\\n    --baselines pid,receding-horizon"
)]
pub struct Eval {
    /// Log directories to replay
    #[arg(long = "log", value_name = "DIR", required = true, num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Policies: run directories (the best policy, and beside it the ones at the start and at the end of the run, and the same
    /// policy without a network) or policy files
    #[arg(long = "policy", value_name = "RUN_DIR|FILE", num_args = 1..)]
    policies: Vec<PathBuf>,
    /// Plan of the training days; default: the one stored with the first policy
    #[arg(long, value_name = "RUN_DIR|FILE")]
    plan: Option<PathBuf>,
    #[arg(long, value_name = "NAME,..", default_value = "all", value_delimiter = ',', help = baselines_help())]
    baselines: Vec<String>,
    /// Also replay the reference that knows the process of a synthetic world; the log must lie beside its world.toml
    #[arg(long)]
    informed: bool,
    #[command(flatten)]
    replayed: Replayed,
    /// Share of bad track rows above which a log is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
    #[arg(long, value_name = "NAME=VALUE", help = format!("Alter the day first: {PARTS}; several joined by `+`"))]
    stress: Option<Stress>,
    /// Seed of the stress's random draws
    #[arg(long, value_name = "S", default_value_t = 0, requires = "stress")]
    stress_seed: u64,
    #[command(flatten)]
    told: ToldArguments,
    /// Count J, S, bound and shares with the truth of a synthetic world instead of the logged values
    #[arg(long)]
    truth: bool,
    /// Print one JSON object per line, one line per log
    #[arg(long)]
    json: bool,
    /// Write what each policy showed: DIR/<log name>/decisions.<policy>.tsv
    #[arg(long, value_name = "DIR")]
    decisions: Option<PathBuf>,
}

fn baselines_help() -> String {
    format!(
        "`all`, `none`, or names: {}, and {} (what was really shown, where there is a joined_exposure). With a feedback delay also {}, which \
         count what they have shown as delivered",
        baselines::NAMES.join(", "),
        logged::NAME,
        baselines::predictors().join(", ")
    )
}

/// Returns the names of all baselines; where deliveries are observed late, also of those that predict them, as learned policies do.
pub fn all_baselines(delayed: bool) -> Vec<String> {
    let usual = baselines::NAMES.into_iter().chain([logged::NAME]).map(String::from);
    usual.chain(delayed.then(baselines::predictors).into_iter().flatten()).collect()
}

impl Eval {
    pub fn run(self) -> anyhow::Result<Exit> {
        let stress = self.stress.map(|stress| stress.seeded(self.stress_seed));
        let delay = stress.as_ref().and_then(Stress::feedback_delay_s).unwrap_or(self.replayed.feedback_delay);
        let mut names = match self.baselines.as_slice() {
            [one] if one == "all" => all_baselines(delay > 0.0),
            [one] if one == "none" => Vec::new(),
            names => names.to_vec(),
        };
        let known: Vec<String> = baselines::known().into_iter().chain([logged::NAME.to_owned()]).collect();
        if let Some(unknown) = names.iter().find(|n| !known.contains(n)) {
            let known = known.join(", ");
            return Err(UsageError(format!("no baseline `{unknown}`; there are {known}")).into());
        }
        if self.informed {
            names.push(informed::NAME.to_owned());
        }
        let usage = |e: anyhow::Error| UsageError(format!("{e:#}"));
        let mut policies: Vec<ComparedPolicy> = Vec::new();
        let chosen = compared::names_of(&self.policies);
        for (name, path) in chosen.iter().zip(&self.policies) {
            policies.extend(ComparedPolicy::read(name, path).map_err(usage)?);
        }
        let plan = match &self.plan {
            Some(path) => Some(Plan::read(path).map_err(|e| UsageError(format!("{e:#}")))?),
            None => None,
        };
        let mut settings = self.replayed.settings();
        settings.data.max_bad_share = self.max_bad_share;
        let plan = plan.as_ref().or_else(|| policies.first().map(|first| first.policy.plan()));
        let told = self.told.resolve(&settings.data)?;
        for entry in policies.iter().filter(|entry| matches!(entry.kind, Kind::Trained | Kind::Baseline)) {
            warn_of_logged(&entry.name, entry.policy.plan(), &told);
            if !entry.policy.predicts() {
                warn_of_delay(&entry.name, entry.policy.plan(), delay);
            }
        }
        let judge = if self.truth { Told::Table(Table::Truth) } else { Told::Logged };
        let view = View { judge, told, stress, decisions: self.decisions };
        let reports = compare(&self.logs, &policies, plan, &names, &settings, &view)?;
        let mut judgements = Vec::new();
        for (name, path) in chosen.iter().zip(&self.policies) {
            let best = RunReport::read(path)?.and_then(|report| report.validation.best_baseline);
            judgements.extend(verdict::judge(&reports, name, best.as_deref()));
        }
        print_reports(&reports, &judgements, self.json)?;
        Ok(Exit::Done)
    }
}

/// Prints days and verdicts: a table and sentences, or one JSON object per line.
pub fn print_reports(days: &[DayReport], judgements: &[Judgement], json: bool) -> anyhow::Result<()> {
    if json {
        days.iter().try_for_each(print_json)?;
        return judgements.iter().try_for_each(print_json);
    }
    print_text(&table::render(days))?;
    judgements.iter().try_for_each(|judgement| print_text(&format!("\n{}", judgement.sentences())))
}

/// Values and alterations under which days are evaluated.
#[derive(Debug, Default)]
pub struct View {
    pub told: Told,
    pub judge: Told,
    pub stress: Option<Stress>,
    /// Folder for decisions, if they are written.
    pub decisions: Option<PathBuf>,
}

/// Replays policies and baselines on logs; see [`evaluate::compare`].
pub fn compare(
    logs: &[PathBuf],
    policies: &[ComparedPolicy],
    plan: Option<&Plan>,
    names: &[String],
    settings: &Settings,
    view: &View,
) -> anyhow::Result<Vec<DayReport>> {
    let decisions = view.decisions.as_deref();
    // Copies of a day may differ in their contracts, and are compared; the same directory says nothing new.
    let mut seen = HashSet::new();
    let mut reports: Vec<DayReport> = Vec::new();
    for dir in logs {
        if !seen.insert(dir.canonicalize().unwrap_or_else(|_| dir.clone())) {
            let why = "counted twice, a day makes figures look surer than they are: name it once";
            return Err(UsageError(format!("{} stands in --log twice; {why}", dir.display())).into());
        }
        let day = TestDay::open(dir, compile_options(settings), (&view.told, &view.judge), view.stress.as_ref())?;
        if decisions.is_some() && reports.iter().any(|r| r.log == day.log().name()) {
            let why = format!(
                "two logs are called `{}` and would share a decisions folder; rename a directory",
                day.log().name()
            );
            return Err(UsageError(why).into());
        }
        let mut writer = match decisions {
            Some(folder) => Some(DecisionWriter::create(folder, day.log().name(), day.log().day().start_ms)?),
            None => None,
        };
        let mut watch = |name: &str, shown| match &mut writer {
            Some(writer) => writer.write(name, shown),
            None => Ok(()),
        };
        reports.push(evaluate::compare(&day, policies, plan, names, settings, &mut watch)?);
        if let Some(writer) = writer {
            writer.finish()?;
        }
    }
    Ok(reports)
}
