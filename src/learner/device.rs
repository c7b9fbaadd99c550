//! Device that the learner computes on.

use std::sync::Arc;

use cubecl::cuda::CudaRuntime;

use crate::env::DayModel;
use crate::gpu::agreement::Subject;
use crate::gpu::device;
use crate::policy::PolicySpec;
use crate::settings::{Settings, Target};

use super::host::HostTrainer;
use super::resident::ResidentTrainer;
use super::trainer::Train;

pub use crate::gpu::Device;

impl Device {
    /// Returns the device that a run's settings ask for. `auto` is the CPU if the settings need a feature that GPUs lack.
    ///
    /// # Errors
    /// As [`Device::resolve`]; or if a GPU is named and the settings need a feature that it lacks, with the reason.
    pub fn of(settings: &Settings) -> anyhow::Result<Self> {
        Self::resolve_with(&settings.run.device, Self::subject(settings), Self::cpu_only(settings))
    }

    /// Returns the device of a rank of the learner: each has a GPU of its own, or all have the CPU.
    ///
    /// # Errors
    /// As [`Device::of`].
    pub fn of_rank(settings: &Settings, rank: usize) -> anyhow::Result<Self> {
        Ok(match Self::of(settings)? {
            Self::Cuda(first) => Self::Cuda(device::from(first, settings.learner.ranks)[rank]),
            Self::Cpu => Self::Cpu,
        })
    }

    /// Returns the kind of training that a run's settings ask for.
    pub fn subject(settings: &Settings) -> Subject {
        Subject::Policy { ranks: settings.learner.ranks }
    }

    /// Returns the setting that only the CPU can learn, if any.
    pub fn cpu_only(settings: &Settings) -> Option<&'static str> {
        match (settings.learner.target, settings.policy.outlook) {
            (Target::Hindsight, _) => Some("learner.target = \"hindsight\""),
            (Target::Both, _) => Some("learner.target = \"both\""),
            (Target::Return, true) => Some("policy.outlook"),
            (Target::Return, false) => None,
        }
    }

    /// Builds the trainer on this device.
    ///
    /// # Errors
    /// If the replay pool or a segment is too large for the device, or the GPU does not work.
    pub fn trainer(
        self,
        days: &[DayModel],
        spec: &Arc<PolicySpec>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Train>> {
        Ok(match self {
            Self::Cpu => Box::new(HostTrainer::new(days, spec, settings)),
            Self::Cuda(index) => {
                let device = device::open(index)?;
                Box::new(ResidentTrainer::<CudaRuntime>::new(days, spec, settings, device)?)
            }
        })
    }
}

/// Sets the number of threads of the tensor operations; 0 = one per core. Only the first call of a process counts.
pub fn set_threads(threads: usize) {
    if let Err(e) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        tracing::debug!("thread pool: {e}");
    }
}
