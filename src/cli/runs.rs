//! `admix runs`: lists and compares the runs in a folder.

use std::path::PathBuf;

use clap::Args;

use crate::runs;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Of each run: when it started, how it ended, its validation and test shares and its verdict. Below: the keys in \
                  which the configurations differ, and the paired differences of the chosen policies' shares on the reported \
                  days that runs have in common, with intervals. Everything comes from the run directories; no log is opened.\n\n\
                  Example: admix runs runs --against quickstart-20261120-030000"
)]
pub struct Runs {
    /// Folder of run directories
    #[arg(value_name = "DIR", default_value = "runs")]
    folder: PathBuf,
    /// Compare with this run, named as in the list; the oldest one with reported days by default
    #[arg(long, value_name = "RUN")]
    against: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Runs {
    pub fn run(self) -> anyhow::Result<Exit> {
        let found = runs::list(&self.folder, self.against.as_deref()).map_err(|e| UsageError(format!("{e:#}")))?;
        if self.json {
            print_json(&found)?
        } else {
            print_text(&runs::render(&found))?
        }
        Ok(Exit::Done)
    }
}
