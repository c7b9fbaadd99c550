//! `admix train`: from a configuration to a policy and the table that judges it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::evaluate::{DayReport, Decision, Entry, Judgement};
use crate::learner::Device;
use crate::plan::Plan;
use crate::policy::file::PolicyFile;
use crate::report::{self, RunReport, Validation};
use crate::run::context::Context;
use crate::run::{RunDirectory, flight};
use crate::settings::{self, Settings};
use crate::supervisor::children::bind_to_parent;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::manifest::Manifest;
use crate::supervisor::prepare::{Origin, prepare};
use crate::supervisor::resume::{self, Earlier};
use crate::supervisor::{ExitReason, Outcome, parallel, serial};

use super::{Exit, UsageError, eval, print_text};

#[derive(Debug, Args)]
pub struct Train {
    /// Configuration file (TOML); configs/ has examples
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Set a configuration key, for example --set learner.critic=scalar; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Take this plan, from `admix plan --out`, instead of planning from data.train
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Where everything of the run goes; a fresh directory. Default: runs/<config name>-<time>
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Seed of everything random; the same as --set run.seed=S
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Start every bid at the training days' price, the plan's, instead of at policy.initial_bid; =false starts cold. The
    /// same as --set policy.warm_start=..; without the flag the configuration decides
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    warm_start: Option<bool>,
    /// auto, cpu, cuda, cuda:INDEX or cpu-resident (a GPU's way of working on the CPU, for checking); the same as --set run.device=..
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Act, then train, in one process: the reference for the parallel run
    #[arg(long, conflicts_with = "deterministic")]
    serial: bool,
    /// Processes in lock-step: the same seed gives the same policy file on the CPU
    #[arg(long)]
    deterministic: bool,
    /// Go on with the run in --run-dir from its newest snapshot; =auto starts it if there is none yet
    #[arg(
        long,
        value_name = "auto",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "must",
        hide_possible_values = true,
        requires = "run_dir",
        conflicts_with_all = ["serial", "plan"]
    )]
    resume: Option<Resume>,
    /// Start from the parameters of a policy: a run directory or a policy file. Its network must have the shape that the
    /// configuration says; the critic starts anew
    #[arg(long, value_name = "POLICY")]
    from: Option<PathBuf>,
    /// End with exit code 12 unless the chosen policy is at least so on data.test, against the best baseline
    #[arg(long, value_name = "better|level", hide_possible_values = true)]
    require: Option<Required>,
    /// Print the evaluation of the test days as JSON, one object a line; the last one is the verdict
    #[arg(long)]
    json: bool,
    /// End when this process does; given by the commands that start runs of their own
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
}

/// The least that a verdict has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Required {
    Better,
    /// Level or better.
    Level,
}

/// How to treat a run directory that may hold a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resume {
    /// There must be one.
    Must,
    /// Whichever applies.
    Auto,
}

