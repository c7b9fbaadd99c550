//! Benchmarks: each measures one stage with the code that training runs, as a figure for people and as JSON.
//!
//! [`agreement`] is no benchmark: it decides whether a training may use a GPU.
//!
//! | file | what it is |
//! |---|---|
//! | [`agreement`] | whether a device computes what the CPU computes, before a training uses it: a few updates on fixed data |
//! | [`env`](mod@env), [`actor`], [`ingest`], [`learner`] | steps of a replay; decisions of an actor and its blocks; samples from the rings into the pool; updates of the learner |
//! | [`ring`], [`params`] | blocks from an actor to the learner, between processes; whether parameters ever tear |
//! | [`collectives`] | gradients averaged between ranks, beside MPI or NCCL |
//! | [`table`] | updates of the value model, with its rows and their cache |
//! | [`plan`], [`evaluate`], [`score`] | planning a large day; evaluating parameters on a whole day; scoring a request |
//! | [`serve`] | a server under load, among hostile clients and across a kill |
//! | [`start`], [`e2e`], [`speedup`] | whole trainings: until the first block; what each process does; in parallel and in serial mode |
//! | [`watched`], [`proc`] | a run that is watched from outside; what the kernel says of a process |
//! | [`world`] | a day that is made in memory |

pub mod actor;
pub mod agreement;
pub mod collectives;
pub mod e2e;
pub mod env;
pub mod evaluate;
pub mod ingest;
pub mod learner;
pub mod params;
pub mod plan;
pub mod proc;
pub mod ring;
pub mod score;
pub mod serve;
pub mod speedup;
pub mod start;
pub mod table;
pub mod watched;
pub mod world;
