//! The run directory of a node.

use std::path::Path;

use crate::nodes::Job;
use crate::run::RunDirectory;
use crate::supervisor::resume::{self, Resume};

use super::exit::UsageError;

/// Opens this node's run directory: that of the first node is what `first` opens; those of the others lie below it, in `root`, which the
/// user named. `resumes` says whether they may hold a run.
///
/// # Errors
/// [`UsageError`] where several nodes have no `root`; a directory that cannot be used.
pub fn directory(
    job: &Job,
    root: Option<&Path>,
    resumes: bool,
    first: impl FnOnce() -> anyhow::Result<RunDirectory>,
) -> anyhow::Result<RunDirectory> {
    let node = job.node();
    if node.is_alone() {
        return first();
    }
    let root = root.ok_or_else(|| UsageError("several nodes share a run directory: name it with --run-dir".into()))?;
    let first = node.is_first().then(first).transpose()?;
    job.tell(&())?;
    let root = root.join(format!("node-{}", node.index));
    match first {
        Some(directory) => Ok(directory),
        None if resumes => resume::open(&root, Resume::Auto),
        None => RunDirectory::create(&root),
    }
}
