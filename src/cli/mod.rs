//! The command line: clap structs and one file per subcommand.
//!
//! Arguments and TOML become settings here; commands get settings, never clap types. Data goes to stdout, logs and progress
//! to stderr.

mod bench;
mod child;
mod data;
mod eval;
mod plan;
mod study;
mod train;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::log::LogError;
use crate::settings::SettingsError;

/// Trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
#[derive(Debug, Parser)]
#[command(
    name = "admix",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted (what was learned is saved).\n\
                  ADMIX_LOG=debug shows more of what happens (trace, debug, info, warn, error)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make, import and check log directories
    #[command(subcommand)]
    Data(data::Data),
    /// Plan from training days: forecast, prices, play probabilities, over-booked contracts, tuned baselines
    Plan(plan::Plan),
    /// Train a policy on logged days
    Train(Box<train::Train>),
    /// Replay whole days under policies and baselines, beside the hindsight bound
    Eval(eval::Eval),
    /// Train and evaluate over worlds, seeds and policies; one table
    Study(study::Study),
    /// Measure one stage with the code that training runs
    Bench(bench::Bench),
    #[command(subcommand, hide = true)]
    Child(child::Child),
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    /// Wrong usage or input.
    Usage,
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Interrupted => 130,
        })
    }
}

/// An error in what the user gave: ends with [`Exit::Usage`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("ADMIX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("admix=info,warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let result = match arguments.command {
        Command::Data(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Train(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Study(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Child(command) => command.run(),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(e) => {
            eprintln!("error: {e:#}");
            exit_of(&e).into()
        }
    }
}

fn exit_of(error: &anyhow::Error) -> Exit {
    let usage = error.chain().any(|cause| {
        cause.is::<SettingsError>()
            || cause.is::<UsageError>()
            || cause.downcast_ref::<LogError>().is_some_and(|e| !matches!(e, LogError::Io { .. }))
    });
    if usage { Exit::Usage } else { Exit::Failed }
}

/// Prints on stdout; a reader that went away (`| head`) ends the program quietly.
fn print_text(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        done => Ok(done?),
    }
}

/// Prints a line of JSON on stdout.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_text(&format!("{}\n", serde_json::to_string(value)?))
}
