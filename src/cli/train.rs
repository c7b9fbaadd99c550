//! `admix train`: trains a policy from a configuration and prints the table that judges it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};

use crate::cancel;
use crate::env::Delay;
use crate::evaluate::{ComparedPolicy, DayReport, Decision, Judgement, familiar};
use crate::learner::Device;
use crate::nodes::{self, Job, Node};
use crate::plan::Plan;
use crate::policy::file::PolicyFile;
use crate::report::{self, RunReport, Validation};
use crate::run::context::Context;
use crate::run::{RunDirectory, flight};
use crate::settings::{self, Settings};
use crate::supervisor::children::bind_to_parent;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::job::{self, Common};
use crate::supervisor::manifest::PolicyManifest;
use crate::supervisor::prepare::{Origin, prepare};
use crate::supervisor::resume::{self, Earlier};
use crate::supervisor::{ExitReason, Outcome, RunFailure, parallel, serial, together};
use crate::values::Told;

use super::device::{self, ChosenDevice};
use super::eval;
use super::exit::{Exit, UsageError};
use super::node;
use super::output::print_text;

#[derive(Debug, Args)]
#[command(
    after_help = "Days: data.train is learned from, data.validation chooses the best parameters, data.test is reported at the end. A day that \
                  stands in two of them is refused.\n\
                  Ctrl-C saves; --resume goes on. docs/tuning.md says which keys matter.\n\
                  Several learners, and several machines under mpirun: docs/ranks.md.\n\n\
                  Examples:\n  \
                  admix train --config configs/quickstart.toml\n  \
                  admix train --config configs/default.toml --set 'data.train=[\"day-0\", \"day-1\"]' \\\n      --set 'data.validation=[\"day-2\"]'"
)]
pub struct Train {
    /// Configuration file (TOML); configs/ has examples
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Set a configuration key, for example --set learner.critic=scalar; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Use this plan, from `admix plan --out`, instead of planning from data.train
    #[arg(long, value_name = "RUN_DIR|FILE")]
    plan: Option<PathBuf>,
    /// Directory of the run; new or empty, except with --resume. Default: runs/<config name>-<time>
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Seed of everything random; the same as --set run.seed=S
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Start every bid at the plan's price of the training days instead of at policy.initial_bid; =false starts cold. The same
    /// as --set policy.warm_start=..; without the flag the configuration decides
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    warm_start: Option<bool>,
    /// auto, cpu, cuda or cuda:INDEX; the same as --set run.device=..
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Act, then train, in one process: the reference for the parallel run
    #[arg(long, conflicts_with = "deterministic")]
    serial: bool,
    /// Processes in lock-step: the same seed gives the same policy file on the CPU
    #[arg(long)]
    deterministic: bool,
    /// Resume the run in --run-dir from its newest snapshot; =auto starts it if there is none yet; =restart begins it again,
    /// with its best policy as the one to beat (with --deterministic, that policy is set aside)
    #[arg(
        long,
        value_name = "auto|restart",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "must",
        hide_possible_values = true,
        requires = "run_dir",
        conflicts_with_all = ["serial", "plan"]
    )]
    resume: Option<Resume>,
    /// Start from the parameters of a policy: a run directory or a policy file. Its network must have the configured shape; the
    /// critic starts anew
    #[arg(long, value_name = "POLICY")]
    from: Option<PathBuf>,
    /// End with exit code 12 unless the verdict on data.test against the best baseline is at least this
    #[arg(long, value_name = "better|level", hide_possible_values = true)]
    require: Option<Required>,
    /// Print the evaluation of the test days as JSON, one object per line; the last one is the verdict
    #[arg(long)]
    json: bool,
    /// End when this process does; set by the commands that start runs
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
}

/// Minimum verdict for success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Required {
    Better,
    /// Level or better.
    Level,
}

/// Treatment of a run directory that may hold a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resume {
    /// Resume; there must be a run.
    Must,
    /// Resume or start, whichever applies.
    Auto,
    /// Start from the beginning.
    Restart,
}

