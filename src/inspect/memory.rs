//! Reads the shared memory of a run.

use serde::Serialize;

use crate::run::value_run::table_name;
use crate::settings::MOST_TABLES;
use crate::shm::control::{LearnerStats, MAX_ACTORS, MAX_LEARNER_RANKS, STOP_ALL, STOP_LEARNING, STOP_NOW};
use crate::shm::{
    Balance, Control, Distribution, Halves, HalvesView, Ledger, ParamCell, RingView, Role, RowReader, RunNames,
    SampleRing, ShmError, names,
};

/// The shared memory of a run at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Common part of the segments' names in `/dev/shm`.
    pub names: String,
    pub main_pid: u32,
    /// Whether the main process that created it is alive; otherwise it is left over from a killed run.
    pub main_alive: bool,
    pub control: Option<ControlView>,
    pub params: Option<ParamsView>,
    /// Snapshots waiting for the checkpointer; `None` if none are taken.
    pub snapshots: Option<HalvesView>,
    /// The tables of rows of a value training.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableView>,
    pub rings: Vec<RingView>,
    /// Sum over the rings.
    pub ledger: Ledger,
    pub balance: Balance,
}

/// Content of the control block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControlView {
    pub stop_level: u32,
    /// The stop level in words.
    pub stop: &'static str,
    pub processes: Vec<ProcessView>,
    pub learner: LearnerView,
    /// The learner's further ranks, from rank 1. Each counts its own samples; `learner` counts those of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learner_ranks: Vec<LearnerView>,
    pub evaluator: EvaluatorView,
    pub checkpoint: CheckpointView,
    pub actors: Vec<ActorView>,
}

/// A process that signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    pub name: String,
    /// `None` if its slot was cleared after its death.
    pub pid: Option<u32>,
    pub alive: bool,
    /// Number of processes that have signed in to this slot.
    pub incarnation: u64,
    /// Milliseconds since its last heartbeat.
    pub silent_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LearnerView {
    pub updates: u64,
    pub samples: u64,
    /// Version last published.
    pub param_version: u64,
    pub policy_lag: Distribution,
    pub compute_s: f64,
    pub wait_s: f64,
}

/// J in minor units; `None` before the first evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluatorView {
    pub evaluations: u64,
    pub without_improvement: u64,
    pub last_j: Option<f64>,
    pub last_share: Option<f64>,
    pub best_j: Option<f64>,
    pub best_share: Option<f64>,
    pub best_version: Option<u64>,
}

/// Snapshots saved by the present processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointView {
    pub snapshots: u64,
    pub bytes: u64,
    pub write_s: f64,
    /// Number of attempts that the file system refused.
    pub failures: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActorView {
    pub id: usize,
    pub steps: u64,
    /// Version of its current parameters.
    pub param_version: u64,
    pub compute_s: f64,
    pub wait_s: f64,
}

/// A table of embedding rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableView {
    pub segment: String,
    pub rows: usize,
    /// Rows that there is room for.
    pub capacity: usize,
    /// Bytes of shared memory.
    pub bytes: u64,
    /// The process that has the writing role.
    pub writer_pid: Option<u64>,
    /// With several ranks: how often it has written the gradients of an update, those that were undone later among them.
    pub writes: u64,
}

/// Content of the parameter cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ParamsView {
    pub version: u64,
    /// Maximum length of a publication, words.
    pub capacity: usize,
    /// Number of copies with a wrong checksum: any value but 0 is a bug or broken memory.
    pub torn: u64,
}

