//! `admix promote`: shows the history of a nightly job, and promotes by hand.

use std::path::PathBuf;

use clap::Args;

use crate::retrain::{History, Job, Outcome, history};

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};
use super::retrain::{describe, line};

#[derive(Debug, Args)]
#[command(
    after_help = "Without --to and --rollback it shows the history. The number of a policy is that of the entry that promoted \
                  it. What is done by hand becomes an entry too, and the next night starts from what is served then. A policy that \
                  was replaced by hand is not promoted by a night again; --to N serves it.\n\n\
                  Example: admix promote --config /etc/admix/retrain.toml --rollback"
)]
pub struct Promote {
    /// The job's file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The jobs' folder, instead of the job's file
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    jobs: Option<PathBuf>,
    /// Serve the promoted policy with this number
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Serve the previously served policy again; repeated, it goes further back
    #[arg(long, conflicts_with = "to")]
    rollback: bool,
    /// Print entries as JSON, one object per line
    #[arg(long)]
    json: bool,
}

impl Promote {
    pub fn run(self) -> anyhow::Result<Exit> {
        let usage = |e: anyhow::Error| UsageError(format!("{e:#}"));
        let folder = match (self.jobs, self.config) {
            (Some(folder), _) => folder,
            (None, Some(config)) => Job::load(&config).map_err(usage)?.jobs,
            (None, None) => {
                return Err(UsageError("name the job: --config FILE, or --jobs DIR for its folder".into()).into());
            }
        };
        if !folder.join("history.jsonl").is_file() {
            return Err(UsageError(format!("{} has no history yet: no night was run", folder.display())).into());
        }
        if self.to.is_none() && !self.rollback {
            for entry in &history::entries(&folder)? {
                if self.json { print_json(entry)? } else { print_text(&format!("{}\n", line(entry)))? }
            }
            return Ok(Exit::Done);
        }
        let mut history = History::open(&folder)?;
        let entry = if let Some(n) = self.to {
            history.promote_again(n, Outcome::PromotedByHand).map_err(usage)?
        } else {
            let before = history.previous();
            let Some(before) = before else {
                let all: Vec<String> = history.archive()?.iter().map(u64::to_string).collect();
                let why = match history.serves() {
                    Some(now) => format!(
                        "there is nothing further back than policy {now}, which is served; --to N serves any of {}",
                        all.join(", ")
                    ),
                    None => "nothing was promoted yet".to_owned(),
                };
                return Err(UsageError(why).into());
            };
            history.promote_again(before, Outcome::RolledBack).map_err(usage)?
        };
        if self.json {
            print_json(&entry)?
        } else {
            print_text(&describe(&entry))?
        }
        history.settled()?;
        Ok(Exit::Done)
    }
}
