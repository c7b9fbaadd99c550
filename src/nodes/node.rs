//! A node, the ranks of its job, and how a job fails.

use serde::{Deserialize, Serialize};

/// A node among those of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// The ranks of a job, which number them node by node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    pub ranks: usize,
    /// The first rank of this node, and how many it has.
    pub first: usize,
    pub local: usize,
}

impl World {
    /// Whether all ranks are on one node.
    pub fn is_one_node(self) -> bool {
        self.local == self.ranks
    }
}

impl Default for Node {
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl Node {
    /// Whether it is the node that evaluates and writes the model.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    pub fn is_alone(self) -> bool {
        self.of == 1
    }

    /// The ranks of the job, where each node has `local` ones.
    pub fn world(self, local: usize) -> World {
        World { ranks: self.of * local, first: self.first_of(local), local }
    }

    /// Number of this node's first process among those of all nodes, where each has `local` ones.
    pub fn first_of(self, local: usize) -> usize {
        self.index * local
    }
}

/// Most bytes of a message of all nodes together: MPI counts them in 32 bits.
pub const MOST_BYTES: u64 = i32::MAX as u64;

/// A job that cannot begin, or that has lost a node.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(
        "{processes} processes were started together, and this admix is built without MPI: build it with --features mpi, or start one \
         process"
    )]
    NotBuilt { processes: usize },
    #[error("MPI cannot be initialised")]
    NotInitialised,
    #[error(
        "the launcher started {started} processes, and in MPI there are {joined}: mpirun and the MPI that admix was built with are not of \
         the same installation"
    )]
    OtherSize { started: usize, joined: usize },
    #[error("node {node} was training while this one had ended: their logs say why")]
    OutOfStep { node: usize },
    #[error("the thread that calls MPI has ended; see above")]
    Ended,
    #[error("a message of node {node} is malformed: {why}")]
    Malformed { node: usize, why: String },
}
