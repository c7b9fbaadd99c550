//! Means over ranks that have a GPU each, by NCCL.
//!
//! Between the GPUs of a machine NCCL takes the fastest link there is, and between machines the fastest network; shared memory takes
//! everything through the host. NCCL's sum has the same bytes on every rank, but its order is NCCL's: it differs from that of shared
//! memory by rounding, and may change with the number of GPUs, their links and NCCL's version.
//!
//! A call for a rank that is no more would wait without end. So a mean is asked for only after all ranks have told each other that they
//! are there, and the caller looks after them while it waits.
//!
//! No machine with several GPUs has run this yet.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use cudarc::driver::{CudaContext, CudaSlice};
use cudarc::nccl::{Comm, Id, ReduceOp, result::NcclError};

use crate::shm::{Seat, Written};

use super::transport::Transport;

/// Length of the id of a group of ranks.
pub const ID_BYTES: usize = 128;
/// How often a waiting rank looks after the others.
const LOOK: Duration = Duration::from_micros(50);

/// One rank's part in means over all. What ranks say goes through shared memory.
pub struct Nccl {
    seat: Seat,
    comm: Comm,
    /// The values on the device.
    values: CudaSlice<f32>,
}

/// Returns what is missing for NCCL, and its remedy.
pub fn missing() -> Option<&'static str> {
    // SAFETY: this loads NVIDIA's library and unloads it again.
    let present = unsafe { cudarc::nccl::sys::is_culib_present() };
    (!present).then_some(
        "NCCL (libnccl.so) is not found: install libnccl-dev, or `pip install nvidia-nccl-cu13` and link its libnccl.so.2 as libnccl.so in \
         a folder of LD_LIBRARY_PATH",
    )
}

fn failed(NcclError(code): NcclError) -> anyhow::Error {
    anyhow!("{code:?}; NCCL_DEBUG=INFO says more")
}

impl Nccl {
    /// Joins the ranks of `seat`, with GPU `device`. All ranks call it before any exchange; rank 0 gives the others the id of their group.
    /// Waits until all have joined.
    ///
    /// # Errors
    /// [`Broken`](crate::shm::Broken); no NCCL; a GPU that does not work.
    pub fn join(mut seat: Seat, device: usize) -> anyhow::Result<Self> {
        if let Some(missing) = missing() {
            return Err(anyhow!(missing));
        }
        let (rank, ranks) = (seat.rank(), seat.ranks());
        let made = if rank == 0 { Some(Id::new().map_err(failed).context("NCCL makes no id")?) } else { None };
        let mine = made.as_ref().map_or(&[][..], |id| bytemuck::cast_slice(id.internal()));
        let mut id = [0; ID_BYTES];
        seat.exchange(&mut [], mine, &mut |from, theirs| {
            if from == 0 && theirs.len() == ID_BYTES {
                id.copy_from_slice(bytemuck::cast_slice(theirs));
            }
        })?;
        let stream = CudaContext::new(device)?.new_stream()?;
        let values = stream.alloc_zeros(seat.room())?;
        let comm = Comm::from_rank(stream, rank, ranks, Id::uninit(id)).map_err(failed);
        let comm = comm.with_context(|| format!("rank {rank} cannot join the others by NCCL"))?;
        Ok(Self { seat, comm, values })
    }

    /// Replaces `values` by their mean over the ranks, all of which are there.
    fn average(&mut self, values: &mut [f32], look: &dyn Fn()) -> anyhow::Result<()> {
        let Self { seat, comm, values: all } = self;
        ensure!(values.len() <= all.len(), "{} values and room for {}", values.len(), all.len());
        if values.is_empty() {
            return Ok(());
        }
        let stream = comm.stream();
        let mut on_device = all.slice_mut(..values.len());
        stream.memcpy_htod(values, &mut on_device)?;
        comm.all_reduce_in_place(&mut on_device, &ReduceOp::Sum).map_err(failed)?;
        // Copying to the host would wait for the sum, and look after nobody.
        let summed = stream.record_event(None)?;
        while !summed.try_is_complete()? {
            seat.check()?;
            look();
            std::thread::sleep(LOOK);
        }
        stream.memcpy_dtoh(&on_device, values)?;
        stream.synchronize()?;
        let share = 1.0 / comm.world_size() as f32;
        values.iter_mut().for_each(|value| *value *= share);
        Ok(())
    }
}

impl Transport for Nccl {
    fn seat(&self) -> &Seat {
        &self.seat
    }

    fn exchange_all(
        &mut self,
        values: &mut [f32],
        mine: &[u8],
        read: &mut dyn FnMut(&[&[u8]]),
        look: &dyn Fn(),
    ) -> anyhow::Result<()> {
        self.seat.exchange_while(&mut [], &mut |area| Written::copy(mine, area), read, look)?;
        self.average(values, look)
    }
}
