//! All memory shared by the processes of a run, and nearly all `unsafe` of the project; CONTRIBUTING.md lists the rest.
//!
//! **Why shared memory.** An actor produces blocks of half a megabyte and the learner publishes its parameters to every
//! process. A pipe would copy each of them twice through the kernel and would block the wrong side when the other one hangs.
//! **Why so careful.** Any process may be killed between any two instructions, and the run must go on with a ledger that still
//! balances to the last sample. So there are no locks in here: every structure is a few atomics that only grow, and each has a
//! `recover_*` function (or needs none) that repairs it after one of its users died.
//!
//! | file | what it is |
//! |---|---|
//! | `error` | [`ShmError`], the one error type, with messages that say what to do next |
//! | `sync` | the atomics; in unit tests they can be made to "die" after any number of stores (`crash`), in `tests/loom` they are loom's |
//! | `pod` | [`Shareable`], the `unsafe trait` of types that may be in shared memory |
//! | `segment` | [`Segment`], a named mapping with a validated header; space is checked and reserved first |
//! | `numa` | [`NumaNodes`], where memory lies and who works beside it |
//! | `lock` | locks that show whether a process is alive |
//! | `names` | [`RunNames`], the names of a run's segments, and [`sweep`] for those of dead runs |
//! | `wait` | [`Doorbell`], sleeping until another process has news |
//! | `futex` | the two system calls under it, and how long an exchange spins before it sleeps |
//! | `ring/` | [`SampleRing`], blocks of samples from one actor to one learner, with its [`Ledger`] |
//! | `cell` | [`ParamCell`], the newest parameters, from one writer to many readers |
//! | `halves` | [`Halves`], two halves through which snapshots reach the checkpointer |
//! | `turns` | [`turns::Turns`], turn taking of two parties at a ring of slots |
//! | `exchange` | [`Exchange`], means and bytes between the ranks of a machine |
//! | `undo` | [`UndoLog`]: previous contents of changed records, for a rollback to the newest snapshot |
//! | `rows` | [`RowWriter`], [`RowReader`]: records found by id, with one writer |
//! | `control` | [`Control`], stop flag, doorbells, heartbeats and statistics of the whole run |
//! | `process` | [`Role`], the table of roles, and the slots in which processes register |
//! | `counter` | [`Counter`] and [`Gauge`], the statistics that it is made of |
//! | `histogram` | [`Histogram`], a distribution among those statistics |
//! | `flight` | [`FlightFile`], the last events of a process, in a mapped file that survives it |
//!
//! This folder imports nothing of the project but [`crate::files`]. Callers define the meaning of blocks and parameter words.

pub mod cell;
pub mod control;
pub mod counter;
#[cfg(test)]
pub(crate) mod crash;
pub mod error;
pub mod exchange;
pub mod flight;
mod futex;
pub mod halves;
pub mod histogram;
pub mod huge;
pub mod lock;
pub mod names;
pub mod numa;
pub mod pod;
mod prefetch;
pub mod process;
pub mod ring;
pub mod rows;
pub mod segment;
pub(crate) mod sync;
pub mod turns;
pub mod undo;
pub mod wait;

pub use cell::ParamCell;
pub use control::{Control, ControlBlock};
pub use counter::{Counter, Gauge};
pub use error::ShmError;
pub use exchange::{Broken, Exchange, ExchangeShape, Given, MAX_RANKS, Remote, Seat, Written};
pub use flight::{FlightFile, FlightLog, FlightRecord};
pub use halves::{Complete, HalfShape, HalfState, Halves, HalvesView, Part, PartWriter};
pub use histogram::{Distribution, Histogram};
pub use names::{RunNames, sweep};
pub use numa::NumaNodes;
pub use pod::Shareable;
pub use prefetch::{ahead, prefetch, prefetch_lines, prefetch_lines_to_write};
pub use process::{MAX_ACTORS, ProcessKind, Role, monotonic, process_cpu_time};
pub use ring::{
    Balance, BlockInfo, Ledger, Overflow, ReadGuard, RegionView, RingReader, RingShape, RingView, RingWriter,
    SampleRing, State, Unbalanced, WriteGuard,
};
pub use rows::{RowReader, RowShape, RowWriter};
pub use segment::{Kind, Segment, check_space};
pub use undo::{Undo, UndoLog, UndoShape};
pub use wait::{Doorbell, Woken};
