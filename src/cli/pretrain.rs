//! `admix pretrain`: learns a policy to start from, over the worlds of a world file.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::files;
use crate::pretrain::{self, Pretraining};
use crate::synth;

use super::exit::{Exit, UsageError};

#[derive(Debug, Args)]
#[command(after_help = "scripts/pretrain and scripts/pretrain-volume make the starts that come with this program.\n\n\
                        Example: admix pretrain --config configs/synth/volatile.toml --seed 100 --worlds 200 \\\n    \
                        --out start.safetensors")]
pub struct Pretrain {
    /// World file from which every world is drawn
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Seed of the first world; the others have the following seeds
    #[arg(long, default_value_t = 100)]
    seed: u64,
    /// Number of worlds
    #[arg(long, default_value_t = 200)]
    worlds: usize,
    /// Episodes per world
    #[arg(long, default_value_t = 4)]
    episodes: usize,
    /// Passes of the regression over all episodes
    #[arg(long, default_value_t = 10)]
    epochs: usize,
    /// Worlds processed in parallel [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Learn instead how volume deviates from its forecast, which the planner's volume model starts from; `--episodes` and
    /// `--epochs` have no effect then, and the file is JSON
    #[arg(long)]
    volume: bool,
    /// Policy file to write, for `train --from`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Pretrain {
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.worlds == 0 || self.episodes == 0 || self.epochs == 0 {
            return Err(UsageError("--worlds, --episodes and --epochs must be at least 1".into()).into());
        }
        let world = synth::load(&self.config).map_err(|e| UsageError(format!("{e:#}")))?;
        files::check_place(&self.out)
            .map_err(|e| UsageError(format!("cannot write {}: {e}; name another --out", self.out.display())))?;
        let scratch = tempfile::tempdir()?;
        if self.volume {
            let moments = pretrain::volume::moments(&world, self.seed, self.worlds, scratch.path())?;
            std::fs::write(&self.out, serde_json::to_vec(&moments)?)
                .with_context(|| format!("cannot write {}", self.out.display()))?;
            say!("moments of {} days written to {}", moments.days().round(), self.out.display());
            return Ok(Exit::Done);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pretraining = Pretraining {
            world,
            first_seed: self.seed,
            worlds: self.worlds,
            episodes: self.episodes,
            epochs: self.epochs,
            scratch: scratch.path().to_owned(),
            threads: self.threads.unwrap_or(cores).max(1),
        };
        pretraining.run()?.write(&self.out)?;
        say!("start written to {}", self.out.display());
        Ok(Exit::Done)
    }
}