impl Train {
    pub fn run(self) -> anyhow::Result<Exit> {
        if let Some(parent) = self.parent {
            bind_to_parent(parent)?;
        }
        let mut sets = self.sets.clone();
        sets.extend(self.seed.map(|seed| format!("run.seed={seed}")));
        sets.extend(self.device.as_ref().map(|device| format!("run.device=\"{device}\"")));
        sets.extend(self.warm_start.map(|warm| format!("policy.warm_start={warm}")));
        if self.deterministic {
            sets.push("run.deterministic=true".into());
        }
        let settings: Settings = settings::load(&self.config, &sets)?;
        let device = Device::resolve(&settings.run.device).map_err(|e| UsageError(e.to_string()))?;
        if settings.run.deterministic && settings.budget.max_updates == 0 && settings.budget.max_samples == 0 {
            return Err(UsageError(
                "a lock-step run cannot end by wall time: set budget.max_updates or budget.max_samples".into(),
            )
            .into());
        }
        let plan = self.plan.as_deref().map(Plan::read).transpose().map_err(|e| UsageError(format!("{e:#}")))?;
        if self.require.is_some() && settings.data.test.is_empty() {
            return Err(
                UsageError("--require needs data.test: the verdict is about days that chose nothing".into()).into()
            );
        }
        let from = match &self.from {
            None => None,
            Some(path) => {
                let policy = PolicyFile::read(path).map_err(|e| UsageError(format!("--from: {e:#}")))?;
                Some(Origin { path: path.clone(), policy })
            }
        };
        let interrupt = Interrupt::listen()?;
        let mode = match (self.serial, settings.run.deterministic) {
            (true, _) => "serial",
            (false, true) => "lock-step",
            (false, false) => "parallel",
        };
        let root = self.run_directory();
        let fresh = !root.exists();
        let (directory, earlier) = match self.resume {
            None => (RunDirectory::create(&root)?, None),
            Some(how) => {
                let directory = resume::open(&root, how == Resume::Auto)?;
                let earlier = Earlier::find(&directory, &settings, mode)?;
                (directory, earlier)
            }
        };
        flight::begin(&directory.flight(), "main");
        say!("run directory {}", directory.root().display());
        if settings.run.device == "auto" && device == Device::Cpu {
            match Device::idle_gpu() {
                Some(missing) => say!("learning on the CPU, though there is a GPU: {missing}"),
                None => say!("no CUDA driver found: learning on the CPU"),
            }
        }
        let result = train(&settings, Given { plan, from }, earlier, device, mode, &directory, &interrupt);
        flight::end(&result);
        if interrupt.count() > 1 {
            return result.map(|_| Exit::Interrupted).or_else(|e| {
                say!("{e:#}");
                Ok(Exit::Interrupted)
            });
        }
        let (context, outcome) = match result {
            Err(e) if fresh && !directory.metrics().exists() => {
                remove_unused(directory);
                return Err(e);
            }
            result => result?,
        };
        say!("{}", summary(&outcome));
        if outcome.reason == ExitReason::Interrupted {
            say!("interrupted; the best policy so far is {}", directory.best().display());
            if outcome.checkpoints.is_some_and(|c| c.snapshots > 0) {
                say!("go on with the same command, --run-dir {} and --resume", directory.root().display());
            }
            return Ok(Exit::Interrupted);
        }
        let (report, reported) = report(&context, &directory)?;
        // A full disk must not make a finished run a failed one.
        if let Err(e) = report.write(&directory) {
            tracing::warn!("{e:#}");
        }
        if !reported.is_empty() {
            if !self.json {
                print_text("\nDays that were not trained on:\n\n")?;
            }
            eval::print_reports(&reported, report.judgement.as_slice(), self.json)?;
        }
        say!("policy: {}", directory.best().display());
        Ok(self.required(report.judgement.as_ref()))
    }

    /// How a run ends that is judged so.
    fn required(&self, judgement: Option<&Judgement>) -> Exit {
        let Some(required) = self.require else { return Exit::Done };
        let decision = judgement.map(|j| j.verdict.decision);
        let reached = match required {
            Required::Better => decision == Some(Decision::Better),
            Required::Level => matches!(decision, Some(Decision::Better | Decision::Level)),
        };
        if reached {
            return Exit::Done;
        }
        let stated = decision.map_or("none: nothing is at stake on the reported days".to_owned(), |d| format!("{d:?}"));
        say!("the verdict is {}, --require {required:?} is not reached", stated.to_lowercase());
        Exit::VerdictNotReached
    }

    fn run_directory(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| {
            let name = self.config.file_stem().map_or_else(|| "run".into(), |s| s.to_string_lossy().into_owned());
            let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
            PathBuf::from("runs").join(format!("{name}-{time}"))
        })
    }
}

/// Removes the directory of a run that did not come to train anything, which would only be in the way of the next start.
fn remove_unused(directory: RunDirectory) {
    let root = directory.root().to_owned();
    drop(directory);
    if let Err(e) = std::fs::remove_dir_all(&root) {
        tracing::warn!("{} holds nothing and cannot be removed: {e}", root.display());
    }
}