impl From<Resume> for resume::Resume {
    fn from(how: Resume) -> Self {
        match how {
            Resume::Must => Self::Must,
            Resume::Auto => Self::Auto,
            Resume::Restart => Self::Restart,
        }
    }
}

impl Train {
    pub fn run(self) -> anyhow::Result<Exit> {
        let trained = OnceCell::new();
        cancel::catch(|| self.train_and_report(&trained)).unwrap_or_else(|cancel::Cancelled| {
            match trained.get() {
                None => say!(
                    "interrupted before training began; logs that were compiled and plans that were finished are kept for the \
                     next start"
                ),
                Some(best) => {
                    say!("interrupted during the report; the policy is {}, `admix eval` compares it", best.display());
                }
            }
            Ok(Exit::Interrupted)
        })
    }

    fn train_and_report(self, trained: &OnceCell<PathBuf>) -> anyhow::Result<Exit> {
        let job = match self.parent {
            None => Job::join()?,
            Some(parent) => {
                bind_to_parent(parent)?;
                nodes::one_machine().map_err(|processes| {
                    UsageError(format!(
                        "{processes} processes were started together, and a command that starts runs of its own is for one: start one"
                    ))
                })?;
                Job::of_one_node()
            }
        };
        let exit = self.train_in(&job, trained)?;
        // Leaving keeps a core busy, and the first node reports at length.
        job.tell(&())?;
        job.leave();
        Ok(exit)
    }

    /// Loads the configuration with what the command line sets, and checks what the two ask for together.
    fn settings(&self, node: Node) -> anyhow::Result<Settings> {
        let mut sets = self.sets.clone();
        sets.extend(self.seed.map(|seed| format!("run.seed={seed}")));
        sets.extend(self.device.as_ref().map(|device| format!("run.device=\"{device}\"")));
        sets.extend(self.warm_start.map(|warm| format!("policy.warm_start={warm}")));
        if self.deterministic {
            sets.push("run.deterministic=true".into());
        }
        let mut settings: Settings = settings::load(&self.config, &sets)?;
        if !node.is_alone() && settings.run.device == "auto" {
            settings.run.device = "cpu".into();
        }
        together::check_job(&settings, node)?;
        if settings.run.deterministic && settings.budget.max_updates == 0 && settings.budget.max_samples == 0 {
            return Err(UsageError(
                "a lock-step run cannot end by wall time: set budget.max_updates or budget.max_samples".into(),
            )
            .into());
        }
        let ranks = node.world(settings.learner.ranks).ranks;
        if self.serial && ranks > 1 {
            let many =
                if node.is_alone() { format!("learner.ranks = {ranks}") } else { format!("mpirun -n {}", node.of) };
            return Err(UsageError(format!(
                "{many} learns in {ranks} processes, and --serial in one: leave one of them out"
            ))
            .into());
        }
        if self.require.is_some() && settings.data.test.is_empty() {
            return Err(
                UsageError("--require needs data.test: the verdict is about days that chose nothing".into()).into()
            );
        }
        Ok(settings)
    }

    /// Reads the plan and the policy that the command line names.
    fn given(&self) -> anyhow::Result<Given> {
        let plan = self.plan.as_deref().map(Plan::read).transpose().map_err(|e| UsageError(format!("{e:#}")))?;
        let from = match &self.from {
            None => None,
            Some(path) => {
                let policy = PolicyFile::read(path).map_err(|e| UsageError(format!("--from: {e:#}")))?;
                Some(Origin { path: path.clone(), policy })
            }
        };
        Ok(Given { plan, from })
    }

