//! `admix eval`: whole days under policies and baselines, beside the bound.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::evaluate::decisions::DecisionWriter;
use crate::evaluate::{self, DayReport, Stress, TestDay, logged, table};
use crate::plan::Plan;
use crate::policy::baselines;
use crate::policy::file::PolicyFile;
use crate::run::context::compile_options;
use crate::settings::Settings;

use super::{Exit, UsageError, print_json, print_text};

#[derive(Debug, Args)]
pub struct Eval {
    /// Log directories to replay
    #[arg(long = "log", value_name = "DIR", required = true, num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Policies: run directories (their best policy) or policy files
    #[arg(long = "policy", value_name = "RUN_DIR|FILE", num_args = 1..)]
    policies: Vec<PathBuf>,
    /// Plan of the training days; default: the one stored with the first policy
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// `all`, `none`, or names: random, auction-only, contract-first, theta-lottery, shale, pass-rate, static-prices, pid, dual-descent-cold,
    /// dual-descent-warm, receding-horizon, and logged (what was really shown, where there is a joined_exposure)
    #[arg(long, value_name = "NAME,..", default_value = "all", value_delimiter = ',')]
    baselines: Vec<String>,
    /// Seconds until a policy observes a delivery
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    feedback_delay: f64,
    /// Seed of the rate draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    rate_seed: u64,
    /// Add to each queue the eligible contracts missing from it
    #[arg(long)]
    complete_queues: bool,
    /// Share of bad track rows above which a log is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    max_bad_share: f64,
    /// Alter the day first: prices=1.4@14 (from hour 14; @random), volume=0.75, demands=0.3, forecast=0.3,
    /// forecast-level=1.3, delay=600, flights=0.5, newcomers=0.2; several joined by `+`
    #[arg(long, value_name = "NAME=VALUE")]
    stress: Option<Stress>,
    /// Seed of what a stress draws
    #[arg(long, value_name = "S", default_value_t = 0, requires = "stress")]
    stress_seed: u64,
    /// Print one JSON object a line, one line per log
    #[arg(long)]
    json: bool,
    /// Write what each policy showed: DIR/<log name>/decisions.<policy>.tsv
    #[arg(long, value_name = "DIR")]
    decisions: Option<PathBuf>,
}

/// Every baseline's name.
pub fn all_baselines() -> Vec<String> {
    baselines::NAMES.into_iter().chain([logged::NAME]).map(String::from).collect()
}

impl Eval {
    pub fn run(self) -> anyhow::Result<Exit> {
        let names = match self.baselines.as_slice() {
            [one] if one == "all" => all_baselines(),
            [one] if one == "none" => Vec::new(),
            names => names.to_vec(),
        };
        let known = all_baselines();
        if let Some(unknown) = names.iter().find(|n| !known.contains(n)) {
            let known = known.join(", ");
            return Err(UsageError(format!("no baseline `{unknown}`; there are {known}")).into());
        }
        let policies = self
            .policies
            .iter()
            .map(|path| Ok((policy_name(path), PolicyFile::read(path).map_err(|e| UsageError(format!("{e:#}")))?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let plan = match &self.plan {
            Some(path) => Some(Plan::read(path).map_err(|e| UsageError(format!("{e:#}")))?),
            None => None,
        };
        let mut settings = Settings::default();
        settings.env.feedback_delay_s = self.feedback_delay;
        settings.env.rate_seed = self.rate_seed;
        settings.env.complete_queues = self.complete_queues;
        settings.data.max_bad_share = self.max_bad_share;
        let plan = plan.as_ref().or_else(|| policies.first().map(|(_, file)| &file.plan));
        let stress = self.stress.map(|stress| stress.seeded(self.stress_seed));
        let reports =
            compare(&self.logs, &policies, plan, &names, &settings, stress.as_ref(), self.decisions.as_deref())?;
        if self.json {
            for report in &reports {
                print_json(report)?;
            }
        } else {
            print_text(&table::render(&reports))?;
            if let Some(verdict) = table::verdict(&reports) {
                print_text(&format!("{verdict}\n"))?;
            }
        }
        Ok(Exit::Done)
    }
}

/// A policy is called after its run directory, or its file.
fn policy_name(path: &Path) -> String {
    let name = if path.is_dir() {
        path.canonicalize().unwrap_or_else(|_| path.into()).file_name().map(ToOwned::to_owned)
    } else {
        path.file_stem().map(ToOwned::to_owned)
    };
    name.map_or_else(|| "policy".to_owned(), |n| n.to_string_lossy().into_owned())
}

/// Replays policies and baselines on logs; see [`evaluate::compare`].
pub fn compare(
    logs: &[PathBuf],
    policies: &[(String, PolicyFile)],
    plan: Option<&Plan>,
    names: &[String],
    settings: &Settings,
    stress: Option<&Stress>,
    decisions: Option<&Path>,
) -> anyhow::Result<Vec<DayReport>> {
    let mut reports: Vec<DayReport> = Vec::new();
    for dir in logs {
        let day = TestDay::open(dir, compile_options(settings), stress)?;
        if decisions.is_some() && reports.iter().any(|r| r.log == day.log().name()) {
            let why = format!(
                "two logs are called `{}` and would share a decisions folder; rename a directory",
                day.log().name()
            );
            return Err(UsageError(why).into());
        }
        let mut writer = match decisions {
            Some(folder) => Some(DecisionWriter::create(folder, day.log().name())?),
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
