//! admix trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
//!
//! A module imports only from the rows below it (within a row: only leftwards; `learner`, `actor`, `checkpoint` and `evaluate` do
//! not import each other).
//!
//! | folder | what lives there |
//! |---|---|
//! | [`cli`] | arguments; one file per subcommand |
//! | [`product`] | what stands beside training: benchmarks, studies, a look at a run, soaking |
//! | [`supervisor`] | the main process: prepare, spawn, watch, restart, stop; the serial mode |
//! | [`actor`], [`learner`], [`checkpoint`], [`evaluate`] | one folder per process role |
//! | [`run`] | what every process of a run opens; snapshots |
//! | [`policy`] | networks, the policy file, baselines |
//! | [`plan`], [`env`] | forecast, supply-demand graph, play probabilities, prices, bound; the replay environment, features, rewards |
//! | [`log`], [`synth`] | input schemas, readers, checks, importers, the compiled log; the synthetic generator |
//! | [`shm`] | segments, sample ring, parameter cell, control block |
//! | [`settings`] | the configuration tree |

/// Tells a person something on stderr. Unlike `eprintln!` it does not end the program where that cannot be written: on a full
/// disk, say.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

pub mod actor;
pub mod checkpoint;
pub mod cli;
pub mod env;
pub mod evaluate;
pub mod learner;
pub mod log;
pub mod plan;
pub mod policy;
pub mod product;
pub mod run;
pub mod settings;
pub mod shm;
pub mod supervisor;
pub mod synth;
