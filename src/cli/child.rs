//! Hidden subcommands: what the main process and the benchmarks start.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::product::bench::{params, ring};
use crate::run::RunDirectory;
use crate::supervisor::children::bind_to_parent;
use crate::{actor, evaluate, learner};

use super::Exit;

#[derive(Debug, Subcommand)]
pub enum Child {
    Actor {
        #[arg(long)]
        id: usize,
        #[command(flatten)]
        run: RunArguments,
    },
    Learner(RunArguments),
    Evaluator(RunArguments),
    BenchRingWriter {
        name: String,
        blocks: u64,
    },
    BenchParamsReader {
        name: String,
        last: u64,
        reader: usize,
    },
}

#[derive(Debug, Args)]
pub struct RunArguments {
    /// Process id of main
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    run_dir: PathBuf,
    /// Common part of the segments' names
    #[arg(long)]
    names: String,
}

impl RunArguments {
    fn open(&self) -> anyhow::Result<RunDirectory> {
        bind_to_parent(self.parent)?;
        RunDirectory::open(&self.run_dir)
    }
}

impl Child {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Actor { id, run } => actor::process::run(&run.open()?, &run.names, id)?,
            Self::Learner(run) => learner::process::run(&run.open()?, &run.names)?,
            Self::Evaluator(run) => evaluate::process::run(&run.open()?, &run.names)?,
            Self::BenchRingWriter { name, blocks } => ring::ring_writer(&name, blocks)?,
            Self::BenchParamsReader { name, last, reader } => params::params_reader(&name, last, reader)?,
        }
        Ok(Exit::Done)
    }
}
