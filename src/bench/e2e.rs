//! A whole training in real processes: how fast, and what every process does with its time, memory and files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::actor::Explorer;
use crate::learner::{Device, Learner, device};
use crate::policy::start::initial_actor;
use crate::settings::Settings;
use crate::shm::{Counter, Distribution};
use crate::supervisor::prepare::prepare;

use super::learner::rate;
use super::proc::{self, Usage};
use super::watched::{Inside, Task, Watched, processes};

/// How often the run is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Seconds of a window that replay ratio and policy lag are given for.
const WINDOW_S: f64 = 10.0;

#[derive(Debug, Clone, Serialize)]
pub struct EndToEndReport {
    pub cores: usize,
    pub device: String,
    pub actors: usize,
    /// From process start to the first update.
    pub start_s: f64,
    /// From the first update seen to the last; everything below is about this time.
    pub seconds: f64,
    pub updates: u64,
    pub samples: u64,
    pub evaluations: u64,
    pub updates_per_second: f64,
    pub samples_per_second: f64,
    /// The same learner on a full pool, with no other process beside it; where it was asked for.
    pub alone_updates_per_second: Option<f64>,
    /// User and system time of learner and actors over cores times wall time.
    pub busy_share: f64,
    /// What all other processes of the run took.
    pub others_busy_share: f64,
    /// Time in which the machine's cores had nothing to do, over cores times wall time.
    pub idle_share: f64,
    pub processes: Vec<ProcessReport>,
    /// States trained on per sample taken in, as configured.
    pub configured_replay_ratio: f64,
    /// Updates between two publications: what the parameters are behind by themselves.
    pub publish_every: u64,
    /// Updates between two evaluations, as configured; where the evaluator is slower, it takes the newest parameters.
    pub evaluate_every: u64,
    pub policy_lag: Distribution,
    pub windows: Vec<Window>,
}

/// One process, between the first update and the last.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessReport {
    pub name: String,
    /// Shares of the wall time, as the process itself counts them; of main and the checkpointer: CPU time, and the rest.
    pub computing: f64,
    pub waiting: f64,
    /// Handing over samples and parameters; `None` of those that do neither.
    pub copying: Option<f64>,
    /// User and system time over wall time.
    pub cores: f64,
    /// Medians of the first, the middle and the last third of the time.
    pub thirds: [Usage; 3],
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Window {
    /// Seconds since the first update.
    pub until_s: f64,
    pub updates_per_second: f64,
    pub replay_ratio: f64,
    /// Mean of the blocks taken in, updates; `None` where there was none.
    pub policy_lag: Option<f64>,
}

impl fmt::Display for EndToEndReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "process       computing  waiting  copying  cores   resident MB by thirds of the time (of its own)  files: first, last"
        )?;
        for p in &self.processes {
            let percent = |share: f64| format!("{:.1} %", 100.0 * share);
            let memory = |u: &Usage| format!("{:.0} ({:.0})", u.resident_mb, u.own_mb);
            writeln!(
                f,
                "{:12}  {:>9}  {:>7}  {:>7}  {:>5.2}   {:>14} {:>14} {:>14}   {:>8} {:>4}",
                p.name,
                percent(p.computing),
                percent(p.waiting),
                p.copying.map_or_else(|| "-".into(), percent),
                p.cores,
                memory(&p.thirds[0]),
                memory(&p.thirds[1]),
                memory(&p.thirds[2]),
                p.thirds[0].open_files,
                p.thirds[2].open_files
            )?;
        }
        writeln!(f, "until s  updates/s  replay ratio  policy lag")?;
        for w in &self.windows {
            let lag = w.policy_lag.map_or_else(|| "-".into(), |lag| format!("{lag:.1}"));
            writeln!(f, "{:>7.0}  {:>9.1}  {:>12.3}  {lag:>10}", w.until_s, w.updates_per_second, w.replay_ratio)?;
        }
        write!(
            f,
            "e2e: {:.1} updates/s, {:.0} samples/s over {:.1} s on {} ({} actors, {} cores), first update after {:.2} s; learner and \
             actors use {:.1} % of the cores, the run's other processes {:.1} %, {:.1} % are idle; replay ratio {} configured; policy \
             lag mean {:.1}, p95 {}, max {}, published every {} updates; {} evaluations, of every {} updates at most",
            self.updates_per_second,
            self.samples_per_second,
            self.seconds,
            self.device,
            self.actors,
            self.cores,
            self.start_s,
            100.0 * self.busy_share,
            100.0 * self.others_busy_share,
            100.0 * self.idle_share,
            self.configured_replay_ratio,
            self.policy_lag.mean,
            self.policy_lag.p95,
            self.policy_lag.max,
            self.publish_every,
            self.evaluations,
            self.evaluate_every
        )?;
        let Some(alone) = self.alone_updates_per_second else { return Ok(()) };
        let waited = self.processes.iter().find(|p| p.name == "learner").map_or(0.0, |p| p.waiting);
        write!(
            f,
            "\nalone on a full pool the learner makes {alone:.1} updates/s: being fed costs it {:.1} %, of which it waited for samples in \
             {:.1} % of the time",
            100.0 * (1.0 - self.updates_per_second / alone),
            100.0 * waited
        )
    }
}

