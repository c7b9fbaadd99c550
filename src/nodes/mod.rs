//! The machines of a job: which one this is, what their main processes tell each other, and who carries what ranks exchange.
//!
//! A node is one main process with its own ranks and shared memory, and with readers and a table, or actors and rings. `mpirun` starts
//! one for each machine; without it a job has one node. MPI does the networking; we have no protocol of our own.
//!
//! | file | what it is |
//! |---|---|
//! | `node` | a node, the ranks of its job, and how a job fails |
//! | `mpi` | the thread that calls MPI; only with the cargo feature `mpi` |
//!
//! **One thread calls MPI**, from its initialisation to its end, and it belongs to the main process. Main hands it what to tell the other
//! nodes, and the seats of their ranks in its exchange ([`Remote`]). Ranks, readers and actors never call MPI: they are new executions
//! of the program.

#[cfg(feature = "mpi")]
mod mpi;
mod node;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::shm::Remote;

pub use node::{JobError, MOST_BYTES, Node, World};

/// This node's part in its job.
pub struct Job {
    node: Node,
    #[cfg(feature = "mpi")]
    link: Option<mpi::Link>,
}

impl Job {
    /// A job of one node.
    pub fn of_one_node() -> Self {
        Self {
            node: Node::default(),
            #[cfg(feature = "mpi")]
            link: None,
        }
    }

    /// Joins the job that this process was started for: a job of one node, unless a launcher of MPI started several processes together.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn join() -> Result<Self, JobError> {
        #[cfg(feature = "mpi")]
        if is_launched() {
            let (link, node) = mpi::Link::open()?;
            if let Some(started) = started_together().filter(|started| *started != node.of) {
                return Err(JobError::OtherSize { started, joined: node.of });
            }
            return Ok(Self { node, link: Some(link) });
        }
        one_machine().map_err(|processes| JobError::NotBuilt { processes })?;
        Ok(Self::of_one_node())
    }

    pub fn node(&self) -> Node {
        self.node
    }

    /// Tells all nodes `mine`; returns what each of them told, in their order. All nodes call it, and wait for the last one.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn tell<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>, JobError> {
        let bytes = serde_json::to_vec(mine).expect("plain data");
        let decode = |(node, bytes): (usize, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|e| JobError::Malformed { node, why: e.to_string() })
        };
        self.tell_bytes(bytes)?.into_iter().enumerate().map(decode).collect()
    }

    /// As [`Job::tell`], of bytes.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn tell_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, JobError> {
        #[cfg(feature = "mpi")]
        if let Some(link) = &self.link {
            return link.tell(mine);
        }
        Ok(vec![mine])
    }

    /// Carries what ranks exchange between the nodes until the guard is dropped. `None` in a job of one node, whose ranks exchange by
    /// themselves; `remote` is not called then.
    ///
    /// # Errors
    /// What `remote` says.
    pub fn carry<E>(&self, remote: impl FnOnce() -> Result<Remote, E>) -> Result<Option<Carrying<'_>>, E> {
        #[cfg(feature = "mpi")]
        if let Some(link) = self.link.as_ref().filter(|_| !self.node.is_alone()) {
            link.carry(remote()?);
            return Ok(Some(Carrying(link)));
        }
        let _ = remote;
        Ok(None)
    }

    /// Waits for the other nodes and leaves the job. If a `Job` is dropped without this call, this process ends without them, and the
    /// launcher ends them.
    pub fn leave(self) {
        #[cfg(feature = "mpi")]
        if let Some(link) = self.link {
            link.leave();
        }
    }
}

/// Messages of ranks are carried while this lives.
#[cfg(feature = "mpi")]
pub struct Carrying<'a>(&'a mpi::Link);

#[cfg(feature = "mpi")]
impl Carrying<'_> {
    /// Ends the carrying after all ranks have ended well. Dropping it is for failures.
    pub fn end(self) {
        self.0.end_carrying();
        std::mem::forget(self);
    }
}

#[cfg(feature = "mpi")]
impl Drop for Carrying<'_> {
    fn drop(&mut self) {
        self.0.stop_carrying();
    }
}

/// Nothing is carried where MPI is not built in.
#[cfg(not(feature = "mpi"))]
pub enum Carrying<'a> {
    Never(std::convert::Infallible, std::marker::PhantomData<&'a Job>),
}

#[cfg(not(feature = "mpi"))]
impl Carrying<'_> {
    pub fn end(self) {}
}

/// Checks that no launcher of MPI started several processes of a command that runs on one machine alone.
///
/// # Errors
/// The number of processes.
pub fn one_machine() -> Result<(), usize> {
    match started_together() {
        Some(processes) if processes > 1 => Err(processes),
        _ => Ok(()),
    }
}

/// Processes that a launcher of MPI started together with this one, as it says in the environment.
fn started_together() -> Option<usize> {
    let number = |key: &str| std::env::var(key).ok()?.parse().ok();
    number("OMPI_COMM_WORLD_SIZE")
        .or_else(|| number("PMI_SIZE"))
        .or_else(|| std::env::var_os("PMIX_RANK").and_then(|_| number("SLURM_NTASKS")))
}

/// Whether a launcher of MPI started this process.
#[cfg(feature = "mpi")]
fn is_launched() -> bool {
    ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"].iter().any(|key| std::env::var_os(key).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_node_by_node() {
        let world = |index| Node { index, of: 3 }.world(2);
        assert_eq!([0, 1, 2].map(|node| world(node).first), [0, 2, 4]);
        assert_eq!((world(1).ranks, Node::default().world(4)), (6, World { ranks: 4, first: 0, local: 4 }));
    }

    #[test]
    fn a_job_of_one_node_tells_itself() {
        let job = Job::join().unwrap();
        assert!(job.node().is_alone() && job.node().is_first());
        assert_eq!(job.tell(&(7, "x".to_owned())).unwrap(), [(7, "x".to_owned())]);
        job.leave();
    }
}
