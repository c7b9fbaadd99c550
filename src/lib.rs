//! admix trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
//!
//! A module imports only from the rows below it (within a row: only leftwards; the process roles do
//! not import each other).
//!
//! | folder | contents |
//! |---|---|
//! | [`cli`] | arguments; one file per subcommand |
//! | [`inspect`], [`watch`], [`explain`], [`score`], [`export`], [`serve`], [`pretrain`], [`bench`], [`study`], [`soak`], [`retrain`] | tools beside training: details of a run, a run on one screen, explanation of a decision, scoring of a stream of requests, export for a feature server, HTTP server, pretraining over many worlds, benchmarks, studies of worlds x seeds x policies and sweeps of settings, soak tests with deliberate kills, the nightly job |
//! | [`report`], [`runs`] | results of a run, kept in its directory; comparison of runs |
//! | [`supervisor`] | the main process: prepare, spawn, watch, restart, stop; the serial mode |
//! | [`actor`], [`learner`], [`checkpoint`], [`evaluator`]; [`reader`], [`rank`] | one folder per process role: training of policies; training of values |
//! | [`run`] | resources that every process of a run opens; snapshots |
//! | [`evaluate`] | comparison of policies on whole days, for `eval`, `study` and the report of a run |
//! | [`policy`] | networks, the policy file, baselines, the teacher with hindsight prices |
//! | [`values`] | the value model: features, formulas, its file; days at logged or corrected values |
//! | [`collective`], [`nodes`] | exchange between ranks: means, gradients of rows, the overlapped mode; the machines of a job, over MPI |
//! | [`sparse`] | the table of embedding rows, its device cache and its file |
//! | [`plan`], [`env`] | forecast, supply-demand graph, play probabilities, prices, bound; the replay environment, features, rewards |
//! | [`log`], [`synth`] | input schemas, readers, checks, importers, the compiled log; the synthetic generator |
//! | [`gpu`] | devices, arrays and layers of networks on a GPU |
//! | [`formulas`] | scalar formulas that host loops and kernels share |
//! | [`shm`] | segments, sample ring, parameter cell, control block |
//! | [`settings`] | the configuration tree |
//! | [`files`], [`cancel`], [`awake`], [`failpoint`] | opening and reading untrusted files; cancellation of long computations; awake time; points at which tests kill |

/// Prints a message on stderr. Unlike `eprintln!` it does not panic if the message cannot be written, for example on a full disk.
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
pub mod failpoint;
pub mod files;
pub mod formulas;
pub mod gpu;
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
