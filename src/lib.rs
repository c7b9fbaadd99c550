//! admix trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
//!
//! A module imports only from the rows below it (within a row: only leftwards; the process roles do
//! not import each other).
//!
//! | folder | what lives there |
//! |---|---|
//! | [`cli`] | arguments; one file per subcommand |
//! | [`retrain`], [`soak`], [`study`], [`bench`], [`inspect`] | what stands beside training: the nightly job, kills on purpose, worlds x seeds x policies, benchmarks, a look at a run |
//! | [`report`], [`runs`] | what a run came to, kept in its directory; runs side by side |
//! | [`supervisor`] | the main process: prepare, spawn, watch, restart, stop; the serial mode |
//! | [`actor`], [`learner`], [`checkpoint`], [`evaluator`]; [`reader`], [`rank`] | one folder per process role: of policies, and of values |
//! | [`run`] | what every process of a run opens; snapshots |
//! | [`evaluate`] | policies compared on whole days, for `eval`, `study` and the report of a run |
//! | [`policy`] | networks, the policy file, baselines |
//! | [`values`] | the value model: features, formulas, its file; days at the values that are told |
//! | [`sparse`] | the table of embedding rows, its device cache and its file |
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
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod env;
pub mod evaluate;
pub mod evaluator;
pub mod inspect;
pub mod learner;
pub mod log;
pub mod plan;
pub mod policy;
pub mod rank;
pub mod reader;
pub mod report;
pub mod retrain;
pub mod run;
pub mod runs;
pub mod settings;
pub mod shm;
pub mod soak;
pub mod sparse;
pub mod study;
pub mod supervisor;
pub mod synth;
pub mod values;
