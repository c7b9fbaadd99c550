//! `admix soak`: training under random kills.

use std::path::PathBuf;

use clap::Args;

use crate::soak;

use super::{Exit, print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Trains a generated world and kills its processes at random moments, main among them; after each kill the\n\
    run must have replaced the process and got on within 90 s, and at the end of each session of 60 kills its ledger\n\
    must be exact and nothing may be left in /dev/shm. The first failure ends it with exit code 1."
)]
pub struct Soak {
    /// Kills
    #[arg(long, default_value_t = 100, value_name = "N")]
    kills: usize,
    /// Of these, kills of two processes, the second within the recovery of the first
    #[arg(long, default_value_t = 0, value_name = "N")]
    double_faults: usize,
    /// Seed of moments, victims and runs
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Append every kill to this file, and report all that it holds
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Requests of a day of the generated world
    #[arg(long, default_value_t = 1500, value_name = "N")]
    requests: u32,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Soak {
    pub fn run(self) -> anyhow::Result<Exit> {
        let report = soak::run(&soak::Soak {
            kills: self.kills,
            double_faults: self.double_faults,
            seed: self.seed,
            record: self.record,
            requests: self.requests,
        })?;
        if self.json {
            print_json(&report)?
        } else {
            print_text(&format!("{report}\n"))?
        }
        Ok(Exit::Done)
    }
}
