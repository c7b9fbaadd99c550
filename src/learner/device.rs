//! Which device the learner computes on.

use std::sync::Arc;

use anyhow::bail;
use burn::backend::{Autodiff, Flex};

use crate::env::DayModel;
use crate::policy::PolicySpec;
use crate::settings::Settings;

use super::trainer::{Train, Trainer};

/// The CPU backend.
pub type Cpu = Autodiff<Flex>;
/// The CUDA backend.
pub type Cuda = Autodiff<burn_cuda::Cuda>;

/// Parts of a batch on the CPU: small enough for a core's cache, enough for a few cores.
const CPU_SHARDS: usize = 4;

/// A device that can be used on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// Index of the GPU.
    Cuda(usize),
}

impl Device {
    /// Resolves `auto`, `cpu`, `cuda` or `cuda:INDEX`.
    ///
    /// # Errors
    /// An unknown name, or CUDA where there is no driver.
    pub fn resolve(name: &str) -> anyhow::Result<Self> {
        match name {
            "cpu" => Ok(Self::Cpu),
            "auto" if cuda_driver() => Ok(Self::Cuda(0)),
            "auto" => Ok(Self::Cpu),
            _ => {
                let index = match name.strip_prefix("cuda") {
                    Some("") => Some(0),
                    Some(rest) => rest.strip_prefix(':').and_then(|i| i.parse().ok()),
                    None => None,
                };
                let Some(index) = index else {
                    bail!("unknown device `{name}`; use auto, cpu, cuda or cuda:INDEX");
                };
                if !cuda_driver() {
                    bail!(
                        "device `{name}`: no usable CUDA driver on this machine (no /dev/nvidiactl or no libcuda.so.1); use --device cpu"
                    );
                }
                Ok(Self::Cuda(index))
            }
        }
    }

    /// Builds the trainer on this device.
    pub fn trainer(self, days: &[DayModel], spec: &Arc<PolicySpec>, settings: &Settings) -> Box<dyn Train> {
        match self {
            Self::Cpu => Box::new(Trainer::<Cpu>::new(days, spec, settings, Default::default(), CPU_SHARDS)),
            Self::Cuda(index) => {
                let device = burn_cuda::CudaDevice { index };
                Box::new(Trainer::<Cuda>::new(days, spec, settings, device, 1))
            }
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Whether a CUDA driver is there, without loading it: burn panics where it is not.
fn cuda_driver() -> bool {
    let library = || {
        let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        std::env::split_paths(&listed)
            .chain(
                ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"]
                    .map(Into::into),
            )
            .any(|folder| folder.join("libcuda.so.1").exists())
    };
    std::path::Path::new("/dev/nvidiactl").exists() && library()
}

/// Sets the number of threads of the tensor operations; 0 = one per core. Only the first call of a process counts.
pub fn set_threads(threads: usize) {
    if let Err(e) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        tracing::debug!("thread pool: {e}");
    }
}