/// What a run need not make itself.
struct Given {
    plan: Option<Plan>,
    from: Option<Origin>,
}

fn train(
    settings: &Settings,
    given: Given,
    earlier: Option<Earlier>,
    device: Device,
    mode: &'static str,
    directory: &RunDirectory,
    interrupt: &Interrupt,
) -> anyhow::Result<(Context, Outcome)> {
    let starts = earlier.as_ref().map(Earlier::starts).unwrap_or_default();
    let context = match earlier {
        Some(earlier) => {
            say!("going on with the run that was begun here");
            if let Some(from) = &given.from {
                say!("--from {} is left aside: the run has its start already", from.path.display());
            }
            earlier.context.store_settings(directory)?;
            earlier.context
        }
        None => {
            if let Some(plan) = &given.plan {
                say!("the plan is given, made from {} days", plan.days.len());
            }
            let context = prepare(settings, given.plan, given.from.as_ref())?;
            context.store(directory)?;
            context
        }
    };
    let mut manifest = Manifest::begin(&context, mode, &device.to_string(), starts)?;
    manifest.write(directory)?;
    interrupt.supervise();
    let outcome = if mode == "serial" {
        serial::train(&context, directory, interrupt)
    } else {
        parallel::train(&context, directory, interrupt)
    };
    manifest.end(&outcome);
    // A full disk must not make a finished run a failed one.
    if let Err(e) = manifest.write(directory) {
        tracing::warn!("{e:#}");
    }
    Ok((context, outcome?))
}

/// Judges the run's policies: on the validation days, which name the best baseline, then on the test days.
fn report(context: &Context, directory: &RunDirectory) -> anyhow::Result<(RunReport, Vec<DayReport>)> {
    let policies = Entry::of_run(report::CHOSEN, directory.root()).context("training left no policy")?;
    let (settings, plan) = (&context.settings, Some(&context.plan));
    let view = eval::View { told: context.told.clone(), ..eval::View::default() };
    let on = |dirs: &[PathBuf]| eval::compare(dirs, &policies, plan, &eval::all_baselines(), settings, &view);
    let validation = Validation::of(&on(&settings.data.validation)?);
    let reported = on(&settings.data.test)?;
    let chosen = PolicyFile::read(directory.root())?.updates;
    Ok((RunReport::of(context, chosen, validation, &reported), reported))
}

fn summary(o: &Outcome) -> String {
    let reason = match o.reason {
        ExitReason::Budget => "budget spent",
        ExitReason::Converged => "converged",
        ExitReason::Interrupted => "interrupted",
    };
    let mut text = format!(
        "{reason} after {:.0} s: {} updates, {} samples, {} evaluations; best validation J {:.0}, share {:.2}\n\
         learner computed {:.0} % and waited {:.0} % of the time; policy lag in updates: mean {:.1}, p50 {}, \
         p95 {}, max {}",
        o.seconds,
        o.updates,
        o.samples,
        o.evaluations,
        o.best_j,
        100.0 * o.best_share,
        100.0 * o.learner_compute,
        100.0 * o.learner_wait,
        o.policy_lag.mean,
        o.policy_lag.p50,
        o.policy_lag.p95,
        o.policy_lag.max,
    );
    if let Some(ledger) = &o.ledger {
        text += &format!("\nsamples: {ledger}");
    }
    if let Some(c) = &o.checkpoints {
        text += &format!(
            "\nsnapshots: {} on disk, {:.1} MB in {:.1} s; the learner gave {:.2} % of its time",
            c.snapshots,
            c.bytes as f64 * 1e-6,
            c.write_s,
            100.0 * c.stall
        );
    }
    if o.actor_restarts + o.other_restarts > 0 {
        text += &format!("\nstarted again: actors {} times, others {}", o.actor_restarts, o.other_restarts);
    }
    if o.rolled_back > 0 {
        text += &format!("; {} samples were consumed by a learner that died", o.rolled_back);
    }
    text
}
