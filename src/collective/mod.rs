//! What the ranks of a training compute together, above the exchange that carries it.
//!
//! The exchange is [`crate::shm::Exchange`]: a mean of floats, and bytes that each rank gives to all, between processes of one machine. It
//! sums in the order of the ranks, so all ranks get the same bytes; a rank that dies is an error in all others, never a wait without end.
//! [`crate::nodes`] carries it beyond one machine. Where each rank has a GPU, [`nccl`] can average in its place.
//!
//! | file | what it is |
//! |---|---|
//! | [`rows`] | gradients of embedding rows: merged, encoded, summed over ranks, divided |
//! | [`overlap`] | the overlapped mode: which global gradient is used when, and how |
//! | [`nccl`] | means over ranks that have a GPU each |

pub mod nccl;
pub mod overlap;
pub mod rows;
