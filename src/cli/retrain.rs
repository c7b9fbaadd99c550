//! `admix retrain`: the nightly job.

use std::path::PathBuf;

use clap::Args;

use crate::retrain::{self, HistoryEntry, Job, Outcome, Window};
use crate::supervisor::interrupt::Interrupt;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Checks the newest days, trains from the promoted policy, compares the candidate with the incumbent and the best \
                  baseline on held-out days, and promotes what is better by a paired interval. What is served lies in \
                  JOBS/current.safetensors, replaced by rename; JOBS/history.jsonl says what every night did and why. Without \
                  an incumbent the tuned best baseline is promoted.\n\
                  A night that was killed is noted, and its training goes on at the next start. docs/retrain.md has the rule, a \
                  systemd timer and a cron line.\n\n\
                  Exit codes: 0 promoted, 10 kept, 11 the newest day is suspect (nothing was trained), 1 failed, 2 wrong usage, \
                  130 interrupted.\n\n\
                  Examples:\n  \
                  admix retrain --config /etc/admix/retrain.toml\n  \
                  admix retrain --config /etc/admix/retrain.toml --window 2h"
)]
pub struct Retrain {
    /// The job's file (TOML); configs/retrain.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Refresh during the day: train and compare on the newest complete windows of this length, for example 2h, instead of
    /// whole days. The served plan stays; the newest day may still be in progress
    #[arg(long, value_name = "LENGTH")]
    window: Option<Window>,
    /// Print the night's entry in the history as one JSON object
    #[arg(long)]
    json: bool,
}

impl Retrain {
    pub fn run(self) -> anyhow::Result<Exit> {
        let job = Job::load(&self.config).map_err(|e| UsageError(format!("{e:#}")))?;
        retrain::ready(&job).map_err(|e| UsageError(format!("{}: {e:#}", self.config.display())))?;
        // Its runs have their own grace period.
        let interrupt = Interrupt::listen(f64::from(u32::MAX))?;
        let entry = retrain::run(&job, self.window, &interrupt)?;
        if self.json {
            print_json(&entry)?;
        } else {
            print_text(&describe(&entry))?;
        }
        Ok(match entry.outcome {
            Outcome::Promoted => Exit::Done,
            Outcome::Kept => Exit::Kept,
            Outcome::DataSuspect => Exit::Suspect,
            Outcome::Interrupted => Exit::Interrupted,
            _ => Exit::Failed,
        })
    }
}

/// Describes an entry in words.
pub fn describe(entry: &HistoryEntry) -> String {
    let mut text = format!("{}\n", line(entry));
    for comparison in &entry.comparisons {
        text += &format!("    {}\n", comparison.sentence());
    }
    if let Some(values) = &entry.values {
        text += &format!("    {}\n", values.sentence());
    }
    for note in &entry.notes {
        text += &format!("    {note}\n");
    }
    text
}

/// Formats an entry on one line.
pub fn line(entry: &HistoryEntry) -> String {
    let word = match entry.outcome {
        Outcome::Promoted => "PROMOTED",
        Outcome::Kept => "kept",
        Outcome::DataSuspect => "DATA SUSPECT",
        Outcome::Failed => "FAILED",
        Outcome::Interrupted => "interrupted",
        Outcome::Killed => "KILLED",
        Outcome::PromotedByHand => "PROMOTED BY HAND",
        Outcome::RolledBack => "ROLLED BACK",
    };
    let what = entry.window.as_ref().map_or("night".to_owned(), |window| format!("{window} refresh"));
    let night = entry.night.as_ref().map_or_else(String::new, |night| format!(" {what} of {night}"));
    let serves = entry.serves.map_or_else(|| "nothing is served".to_owned(), |n| format!("serves {n}"));
    let policy = entry.policy.as_ref().map_or_else(String::new, |policy| format!(" ({policy})"));
    format!("{:>4} {}{night}: {word}, {serves}{policy}: {}", entry.n, entry.time, entry.reason)
}
