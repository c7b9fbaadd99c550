//! What the ranks of a training compute together, above the exchange that carries it.
//!
//! An exchange is a mean of floats, and bytes that each rank gives to all. A rank that dies is an error in all others, never a wait without
//! end. Three engines carry it:
//!
//! | engine | carries | order of a sum |
//! |---|---|---|
//! | shared memory, [`crate::shm::Exchange`] | everything between processes of one machine | that of the ranks: all get the same bytes |
//! | NCCL, [`nccl`] | means, where each rank has a GPU; what ranks say stays in shared memory | NCCL's own |
//! | MPI, [`crate::nodes`] | what the ranks of one machine give to those of others | that of the ranks |
//!
//! A rank knows its [`Transport`] alone, the first or the second. MPI may be called by one thread of a node only, so main calls it, and takes
//! the seats of the ranks of other machines in the exchange of its own: to a rank they are ranks like any other.
//!
//! | file | what it is |
//! |---|---|
//! | [`rows`] | gradients of the embedding rows of a rank's shard, encoded |
//! | [`merger`] | those of all ranks, summed and divided |
//! | [`hints`] | what a rank tells the writer of its table beside gradients |
//! | [`shares`] | which rank a sample goes to, and how evenly busy that makes the ranks |
//! | [`overlap`] | the overlapped mode: which global gradient is used when, and how |
//! | `transport` | how a rank exchanges, whatever carries it |
//! | [`nccl`] | means over ranks that have a GPU each |

pub mod hints;
pub mod merger;
pub mod nccl;
pub mod overlap;
pub mod rows;
pub mod shares;
mod transport;

use crate::shm::Seat;

use nccl::Nccl;

pub use transport::Transport;

/// Opens the transport of a rank: NCCL with GPU `nccl`, else shared memory. All ranks call it, before any exchange.
///
/// # Errors
/// Those of [`Nccl::join`].
pub fn open(seat: Seat, nccl: Option<usize>) -> anyhow::Result<Box<dyn Transport>> {
    Ok(match nccl {
        Some(gpu) => Box::new(Nccl::join(seat, gpu)?),
        None => Box::new(seat),
    })
}