    /// Trains and reports as a node of a job; sets `trained` to the best policy once training has ended.
    fn train_in(self, job: &Job, trained: &OnceCell<PathBuf>) -> anyhow::Result<Exit> {
        let node = job.node();
        let settings = self.settings(node)?;
        let ChosenDevice { device, why } = device::choose(&settings)?;
        let given = self.given()?;
        let interrupt = Interrupt::listen(settings.watchdog.grace_s)?;
        let mode = match (self.serial, settings.run.deterministic) {
            (true, _) => "serial",
            (false, true) => "lock-step",
            (false, false) => "parallel",
        };
        // Checked before the directory is made.
        let fresh = self.run_dir.as_ref().is_none_or(|root| !root.exists());
        let directory =
            node::directory(job, self.run_dir.as_deref(), self.resume.is_some(), || self.first_directory())?;
        if node.is_first() {
            directory.check_manifest()?;
        }
        let told = (!node.is_alone()).then(|| Told::of(&settings.data)).transpose()?;
        // Logs are compared once the first node has compiled them.
        let common = Common {
            configuration: settings.to_toml(),
            inputs: &BTreeMap::new(),
            source: ("data.values", told.and_then(|told| told.key())),
        };
        let known = job::agree_on_run(job, &directory, &common)?;
        let earlier = match self.resume {
            Some(how) if node.is_first() => {
                let mut earlier = Earlier::find(&directory, &settings, mode, node)?;
                let how = earlier.as_mut().map(|earlier| earlier.settle(&directory, how.into())).transpose()?;
                earlier.zip(how)
            }
            Some(Resume::Restart) => {
                resume::set_aside(&directory)?;
                None
            }
            _ => None,
        };
        flight::begin(&directory.flight(), "main");
        tell!(job, "run directory {}", directory.root().display());
        let earlier = earlier.map(|(earlier, how)| {
            say!("{how}");
            earlier
        });
        if let Some(why) = why {
            tell!(job, "learning on the CPU: {why}");
        }
        let unused = |directory: &RunDirectory| fresh && node.is_alone() && !directory.metrics().exists();
        let trains = || train(&settings, given, earlier, (device, mode), &directory, &interrupt, (job, known));
        let result = cancel::catch(trains).unwrap_or_else(|cancelled| {
            if unused(&directory) {
                remove_unused(&directory);
            }
            cancelled.go_on()
        });
        flight::end(&result);
        if interrupt.count() > 1 {
            // Without taking leave, which would wait for the other nodes.
            ensure!(node.is_alone(), RunFailure::NotSaved { node: node.index });
            return result.map(|_| Exit::Interrupted).or_else(|e| {
                say!("{e:#}");
                Ok(Exit::Interrupted)
            });
        }
        let (context, outcome) = match result {
            Err(e) if unused(&directory) => {
                remove_unused(&directory);
                return Err(e);
            }
            result => result?,
        };
        tell!(job, "{}", summary(&outcome));
        let head_start = settings.head_start();
        if head_start > 0 && outcome.updates <= head_start {
            tell!(
                job,
                "the actor has not learned yet: training ended after {} updates, and the critic learns alone for {head_start} \
                 (learner.critic_head_start); give a larger budget",
                outcome.updates
            );
        }
        if outcome.reason == ExitReason::Interrupted {
            tell!(job, "interrupted; {}", directory.best_so_far());
            if outcome.checkpoints.is_some_and(|c| c.snapshots > 0) {
                tell!(job, "go on with the same command, --run-dir {} and --resume", directory.root().display());
            }
            return Ok(Exit::Interrupted);
        }
        trained.get_or_init(|| directory.best());
        interrupt.leave();
        if !node.is_first() {
            return Ok(Exit::Done);
        }
        self.conclude(&context, &directory)
    }

    /// Reports on the run that has ended.
    fn conclude(&self, context: &Context, directory: &RunDirectory) -> anyhow::Result<Exit> {
        let (report, reported) = report(context, directory)?;
        // A full disk must not turn a finished run into a failed one.
        if let Err(e) = report::write(&report, directory) {
            tracing::warn!("{e:#}");
        }
        if !reported.is_empty() {
            if !self.json {
                print_text(&format!("\n{}:\n\n", familiar::heading(&reported)))?;
            }
            eval::print_reports(&reported, report.judgement.as_slice(), self.json)?;
        }
        say!("policy: {}", directory.best().display());
        Ok(self.required(report.judgement.as_ref()))
    }

