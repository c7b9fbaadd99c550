//! `admix study` and `admix sweep`: compare policies over worlds and seeds in one table.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use crate::study::sweep::Ranking;
use crate::study::{self, Done, End, Options, Shard, Sweep as Trials};
use crate::supervisor::interrupt::Interrupt;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(
    after_help = "Everything is kept under --out and used again where settings and days are the same: a study that \
                        was interrupted goes on. Written there: results.jsonl (one row per world, day, stress, policy and \
                        seed), learning.jsonl, curves.svg, frontier.jsonl, table.md; worlds/, plans/, runs/.\n\
                        --shard I/N makes a part of the plans and runs and no table: start one on each of N machines with the same \
                        --out, then the command without --shard, which finds them. docs/sweeps-and-shards.md has a Slurm \
                        array and a Kubernetes job.\n\
                        Exit code 1 if a run failed; the table holds the others.\n\n\
                        Example: admix study --config configs/study/smoke.toml --jobs 2"
)]
pub struct Study {
    /// Study file (TOML); configs/study/ has examples
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A sweep file is a study file with either [grid] (lists of values for configuration keys; every combination is a trial) or \
                        [random] (trials, seed, and [random.keys] with lists, uniform, log or int ranges), and `seeds`. Without a \
                        [[world]] the days are those of its configuration. configs/sweep/ has examples.\n\
                        Trials are ranked on the validation days; the reported days (data.test) show what the choice is worth.\n\
                        Everything is kept under --out and used again, so that an interrupted sweep goes on and one that gets more values \
                        trains only those. Written there: sweep.csv, sweep.md, and what a study writes. --shard as for `study`.\n\
                        Exit code 1 if a run failed; the table holds the others.\n\n\
                        Example: admix sweep --config configs/sweep/grid.toml --jobs 2"
)]
pub struct Sweep {
    /// Sweep file (TOML); configs/sweep/ has examples
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Output folder. Default: studies/<config name>, for sweeps sweeps/<config name>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder of relative log directories, instead of the file's `data`
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Concurrent trainings (each has its own processes), and threads for evaluation
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Make part I of N of the plans and runs, from 1/N to N/N, and no table
    #[arg(long, value_name = "I/N", conflicts_with = "evaluate_only")]
    shard: Option<Shard>,
    /// Train nothing: evaluate the finished runs again
    #[arg(long)]
    evaluate_only: bool,
    /// Print the results as one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

fn usage(e: anyhow::Error) -> UsageError {
    UsageError(format!("{e:#}"))
}

impl How {
    /// Executes a study; `shown` prints its results.
    fn carry_out(
        &self,
        config: &Path,
        kind: &str,
        study: &study::Study,
        shown: impl FnOnce(&Done, &str, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Exit> {
        let title = config.file_stem().map_or_else(|| kind.to_owned(), |s| s.to_string_lossy().into_owned());
        let folder = if kind == "sweep" { "sweeps" } else { "studies" };
        let out = self.out.clone().unwrap_or_else(|| PathBuf::from(folder).join(&title));
        let options = Options { out, jobs: self.jobs, evaluate_only: self.evaluate_only, shard: self.shard };
        // Its runs have their own grace period.
        let interrupt = Interrupt::listen(f64::from(u32::MAX))?;
        interrupt.supervise();
        let failures = match study::run(&title, study, &options, &interrupt)? {
            End::Interrupted => {
                say!("interrupted; the same command goes on from what is finished");
                return Ok(Exit::Interrupted);
            }
            End::Made { there, failures } => {
                let shard = self.shard.map(|shard| shard.to_string()).unwrap_or_default();
                say!("shard {shard}: {there} plans and runs are in {}", options.out.display());
                say!("when all shards are there, the command without --shard makes the table");
                failures
            }
            End::Done(done) => {
                shown(&done, &title, &options.out)?;
                say!("written to {}", options.out.display());
                done.failures
            }
        };
        for failure in &failures {
            say!("missing: {failure}");
        }
        Ok(if failures.is_empty() { Exit::Done } else { Exit::Failed })
    }
}

impl Study {
    pub fn run(self) -> anyhow::Result<Exit> {
        let study = study::Study::load(&self.config, self.how.data.as_deref()).map_err(usage)?;
        self.how.carry_out(&self.config, "study", &study, |done, _, _| match self.how.json {
            true => print_json(&done.report),
            false => print_text(&done.report.table),
        })
    }
}

impl Sweep {
    pub fn run(self) -> anyhow::Result<Exit> {
        let sweep = Trials::load(&self.config, self.how.data.as_deref()).map_err(usage)?;
        say!("{} trials of {}", sweep.trials.len(), sweep.keys.join(", "));
        self.how.carry_out(&self.config, "sweep", &sweep.study, |done, title, out| {
            let ranking = Ranking::of(&sweep, &done.report);
            let table = ranking.render(title);
            ranking.write_csv(&out.join("sweep.csv"))?;
            let path = out.join("sweep.md");
            std::fs::write(&path, &table).with_context(|| format!("cannot write {}", path.display()))?;
            if self.how.json { print_json(&ranking) } else { print_text(&table) }
        })
    }
}
