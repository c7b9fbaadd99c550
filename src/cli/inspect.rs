//! `admix inspect`: shows what a run is doing, or what it did last.

use std::path::PathBuf;

use clap::Args;

use crate::inspect;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Of a live run: stop level, every process (alive? since when silent?), the learner's and the evaluator's \
                  figures, the states of every ring's regions, its ledger and whether it balances, parameter versions. Of a \
                  dead one: how it ended, or that it was killed, and what is left of its shared memory. Of both: the last \
                  records of metrics.jsonl, checkpoints, and the last events of every process from its flight recorder.\n\
                  A live run is not disturbed: its memory and files are opened for reading only, and no lock is waited for.\n\
                  Exit code 2 where the directory is no run.\n\n\
                  Example: admix inspect runs/quickstart-20261120-030000"
)]
pub struct Inspect {
    /// Run directory
    #[arg(value_name = "RUN_DIR")]
    run: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Events to show per process
    #[arg(long, value_name = "N", default_value_t = 10)]
    events: usize,
}

impl Inspect {
    pub fn run(self) -> anyhow::Result<Exit> {
        let seen = inspect::inspect(&self.run, self.events).map_err(|e| UsageError(format!("{e:#}")))?;
        if self.json {
            print_json(&seen)?;
        } else {
            print_text(&inspect::text::render(&seen))?;
        }
        Ok(Exit::Done)
    }
}
