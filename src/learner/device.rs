//! Which device the learner computes on.

use std::path::PathBuf;
use std::sync::{Arc, Once};

use anyhow::bail;
use burn::backend::Flex;
use burn_flex::FlexDevice;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use twox_hash::XxHash3_64;

use crate::env::DayModel;
use crate::policy::PolicySpec;
use crate::settings::Settings;

use super::host::HostTrainer;
use super::resident::ResidentTrainer;
use super::trainer::Train;

/// A device that can be used on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// The CPU, worked with as if it were a GPU: slow, for checking what a GPU does.
    CpuResident,
    /// Index of the GPU.
    Cuda(usize),
}

impl Device {
    /// Resolves `auto`, `cpu`, `cpu-resident`, `cuda` or `cuda:INDEX`.
    ///
    /// # Errors
    /// An unknown name, or CUDA where there is no driver.
    pub fn resolve(name: &str) -> anyhow::Result<Self> {
        match name {
            "cpu" => Ok(Self::Cpu),
            "cpu-resident" => Ok(Self::CpuResident),
            "auto" if cuda_driver() => Ok(Self::Cuda(0)),
            "auto" => Ok(Self::Cpu),
            _ => {
                let index = match name.strip_prefix("cuda") {
                    Some("") => Some(0),
                    Some(rest) => rest.strip_prefix(':').and_then(|i| i.parse().ok()),
                    None => None,
                };
                let Some(index) = index else {
                    bail!("unknown device `{name}`; use auto, cpu, cuda, cuda:INDEX or cpu-resident");
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
    ///
    /// # Errors
    /// A replay pool, or a segment, that is too large for the device.
    pub fn trainer(
        self,
        days: &[DayModel],
        spec: &Arc<PolicySpec>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Train>> {
        Ok(match self {
            Self::Cpu => Box::new(HostTrainer::new(days, spec, settings)),
            Self::CpuResident => Box::new(ResidentTrainer::<Flex>::new(days, spec, settings, FlexDevice)?),
            Self::Cuda(index) => {
                keep_kernels();
                let device = burn_cuda::CudaDevice { index };
                Box::new(ResidentTrainer::<burn_cuda::Cuda>::new(days, spec, settings, device)?)
            }
        })
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::CpuResident => f.write_str("cpu-resident"),
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

/// Keeps the kernels that a GPU needs where the next start finds them compiled: under `~/.cache/admix/kernels`, wherever the
/// program is started, apart for each set of GPUs and driver, since one's kernels are not another's. To be called before a GPU is
/// touched; a `cubecl.toml` in the current folder or above it still says all else.
pub fn keep_kernels() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = dirs::cache_dir().map(|cache| cache.join("admix").join("kernels").join(gpus()));
        // What cannot be written to ends the process when the first kernel is compiled.
        let writable = |f: &PathBuf| std::fs::create_dir_all(f).and_then(|()| tempfile::tempfile_in(f)).is_ok();
        let Some(folder) = folder.filter(writable) else {
            tracing::warn!("kernels are compiled at every start: there is no ~/.cache to keep them in");
            return;
        };
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.compilation.cache = Some(CacheConfig::File(folder));
        CubeClRuntimeConfig::set(config);
    });
}

/// A name for what compiled kernels depend on: driver, GPUs, and where the compiler is looked for.
fn gpus() -> String {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let driver = read("/proc/driver/nvidia/version".into());
    let listed = std::fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let information: Vec<String> = listed.map(|gpu| read(gpu.path().join("information"))).collect();
    let mut models: Vec<&str> = information.iter().flat_map(|i| i.lines().find(|l| l.starts_with("Model"))).collect();
    models.sort_unstable();
    let compiler = ["CUDA_PATH", "LD_LIBRARY_PATH"].map(|name| std::env::var(name).unwrap_or_default());
    let all = [&[driver.as_str()], &models[..], &[&compiler[0], &compiler[1]]].concat().join("\n");
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), XxHash3_64::oneshot(all.as_bytes()))
}

/// Sets the number of threads of the tensor operations; 0 = one per core. Only the first call of a process counts.
pub fn set_threads(threads: usize) {
    if let Err(e) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        tracing::debug!("thread pool: {e}");
    }
}