/// The run at some moment.
#[derive(Debug, Clone)]
struct Look {
    at: Instant,
    updates: u64,
    samples: u64,
    evaluations: u64,
    lag: Distribution,
    idle_s: f64,
    /// By name: what the kernel says, and seconds of computing, waiting and copying where they are counted.
    processes: BTreeMap<String, (Usage, Option<[f64; 3]>)>,
}

impl Look {
    fn take(inside: &Inside, main: u32) -> Option<Self> {
        let control = &inside.control;
        let (l, e) = (&control.learner, &control.evaluator);
        let mut processes: BTreeMap<String, (Usage, Option<[f64; 3]>)> = processes(control)
            .into_iter()
            .filter_map(|(name, pid)| {
                let seconds = |counters: [&Counter; 3]| Some(counters.map(|ns| ns.get() as f64 * 1e-9));
                let counted = match name.as_str() {
                    "learner" => seconds([&l.compute_ns, &l.wait_ns, &l.copy_ns]),
                    "evaluator" => seconds([&e.compute_ns, &e.wait_ns, &e.copy_ns]),
                    "checkpointer" => None,
                    actor => {
                        let stats = &control.actors[actor.strip_prefix("actor")?.parse::<usize>().ok()?];
                        seconds([&stats.compute_ns, &stats.wait_ns, &stats.copy_ns])
                    }
                };
                Some((name, (proc::usage(pid)?, counted)))
            })
            .collect();
        processes.insert("main".into(), (proc::usage(main)?, None));
        Some(Self {
            at: Instant::now(),
            updates: l.updates.get(),
            samples: l.samples_consumed.get(),
            evaluations: e.evaluations.get(),
            lag: l.lag.read(),
            idle_s: proc::idle_s()?,
            processes,
        })
    }

    fn since(&self, earlier: &Self) -> f64 {
        (self.at - earlier.at).as_secs_f64()
    }
}

/// Trains a configuration, or a generated world of `requests` requests a day, for `seconds`; then has its learner go on `alone`
/// for so many, where that is not 0.
///
/// # Errors
/// A run that fails, or ends before anything can be measured.
pub fn run(
    config: Option<&Path>,
    sets: &[String],
    requests: u32,
    (seconds, alone): (f64, f64),
) -> anyhow::Result<EndToEndReport> {
    let task = Task::new(config, sets, requests)?;
    // Counted from the learner's start; no other bound, so that the rates decay over this time.
    let budget = [
        "budget.max_updates=0".into(),
        "budget.max_samples=0".into(),
        format!("budget.max_seconds={seconds}"),
        "stop.patience=0".into(),
    ];
    let mut run = task.start(&budget)?;
    let looks = watch(&mut run, &task.settings)?;
    let mut report = report(&task.settings, &looks, run.started)?;
    if alone > 0.0 {
        report.alone_updates_per_second = Some(learner_alone(&task.settings, alone)?);
    }
    Ok(report)
}

/// Updates per second of a learner with a full pool of an untrained actor's samples, in this process.
fn learner_alone(settings: &Settings, seconds: f64) -> anyhow::Result<f64> {
    device::set_threads(settings.learner.threads);
    let context = prepare(settings, None, None)?;
    let (days, spec) = (context.training_days()?, &context.spec);
    let trainer = Device::of(settings)?.trainer(&days, spec, settings)?;
    let mut learner = Learner::new(&days, spec.clone(), settings, trainer);
    let initial = initial_actor(spec, settings.run.seed);
    let mut explorer = Explorer::new(&days, settings, spec.clone(), initial, 0, 0);
    while learner.samples() < settings.learner.pool as u64 {
        learner.ingest(explorer.block().segments)?;
    }
    rate(seconds, &mut learner, |learner| learner.update(false).map(|_| ()))
}

