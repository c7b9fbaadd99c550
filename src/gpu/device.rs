//! The device that a process computes on.

use std::path::Path;

use anyhow::bail;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_cuda::{Cuda, CudaDevice};
use cubecl::Runtime as _;
use cubecl::cuda::CudaRuntime;
use libloading::Library;

use super::agreement::{self, Subject};
use super::kernels::keep_kernels;

/// A device that can be used on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// Index of the GPU.
    Cuda(usize),
}

impl Device {
    /// Resolves `auto`, `cpu`, `cuda` or `cuda:INDEX`, as every process of a run does. `auto` is a GPU only if its stored
    /// comparison of `subject` agrees with the CPU ([`agreement`]); the process that starts a run makes the comparison first.
    ///
    /// # Errors
    /// As [`Device::untried`], and if the GPU's stored comparison differs from the CPU.
    pub fn resolve(name: &str, subject: Subject) -> anyhow::Result<Self> {
        let device = Self::untried(name, subject.devices())?;
        let Self::Cuda(first) = device else { return Ok(device) };
        for index in compared(subject, first) {
            match agreement::remembered(subject, index) {
                Some(found) if found.holds() => {}
                _ if name == "auto" => return Ok(Self::Cpu),
                Some(found) => {
                    bail!("device `{name}`: cuda:{index}: {found}; scripts/gpu-check says more, --device cpu works")
                }
                None => {}
            }
        }
        Ok(device)
    }

    /// Resolves a name as [`resolve`](Self::resolve) does, where a setting may be learned on the CPU alone: `auto` is the CPU then.
    ///
    /// # Errors
    /// As [`Device::resolve`]; and with the setting, if a GPU is named.
    pub fn resolve_with(name: &str, subject: Subject, cpu_only: Option<&str>) -> anyhow::Result<Self> {
        match (cpu_only, name) {
            (None, _) | (Some(_), "cpu") => Self::resolve(name, subject),
            (Some(_), "auto") => Ok(Self::Cpu),
            (Some(why), _) => {
                Self::gpu(name)?;
                bail!("device `{name}`: {why} is learned on the CPU alone; use --device cpu or auto")
            }
        }
    }

    /// Returns the device of a name, the first of so many `devices`, without regard to its agreement with the CPU.
    ///
    /// # Errors
    /// If the name is unknown, or names CUDA and a driver, NVRTC, headers or GPUs are missing.
    pub fn untried(name: &str, devices: usize) -> anyhow::Result<Self> {
        let gpu = Self::gpu(name)?;
        match (gpu, gpu.and_then(|first| unusable(first, devices))) {
            (None, _) => Ok(Self::Cpu),
            (Some(index), None) => Ok(Self::Cuda(index)),
            (Some(_), Some(_)) if name == "auto" => Ok(Self::Cpu),
            (Some(_), Some(missing)) => bail!("device `{name}`: {missing}; or use --device cpu"),
        }
    }

