//! How to serve: which policy and day, where, and what a client may cost.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::score::{DayFiles, ScoreOptions, ServedValues};

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// A run directory, a policy file or `baseline:NAME`; watched for a new one.
    pub policy: String,
    pub plan: Option<PathBuf>,
    pub files: DayFiles,
    /// Values that policies are told.
    pub values: ServedValues,
    pub score: ScoreOptions,
    pub listen: SocketAddr,
    /// Where the counts are kept across restarts.
    pub state: PathBuf,
    /// Where day directories are written.
    pub journal: Option<PathBuf>,
    pub limits: Limits,
}

/// What a client may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// Time for the header of a request to arrive, and for its body; also how long an idle connection is kept.
    pub patience: Duration,
    pub connections: usize,
}

impl Limits {
    /// The largest `body`: a quarter of what bodies may take at once.
    pub const MOST_BODY: usize = 64 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 4 << 20, patience: Duration::from_secs(10), connections: 1024 }
    }
}
