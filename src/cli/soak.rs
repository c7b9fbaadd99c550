//! `admix soak`: training under random kills.

use std::path::PathBuf;

use clap::Args;

use crate::soak;

use super::exit::Exit;
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Trains a generated world and strikes its processes at random moments: SIGKILL to one, several, \
                  main or all of them, at their start, while they resume and while they end; SIGSTOP and SIGCONT; \
                  SIGTERM once, twice and to all. After each blow the run must get on within 600 s. At the end of \
                  each session its ledger must be exact and nothing may be left in /dev/shm. Lock-step runs that are \
                  struck in the same ways must end with the same bytes as one that is not. The first failure ends \
                  the soak with exit code 1 and keeps the run directory.\n\n\
                  Example: admix soak --kills 500 --seed 7 --record soak.jsonl --set learner.ranks=2"
)]
pub struct Soak {
    /// Continue until this many processes were killed
    #[arg(long, default_value_t = 100, value_name = "N")]
    kills: u64,
    /// Seed of moments, blows, victims and runs
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Append every blow to this file, and report all of its records
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Requests per day of the generated world
    #[arg(long, default_value_t = 1500, value_name = "N")]
    requests: u32,
    /// Change a setting of all runs
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Soak {
    pub fn run(self) -> anyhow::Result<Exit> {
        let report = soak::run(&soak::Soak {
            kills: self.kills,
            seed: self.seed,
            record: self.record,
            requests: self.requests,
            sets: self.set,
        })?;
        if self.json {
            print_json(&report)?
        } else {
            print_text(&format!("{report}\n"))?
        }
        Ok(Exit::Done)
    }
}