    /// Returns the index of the GPU that a name asks for, whether it exists or not.
    fn gpu(name: &str) -> anyhow::Result<Option<usize>> {
        let index = match name.strip_prefix("cuda") {
            None if name == "cpu" => return Ok(None),
            None if name == "auto" => Some(0),
            None => None,
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|i| i.parse().ok()),
        };
        match index {
            Some(index) => Ok(Some(index)),
            None => bail!("unknown device `{name}`; use auto, cpu, cuda or cuda:INDEX"),
        }
    }

    /// Returns the reason why `auto` does not use the GPUs of this machine for what needs so many `devices`; `None` if there is no GPU
    /// or they are used.
    pub fn idle_gpu(devices: usize) -> Option<String> {
        unusable(0, devices).filter(|_| Path::new("/dev/nvidiactl").exists())
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

/// Returns the numbers of `devices` GPUs from `first` on; behind the last one of this machine comes the first.
pub fn from(first: usize, devices: usize) -> Vec<usize> {
    // Without need, CUDA is not asked.
    if devices == 1 { vec![first] } else { around(first, devices, present()) }
}

/// Returns the GPUs, from `first` on, whose updates are compared with the CPU's before `subject` uses them. Each one is compared separately.
pub fn compared(subject: Subject, first: usize) -> Vec<usize> {
    match subject {
        Subject::Policy { ranks } | Subject::ValueRanks { ranks } => from(first, ranks),
        // Rows on several GPUs are compared as a whole.
        Subject::Values { .. } => vec![first],
    }
}

fn around(first: usize, devices: usize, present: usize) -> Vec<usize> {
    (first..first + devices).map(|index| index % present).collect()
}

/// Returns the number of this machine's GPUs. CUDA's driver is there.
fn present() -> usize {
    CudaRuntime::enumerate_devices(0, &()).len()
}

/// Returns the reason why `devices` GPUs from `first` on cannot be used.
fn unusable(first: usize, devices: usize) -> Option<String> {
    let too_few = || (devices > 1).then(present).and_then(|present| too_few(first, devices, present));
    missing().map(Into::into).or_else(too_few)
}

fn too_few(first: usize, devices: usize, present: usize) -> Option<String> {
    let gpus = |count: usize| format!("{count} GPU{}", if count == 1 { "" } else { "s" });
    if devices > present {
        let asked = gpus(devices);
        return Some(format!(
            "{asked} are asked for (learner.ranks, values.ranks or table.devices), and this machine has {present}"
        ));
    }
    (first >= present).then(|| format!("there is no cuda:{first}; this machine has {}", gpus(present)))
}

/// Returns the missing requirement of using a GPU, and its remedy; checked before burn looks for it, which panics.
fn missing() -> Option<&'static str> {
    if !Path::new("/dev/nvidiactl").exists() || !loads(&["libcuda.so.1", "libcuda.so"]) {
        return Some("no usable CUDA driver on this machine (no /dev/nvidiactl or no libcuda.so.1)");
    }
    if !loads(&["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]) {
        return Some(
            "NVRTC (libnvrtc.so), which compiles kernels, is not found: install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, \
             and add its lib folder to LD_LIBRARY_PATH",
        );
    }
    let headers = cubecl::cuda::install::cuda_path().is_some_and(|root| root.join("include/cuda_fp16.h").exists());
    (!headers).then_some(
        "CUDA's headers (include/cuda_fp16.h) are not found: install the CUDA toolkit, or `pip install nvidia-cuda-runtime`, and set \
         CUDA_PATH to the folder above include",
    )
}

/// Whether one of these libraries can be loaded.
fn loads(names: &[&str]) -> bool {
    // SAFETY: these are NVIDIA's libraries; loading them has no side effects.
    names.iter().any(|name| unsafe { Library::new(name) }.is_ok())
}

/// Opens a GPU for computing: its kernels are kept for the next start, and a small computation is checked.
///
/// # Errors
/// If the GPU does not work.
pub fn open(index: usize) -> anyhow::Result<CudaDevice> {
    keep_kernels();
    let device = CudaDevice { index };
    try_out::<Cuda>(&device)?;
    Ok(device)
}

/// Runs a small computation on a GPU: a failing kernel is reported on its own thread only, and leaves memory unchanged.
fn try_out<B: Backend>(device: &B::Device) -> anyhow::Result<()> {
    let numbers = [1.0f32, 2.0, 3.0];
    let doubled = Tensor::<B, 1>::from_data(TensorData::from(numbers), device).mul_scalar(2.0);
    let found = doubled.into_data().into_vec::<f32>().unwrap_or_default();
    anyhow::ensure!(
        found == numbers.map(|x| 2.0 * x),
        "the GPU does not run what is compiled for it (found {found:?}); what failed is above. scripts/gpu-check says more, --device cpu works"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_follow_one_another_and_begin_again() {
        assert_eq!(around(0, 3, 4), [0, 1, 2]);
        assert_eq!(around(2, 3, 4), [2, 3, 0]);
        assert_eq!(around(1, 2, 2), [1, 0]);
        assert_eq!(from(5, 1), [5]);
    }

    #[test]
    fn what_is_missing_is_told_with_numbers() {
        assert_eq!((too_few(0, 2, 2), too_few(1, 2, 2), too_few(3, 4, 8)), (None, None, None));
        let said = too_few(0, 3, 2).unwrap();
        assert!(said.contains("3 GPUs") && said.contains("table.devices") && said.ends_with("has 2"), "{said}");
        let said = too_few(2, 2, 2).unwrap();
        assert!(said.contains("no cuda:2") && said.ends_with("2 GPUs"), "{said}");
    }
}
