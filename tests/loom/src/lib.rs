//! The shared structures of admix over loom's atomics.
//!
//! **Why.** An ordering that is too weak shows on no machine at hand: x86 hides most of them, and the tests that run
//! the structures in threads meet a handful of the possible interleavings. loom runs a small program in all of them
//! (up to a bound on preemptions), lets every load return every value that the memory model allows, and watches plain
//! memory for races. **Why here.** The files below are those of `src/shm`, included by their paths, so that what is
//! checked is what runs. Only what stands under them is exchanged:
//!
//! | file | stands in for | what it does |
//! |---|---|---|
//! | `sync` | the atomics | loom's, each asking `plant` whether it is to be wrong |
//! | `segment` | mapped memory | objects on the heap, payload bytes with a race detector on each page |
//! | `names` | `/proc` | the process lives |
//! | `futex` | two system calls | a mutex and a condition variable of loom's; no timeouts, so that a wake-up that is lost is a deadlock |
//! | `pod` | what may be shared | asks for `Default`: loom has to make each atomic itself |
//! | `plant` | | planted bugs: an ordering weakened, a store delayed or left out, a buffer used twice |
//!
//! The models are in `tests/`. **Covered:** the orderings by which live processes depend on each other in ring, cell,
//! halves, turns, exchange and doorbell; the ledger at the end; lost wake-ups; roles handed on; recovery of one side while the other one
//! goes on. **Not covered:** a kill between two stores, and the orderings that only what a killed process leaves depends
//! on, `Account`'s above all (unit tests in `src/shm` visit each such state, single-threaded, with `crash`); more
//! preemptions than the bound, more than three threads, timeouts, the system calls themselves; and a load that returns
//! what is stored after it, which loom does not model.

#[path = "../../../src/shm/cell.rs"]
pub mod cell;
#[path = "../../../src/shm/error.rs"]
pub mod error;
#[path = "../../../src/shm/exchange.rs"]
pub mod exchange;
mod futex;
#[path = "../../../src/shm/halves.rs"]
pub mod halves;
mod names;
pub mod plant;
pub mod pod;
#[path = "../../../src/shm/ring/mod.rs"]
pub mod ring;
pub mod segment;
pub mod sync;
#[path = "../../../src/shm/turns.rs"]
pub mod turns;
#[path = "../../../src/shm/wait.rs"]
pub mod wait;