fn watch(run: &mut Watched, settings: &Settings) -> anyhow::Result<Vec<Look>> {
    let actors = settings.actors.count;
    // Main, learner, evaluator, and the checkpointer where there is one.
    let all = actors + 3 + usize::from(settings.checkpoint.every_s > 0.0);
    let mut looks: Vec<Look> = Vec::new();
    let mut inside = None;
    while run.ended()?.is_none() {
        inside = inside.or_else(|| run.inside(actors));
        let look = inside.as_ref().and_then(|inside| Look::take(inside, run.pid()));
        // From the first update to the moment when the first of them has gone.
        looks.extend(look.filter(|look| look.updates > 0 && look.processes.len() == all));
        std::thread::sleep(LOOK);
    }
    Ok(looks)
}

fn report(settings: &Settings, looks: &[Look], started: Instant) -> anyhow::Result<EndToEndReport> {
    let first = looks.first().context("the run made no update in its time; give it more --seconds")?;
    // What came after the last update is the end of the run, not training.
    let end = looks.iter().position(|look| look.updates == looks[looks.len() - 1].updates).unwrap_or(0);
    let last = &looks[end];
    let seconds = last.since(first);
    ensure!(seconds > 0.0, "the run made too few updates in its time; give it more --seconds");
    let third = (end / 3).max(1);
    let thirds = [&looks[..third], &looks[end / 2 - third / 2..][..third], &looks[end + 1 - third..=end]];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let capacity = cores as f64 * seconds;
    let processes: Vec<ProcessReport> = last
        .processes
        .iter()
        .filter_map(|(name, (after, counted))| {
            let (before, earlier) = first.processes.get(name)?;
            let busy = (after.cpu_s - before.cpu_s) / seconds;
            let shares =
                counted.zip(*earlier).map(|(now, then)| [0, 1, 2].map(|i: usize| (now[i] - then[i]) / seconds));
            Some(ProcessReport {
                name: name.clone(),
                computing: shares.map_or(busy, |s| s[0]),
                waiting: shares.map_or(1.0 - busy, |s| s[1]),
                copying: shares.map(|s| s[2]),
                cores: busy,
                thirds: thirds.map(|looks| usual(looks, name)),
            })
        })
        .collect();
    let of_work = |p: &&ProcessReport| p.name == "learner" || p.name.starts_with("actor");
    let busy = |working: bool| -> f64 {
        processes.iter().filter(|p| of_work(p) == working).map(|p| p.cores).sum::<f64>() / cores as f64
    };
    let (updates, samples) = (last.updates - first.updates, last.samples - first.samples);
    Ok(EndToEndReport {
        cores,
        device: Device::of(settings)?.to_string(),
        actors: settings.actors.count,
        start_s: (first.at - started).as_secs_f64(),
        seconds,
        updates,
        samples,
        evaluations: last.evaluations - first.evaluations,
        updates_per_second: updates as f64 / seconds,
        samples_per_second: samples as f64 / seconds,
        alone_updates_per_second: None,
        busy_share: busy(true),
        others_busy_share: busy(false),
        idle_share: (last.idle_s - first.idle_s) / capacity,
        configured_replay_ratio: settings.learner.batch as f64 / settings.learner.samples_per_update as f64,
        publish_every: settings.learner.publish_every,
        evaluate_every: settings.evaluate.every,
        policy_lag: last.lag.clone(),
        windows: windows(&looks[..=end], settings.learner.batch),
        processes,
    })
}

/// Medians of a process over some looks.
fn usual(looks: &[Look], name: &str) -> Usage {
    let seen: Vec<Usage> = looks.iter().filter_map(|look| Some(look.processes.get(name)?.0)).collect();
    let median = |of: fn(&Usage) -> f64| {
        let mut values: Vec<f64> = seen.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Usage {
        cpu_s: median(|u| u.cpu_s),
        resident_mb: median(|u| u.resident_mb),
        own_mb: median(|u| u.own_mb),
        open_files: median(|u| u.open_files as f64) as usize,
    }
}

fn windows(looks: &[Look], batch: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let Some(first) = looks.first() else { return windows };
    let mut from = first;
    for (i, look) in looks.iter().enumerate().skip(1) {
        let length = look.since(from);
        if length >= WINDOW_S || (i + 1 == looks.len() && length >= 0.5 * WINDOW_S) {
            let updates = (look.updates - from.updates) as f64;
            windows.push(Window {
                until_s: look.since(first),
                updates_per_second: updates / length,
                replay_ratio: updates * batch as f64 / (look.samples - from.samples) as f64,
                policy_lag: look.lag.mean_since(&from.lag),
            });
            from = look;
        }
    }
    windows
}