    /// Returns the exit for a verdict.
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
        let required = format!("{required:?}").to_lowercase();
        say!("the verdict is {}, --require {required} is not reached", stated.to_lowercase());
        Exit::VerdictNotReached
    }

    fn first_directory(&self) -> anyhow::Result<RunDirectory> {
        match (self.resume, &self.run_dir) {
            (Some(how), Some(root)) => resume::open(root, how.into()),
            (_, Some(root)) => RunDirectory::create(root),
            (_, None) => RunDirectory::create_unique(Path::new("runs"), &self.default_name()),
        }
    }

    /// Returns the default name of a run directory.
    fn default_name(&self) -> String {
        let name = self.config.file_stem().map_or_else(|| "run".into(), |s| s.to_string_lossy().into_owned());
        format!("{name}-{}", jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S"))
    }
}

/// Removes the directory of a run that ended before training, which would only block the next start.
fn remove_unused(directory: &RunDirectory) {
    let root = directory.root();
    if let Err(e) = std::fs::remove_dir_all(root) {
        tracing::warn!("{} holds nothing and cannot be removed: {e}", root.display());
    }
}

/// Plan and initial policy given by the user.
struct Given {
    plan: Option<Plan>,
    from: Option<Origin>,
}

fn train(
    settings: &Settings,
    given: Given,
    earlier: Option<Earlier>,
    (device, mode): (Device, &'static str),
    directory: &RunDirectory,
    interrupt: &Interrupt,
    (job, known): (&Job, bool),
) -> anyhow::Result<(Context, Outcome)> {
    let (starts, before) = earlier.as_ref().map(|earlier| (earlier.starts(), earlier.seconds())).unwrap_or_default();
    let stored = match earlier {
        Some(earlier) => {
            if let Some(from) = &given.from {
                say!("--from {} is left aside: the run has its start already", from.path.display());
            }
            earlier.context.store_settings(directory)?;
            Some(earlier.context)
        }
        None if !job.node().is_first() => None,
        None => {
            if let Some(plan) = &given.plan {
                say!("the plan is given, made from {} days", plan.days.len());
            }
            let mut context = prepare(settings, given.plan, given.from.as_ref())?;
            context.node = job.node();
            context.store(directory)?;
            Some(context)
        }
    };
    let context = together::hand_over(job, directory, settings, stored)?;
    let begin = || {
        let names = device::names(device, Device::subject(settings));
        PolicyManifest::begin(&context, mode, &names, (starts, before))
    };
    let mut manifest = job.node().is_first().then(begin).transpose()?;
    if let Some(manifest) = &manifest {
        manifest.write(directory)?;
    }
    interrupt.supervise();
    let outcome = if mode == "serial" {
        serial::train(&context, directory, interrupt)
    } else {
        parallel::train(&context, directory, interrupt, (job, known))
    };
    let outcome = outcome.map(|last| Outcome { seconds: before + last.seconds, ..last });
    if let Some(manifest) = &mut manifest {
        manifest.end(&outcome);
        // A full disk must not turn a finished run into a failed one.
        if let Err(e) = manifest.write(directory) {
            tracing::warn!("{e:#}");
        }
    }
    Ok((context, outcome?))
}

/// Judges the run's policies: on the validation days, which determine the best baseline, then on the test days.
fn report(context: &Context, directory: &RunDirectory) -> anyhow::Result<(RunReport, Vec<DayReport>)> {
    let policies = ComparedPolicy::of_run(report::CHOSEN, directory.root()).context("training left no policy")?;
    let (settings, plan) = (&context.settings, Some(&context.plan));
    let view = eval::View { told: context.told.clone(), ..eval::View::default() };
    let baselines = eval::all_baselines(Delay::from(&settings.env).most_s() > 0.0);
    let on = |dirs: &[PathBuf]| eval::compare(dirs, &policies, plan, &baselines, settings, &view);
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
            "\nsnapshots: {} taken, {:.1} MB in {:.1} s; the learner gave {:.2} % of its time",
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