impl Memory {
    /// Reads the segments of a run; each one that cannot be opened adds a note.
    pub fn look(run: &RunNames, notes: &mut Vec<String>) -> Self {
        let main_alive = run.is_alive();
        let control = Control::observe(&run.part("control")).map_err(|e| notes.push(e.to_string())).ok();
        let params = ParamCell::observe(&run.part("params")).map_err(|e| notes.push(e.to_string())).ok();
        let snapshots = match Halves::observe(&run.part("halves")) {
            Ok(halves) => Some(halves.view()),
            Err(ShmError::Missing { .. }) => None,
            Err(e) => {
                notes.push(e.to_string());
                None
            }
        };
        let mut tables = Vec::new();
        for number in 0..MOST_TABLES {
            let segment = table_name(&run.to_string(), number);
            match RowReader::observe(&segment) {
                Ok(table) => tables.push(table_view(segment, &table)),
                Err(ShmError::Missing { .. }) => break,
                Err(e) => notes.push(e.to_string()),
            }
        }
        let mut rings = Vec::new();
        for id in 0..MAX_ACTORS {
            match SampleRing::observe(&run.part(&format!("ring{id}"))) {
                Ok(ring) => rings.push(ring.view()),
                Err(ShmError::Missing { .. }) => break,
                Err(e) => notes.push(e.to_string()),
            }
        }
        let of = |balance| rings.iter().any(|ring| ring.balance == balance);
        let balance = match (of(Balance::Off), of(Balance::Moving)) {
            (true, _) => Balance::Off,
            (_, true) => Balance::Moving,
            _ => Balance::Exact,
        };
        Self {
            names: run.to_string(),
            main_pid: run.pid(),
            main_alive,
            control: control.map(|control| control_view(&control, rings.len(), tables.is_empty())),
            params: params.map(|cell| ParamsView {
                version: cell.version(),
                capacity: cell.capacity(),
                torn: cell.torn(),
            }),
            snapshots,
            tables,
            ledger: Ledger::sum(rings.iter().map(|ring| ring.ledger)),
            rings,
            balance,
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

fn table_view(segment: String, table: &RowReader) -> TableView {
    let (rows, capacity) = (table.len(), table.shape().records);
    TableView { segment, rows, capacity, bytes: table.bytes(), writer_pid: table.writer(), writes: table.batches() }
}

/// `trains` says whether it is a run of `admix train`, and not of values.
fn control_view(control: &Control, actors: usize, trains: bool) -> ControlView {
    let role = if trains { Role::of } else { Role::of_values };
    let processes =
        control.processes.iter().enumerate().filter(|(_, slot)| slot.incarnation() > 0).map(|(at, slot)| {
            let pid = slot.pid();
            let kind = slot.kind();
            ProcessView {
                name: kind.map_or_else(|| format!("slot{at}"), |kind| role(kind, at).to_string()),
                pid,
                alive: pid.is_some_and(names::is_alive),
                incarnation: slot.incarnation(),
                silent_ms: slot.silent_ms(),
            }
        });
    let (e, c) = (&control.evaluator, &control.checkpoint);
    let evaluations = e.evaluations.get();
    let known = |value: f64| (evaluations > 0).then_some(value).filter(|v| v.is_finite());
    let stop_level = control.stop_level();
    ControlView {
        stop_level,
        stop: match stop_level {
            0 => "none",
            STOP_LEARNING => "actors and learner end",
            STOP_ALL => "the evaluator looks at the newest parameters and ends",
            STOP_NOW => "everybody ends at once",
            _ => "unknown",
        },
        processes: processes.collect(),
        learner: learner_view(&control.learner),
        learner_ranks: (1..MAX_LEARNER_RANKS)
            .map(|rank| control.learner_stats(rank))
            .filter(|stats| stats.compute_ns.get() > 0)
            .map(learner_view)
            .collect(),
        evaluator: EvaluatorView {
            evaluations,
            without_improvement: e.without_improvement.get(),
            last_j: known(e.last_benefit.get()),
            last_share: known(e.last_share.get()),
            best_j: known(e.best_benefit.get()),
            best_share: known(e.best_share.get()),
            best_version: (evaluations > 0).then(|| e.best_version.get()),
        },
        checkpoint: CheckpointView {
            snapshots: c.snapshots.get(),
            bytes: c.bytes.get(),
            write_s: seconds(c.write_ns.get()),
            failures: c.failures.get(),
        },
        actors: control.actors[..actors.min(MAX_ACTORS)]
            .iter()
            .enumerate()
            .map(|(id, a)| ActorView {
                id,
                steps: a.steps.get(),
                param_version: a.param_version.get(),
                compute_s: seconds(a.compute_ns.get()),
                wait_s: seconds(a.wait_ns.get()),
            })
            .collect(),
    }
}

fn learner_view(l: &LearnerStats) -> LearnerView {
    LearnerView {
        updates: l.updates.get(),
        samples: l.samples_consumed.get(),
        param_version: l.param_version.get(),
        policy_lag: l.lag.read(),
        compute_s: seconds(l.compute_ns.get()),
        wait_s: seconds(l.wait_ns.get()),
    }
}
