//! admix trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
//!
//! A module imports only from the rows below it (within a row: only leftwards; the process roles do
//! not import each other).
//!
//! | folder | what lives there |
//! |---|---|
//! | [`cli`] | arguments; one file per subcommand |
//! | [`inspect`], [`watch`], [`explain`], [`score`], [`export`], [`serve`], [`pretrain`], [`bench`], [`study`], [`soak`], [`retrain`] | what stands beside training: a look at a run, a run on one screen, a decision explained, requests scored as they come, the dictionary of a feature server, a server, a start for many worlds, benchmarks, worlds x seeds x policies and sweeps of settings, kills on purpose, the nightly job |
//! | [`report`], [`runs`] | what a run came to, kept in its directory; runs side by side |
//! | [`supervisor`] | the main process: prepare, spawn, watch, restart, stop; the serial mode |
//! | [`actor`], [`learner`], [`checkpoint`], [`evaluator`]; [`reader`], [`rank`] | one folder per process role: of policies, and of values |
//! | [`run`] | what every process of a run opens; snapshots |
//! | [`evaluate`] | policies compared on whole days, for `eval`, `study` and the report of a run |
//! | [`policy`] | networks, the policy file, baselines, the teacher of prices in hindsight |
//! | [`values`] | the value model: features, formulas, its file; days at the values that are told |
//! | [`collective`], [`nodes`] | exchange between ranks: means, gradients of rows, the overlapped mode; the machines of a job, over MPI |
//! | [`sparse`] | the table of embedding rows, its device cache and its file |
//! | [`plan`], [`env`] | forecast, supply-demand graph, play probabilities, prices, bound; the replay environment, features, rewards |
//! | [`log`], [`synth`] | input schemas, readers, checks, importers, the compiled log; the synthetic generator |
//! | [`formulas`] | scalar formulas that host loops and kernels share |
//! | [`shm`] | segments, sample ring, parameter cell, control block |
//! | [`settings`] | the configuration tree |
//! | [`files`], [`cancel`], [`awake`] | opening and reading what somebody else may have put there; cancellation of long computations; time awake |

/// Tells a person something on stderr. Unlike `eprintln!` it does not end the program where that cannot be written: on a full
/// disk, say.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", $crate::cli::output::plain(&format!($($arg)*)));
    }};
}

pub mod actor;
pub mod awake;
pub mod bench;
pub mod cancel;
pub mod checkpoint;
pub mod cli;
pub mod collective;
pub mod env;
pub mod evaluate;
pub mod evaluator;
pub mod explain;
pub mod export;
pub mod files;
pub mod formulas;
pub mod inspect;
pub mod learner;
pub mod log;
pub mod nodes;
pub mod plan;
pub mod policy;
pub mod pretrain;
pub mod rank;
pub mod reader;
pub mod report;
pub mod retrain;
pub mod run;
pub mod runs;
pub mod score;
pub mod serve;
pub mod settings;
pub mod shm;
pub mod soak;
pub mod sparse;
pub mod study;
pub mod supervisor;
pub mod synth;
pub mod values;
pub mod watch;
