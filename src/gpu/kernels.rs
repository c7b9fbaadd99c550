//! Cache of this machine's GPUs: compiled kernels, and the comparisons with the CPU.

use std::path::PathBuf;
use std::sync::Once;

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use twox_hash::XxHash3_64;

use crate::files::private_folder;

/// Returns the cache folder of this machine's GPUs: `~/.cache/admix/kernels`, wherever the program is started, with a subfolder
/// for each set of GPUs and driver, because kernels are specific to them. `None` if it is not writable, or if others could
/// write there, because its content is executed.
pub fn kernel_folder() -> Option<PathBuf> {
    let cache = dirs::cache_dir()?.join("admix").join("kernels");
    private_folder(&cache, &gpus()).ok().filter(|folder| tempfile::tempfile_in(folder).is_ok())
}

/// Stores compiled kernels for the next start. Must be called before a GPU is used; a `cubecl.toml` in the current folder
/// or above it still determines all other options.
pub fn keep_kernels() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A folder that cannot be written ends the process when the first kernel is compiled.
        let Some(folder) = kernel_folder() else {
            tracing::warn!("kernels are compiled at every start: there is no ~/.cache to keep them in");
            return;
        };
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.compilation.cache = Some(CacheConfig::File(folder));
        CubeClRuntimeConfig::set(config);
    });
}

/// Returns a name for everything that compiled kernels depend on: driver, GPUs, and the compiler's search path.
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
