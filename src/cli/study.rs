//! `admix study`: worlds x seeds x policies, one table.

use std::path::PathBuf;

use clap::Args;

use crate::study::{self, Done, Options};
use crate::supervisor::interrupt::Interrupt;

use super::{Exit, UsageError, print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Everything is kept under --out and used again where settings and days are the same: a study that \
                        was interrupted goes on. Written there: results.jsonl (one row per world, day, stress, policy and \
                        seed), learning.jsonl, frontier.jsonl, table.md; worlds/, plans/, runs/.\n\
                        Exit code 1 if a run failed; the table holds the others."
)]
pub struct Study {
    /// Study file (TOML); configs/study/ has examples
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where everything of the study goes. Default: studies/<config name>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder of relative log directories, in place of the study file's `data`
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Trainings at a time (each has processes of its own), and threads that evaluate
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Train nothing: evaluate the finished runs again
    #[arg(long)]
    evaluate_only: bool,
    /// Print the figures as one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

impl Study {
    pub fn run(self) -> anyhow::Result<Exit> {
        let study = study::Study::load(&self.config, self.data.as_deref()).map_err(|e| UsageError(format!("{e:#}")))?;
        let title = self.config.file_stem().map_or_else(|| "study".into(), |s| s.to_string_lossy().into_owned());
        let out = self.out.unwrap_or_else(|| PathBuf::from("studies").join(&title));
        let options = Options { out, jobs: self.jobs, evaluate_only: self.evaluate_only };
        // Its runs have a time of grace of their own.
        let interrupt = Interrupt::listen(f64::from(u32::MAX))?;
        interrupt.supervise();
        match study::run(&title, &study, &options, &interrupt)? {
            None => {
                say!("interrupted; the same command goes on from what is finished");
                Ok(Exit::Interrupted)
            }
            Some(Done { report, failures }) => {
                if self.json {
                    print_json(&report)?;
                } else {
                    print_text(&report.table)?;
                }
                say!("written to {}", options.out.display());
                for failure in &failures {
                    say!("missing: {failure}");
                }
                Ok(if failures.is_empty() { Exit::Done } else { Exit::Failed })
            }
        }
    }
}
