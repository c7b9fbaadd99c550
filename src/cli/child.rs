//! Hidden subcommands that the main process and the benchmarks start.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::bench::{collectives, params, ring};
use crate::run::{RunDirectory, flight};
use crate::shm::Role;
use crate::supervisor::children::{bind_to_parent, name_this_process, queue_for_cores, with_huge_pages};
use crate::{actor, checkpoint, evaluator, learner, rank, reader};

use super::exit::Exit;

#[derive(Debug, Subcommand)]
pub enum Child {
    Actor {
        #[arg(long)]
        id: usize,
        #[command(flatten)]
        run: RunArguments,
    },
    Reader {
        #[arg(long)]
        id: usize,
        #[command(flatten)]
        run: RunArguments,
    },
    Trainer(RunArguments),
    Rank {
        #[arg(long)]
        id: usize,
        #[command(flatten)]
        run: RunArguments,
    },
    ValueCheckpointer(RunArguments),
    Learner {
        /// Rank among several learners
        #[arg(long, default_value_t = 0)]
        id: usize,
        #[command(flatten)]
        run: RunArguments,
    },
    Evaluator(RunArguments),
    Checkpointer(RunArguments),
    BenchRingWriter {
        name: String,
        blocks: u64,
    },
    BenchParamsReader {
        name: String,
        last: u64,
        reader: usize,
    },
    BenchRank {
        name: String,
        rank: usize,
        rounds: usize,
        #[arg(long)]
        nccl: bool,
    },
}

#[derive(Debug, Args)]
pub struct RunArguments {
    /// Process id of main
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    run_dir: PathBuf,
    /// Common prefix of the segments' names
    #[arg(long)]
    names: String,
}

impl RunArguments {
    /// Runs a role's process under its flight recorder.
    fn run(&self, role: Role, process: impl FnOnce(&RunDirectory, &str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        bind_to_parent(self.parent)?;
        name_this_process(role);
        queue_for_cores(role);
        with_huge_pages(role);
        let directory = RunDirectory::open(&self.run_dir)?;
        flight::begin(&directory.flight(), &role.to_string());
        let result = process(&directory, &self.names);
        flight::end(&result);
        result
    }
}

impl Child {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Actor { id, run } => {
                run.run(Role::Actor(id), |directory, names| actor::process::run(directory, names, id))?
            }
            Self::Reader { id, run } => {
                run.run(Role::Reader(id), |directory, names| reader::run(directory, names, id))?
            }
            Self::Trainer(run) => run.run(Role::Trainer, rank::run)?,
            Self::Rank { id, run } => {
                run.run(Role::Rank(id), |directory, names| rank::run_rank(directory, names, id))?
            }
            Self::ValueCheckpointer(run) => run.run(Role::ValueCheckpointer, checkpoint::rows::run)?,
            Self::Learner { id, run } => {
                run.run(Role::learner(id), |directory, names| learner::process::run(directory, names, id))?
            }
            Self::Evaluator(run) => run.run(Role::Evaluator, evaluator::process::run)?,
            Self::Checkpointer(run) => run.run(Role::Checkpointer, checkpoint::run)?,
            Self::BenchRingWriter { name, blocks } => ring::ring_writer(&name, blocks)?,
            Self::BenchParamsReader { name, last, reader } => params::params_reader(&name, last, reader)?,
            Self::BenchRank { name, rank, rounds, nccl } => collectives::rank(&name, rank, rounds, nccl)?,
        }
        Ok(Exit::Done)
    }
}
