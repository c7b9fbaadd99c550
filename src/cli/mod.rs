//! The command line: clap structs and one file per subcommand.
//!
//! Arguments and TOML become settings here; commands get settings, never clap types. Data goes to stdout, logs and progress to
//! stderr. [`exit`] has the exit codes, [`output`] prints results.

#[macro_use]
pub mod output;

mod bench;
mod child;
mod data;
mod device;
mod eval;
mod exit;
mod explain;
mod export;
mod inspect;
mod node;
mod numbers;
mod plan;
mod pretrain;
mod promote;
mod replayed;
mod retrain;
mod runs;
mod score;
mod serve;
mod soak;
mod study;
mod told;
mod train;
mod values;
mod watch;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::supervisor::interrupt::survive_file_size_limits;
use exit::exit_of;

/// Trains the policy that decides, at each display request, whether a contract ad or an auction ad is shown.
#[derive(Debug, Parser)]
#[command(
    name = "admix",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 10 the served policy is kept (retrain),\n\
                  11 data suspect (retrain, data check --strict), 12 verdict not reached (train --require),\n\
                  dictionary refused (export), 130 interrupted (what was learned is saved);\n\
                  of a training run: 20 a process kept dying, 21 the learner got no samples, 22 the actors got no\n\
                  parameters, 23 no update although there were samples, 24 losses that are not finite,\n\
                  25 its policy or model cannot be written, 27 a node of a job of several is lost.\n\
                  ADMIX_LOG=debug shows more of what happens (trace, debug, info, warn, error)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make, import and check log directories
    #[command(subcommand, after_help = "Example: admix data check logs/2026-01-05")]
    Data(data::Data),
    /// Plan from training days: forecast, prices, play probabilities, over-booked contracts, tuned baselines
    Plan(plan::Plan),
    /// Learn the parameters that policies of all worlds start from, once
    Pretrain(pretrain::Pretrain),
    /// Train a policy on logged days
    Train(Box<train::Train>),
    /// Learn the worth of impressions from exposures, evaluate it, and write it down
    #[command(subcommand, after_help = "Example: admix values eval --values runs/v --log day-3")]
    Values(values::Values),
    /// Replay whole days under policies and baselines, beside the hindsight bound
    Eval(eval::Eval),
    /// Score requests as they come: a policy as a filter
    Score(score::Score),
    /// Write a policy's scores as the dictionary of a feature server
    Export(export::Export),
    /// Serve a policy over HTTP
    Serve(serve::Serve),
    /// Explain a decision: every candidate of a request, and what the baselines would have shown
    Explain(explain::Explain),
    /// Watch a run on one terminal screen
    Watch(watch::Watch),
    /// Show a run, alive or dead: processes, queues, ledger, last events
    Inspect(inspect::Inspect),
    /// The nightly job: check the newest days, train, compare, promote what is better
    Retrain(retrain::Retrain),
    /// Show what was promoted; serve an earlier policy again
    Promote(promote::Promote),
    /// List the runs in a folder and compare them: configurations, shares with paired differences
    Runs(runs::Runs),
    /// Train and evaluate over worlds, seeds and policies; one table
    Study(study::Study),
    /// Try values of configuration keys, from a grid or at random; rank them with intervals
    Sweep(study::Sweep),
    /// Send random signals to the processes of training runs and watch them recover
    Soak(soak::Soak),
    /// Benchmark one stage with the code that training runs
    Bench(bench::Bench),
    #[command(subcommand, hide = true)]
    Child(child::Child),
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    survive_file_size_limits();
    let filter = tracing_subscriber::EnvFilter::try_from_env("ADMIX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("admix=info,warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // Such errors would be reported on stderr, which is the stream that failed.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let result = match arguments.command {
        Command::Data(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Pretrain(command) => command.run(),
        Command::Train(command) => command.run(),
        Command::Values(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Export(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Watch(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Retrain(command) => command.run(),
        Command::Promote(command) => command.run(),
        Command::Runs(command) => command.run(),
        Command::Study(command) => command.run(),
        Command::Sweep(command) => command.run(),
        Command::Soak(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Child(command) => command.run(),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(e) => {
            say!("error: {e:#}");
            exit_of(&e).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// They were wider than the help, which broke each of their lines once more.
    #[test]
    fn texts_with_line_breaks_of_their_own_are_no_wider_than_the_help() {
        fn check(command: &clap::Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for pair in text.lines().collect::<Vec<_>>().windows(2) {
                let [line, next] = [pair[0], pair[1]];
                let goes_on = !line.is_empty() && !next.is_empty() && !line.ends_with(['.', ':', '\\']);
                let width = line.len().max(next.len());
                assert!(!goes_on || width <= 100, "admix {}: {width} columns after `{line}`", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Arguments::command());
    }
}
