//! Stands in for NVIDIA's driver where there is no GPU: its memory is the host's, and kernels are loaded and launched but not run.
//!
//! Everything on the host's side of a driver is then as with a GPU: NVRTC compiles the kernels, buffers are managed, launches are put
//! together and counted. Only functions that the CUDA runtime calls are here; another one that it looks for ends the process with its
//! name. The architecture is that of an H100 and an H200.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::copy_nonoverlapping;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Status = c_int;
const SUCCESS: Status = 0;
const OUT_OF_MEMORY: Status = 2;

static NEXT: AtomicU64 = AtomicU64::new(1);
static MODULES: AtomicU64 = AtomicU64::new(0);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
static BLOCKS: Mutex<Option<HashMap<usize, Layout>>> = Mutex::new(None);

/// Kernels that were loaded so far.
#[unsafe(no_mangle)]
pub extern "C" fn standin_modules() -> u64 {
    MODULES.load(Relaxed)
}

/// Kernels that were launched so far.
#[unsafe(no_mangle)]
pub extern "C" fn standin_launches() -> u64 {
    LAUNCHES.load(Relaxed)
}

fn handle(out: *mut *mut c_void) -> Status {
    // SAFETY: the runtime passes a place for a handle.
    unsafe { *out = NEXT.fetch_add(1, Relaxed) as *mut c_void };
    SUCCESS
}

fn allocate(bytes: usize) -> *mut u8 {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), 512) else { return std::ptr::null_mut() };
    // SAFETY: the layout has a size.
    let block = unsafe { alloc_zeroed(layout) };
    if !block.is_null() {
        BLOCKS.lock().unwrap().get_or_insert_default().insert(block as usize, layout);
    }
    block
}

fn free(block: usize) -> Status {
    if let Some(layout) = BLOCKS.lock().unwrap().get_or_insert_default().remove(&block) {
        // SAFETY: it was allocated with this layout, and is forgotten now.
        unsafe { dealloc(block as *mut u8, layout) };
    }
    SUCCESS
}

/// Functions that have nothing to do.
macro_rules! nothing {
    ($($name:ident($($argument:ty),*)),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $argument),*) -> Status {
            SUCCESS
        })*
    };
}

nothing!(
    cuInit(c_uint),
    cuDevicePrimaryCtxRelease_v2(c_int),
    cuCtxSetCurrent(*mut c_void),
    cuStreamSynchronize(*mut c_void),
    cuStreamWaitEvent(*mut c_void, *mut c_void, c_uint),
    cuStreamDestroy_v2(*mut c_void),
    cuStreamQuery(*mut c_void),
    cuEventRecord(*mut c_void, *mut c_void),
    cuEventSynchronize(*mut c_void),
    cuEventQuery(*mut c_void),
    cuEventDestroy_v2(*mut c_void),
    cuModuleUnload(*mut c_void),
    cuFuncSetAttribute(*mut c_void, c_int, c_int),
);

/// Functions that make something to be named by a handle.
macro_rules! handles {
    ($($name:ident($($argument:ty),*)),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $name(out: *mut *mut c_void, $(_: $argument),*) -> Status {
            handle(out)
        })*
    };
}

handles!(
    cuDevicePrimaryCtxRetain(c_int),
    cuCtxGetCurrent(),
    cuStreamCreate(c_uint),
    cuEventCreate(c_uint),
    cuModuleGetFunction(*mut c_void, *const c_char),
);

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(out: *mut *mut c_void, _: *const c_void) -> Status {
    MODULES.fetch_add(1, Relaxed);
    handle(out)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    _: *mut c_void,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: *mut c_void,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Status {
    LAUNCHES.fetch_add(1, Relaxed);
    SUCCESS
}

/// # Safety
/// `out` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(out: *mut c_int, index: c_int) -> Status {
    // SAFETY: as promised.
    unsafe { *out = index };
    SUCCESS
}

/// # Safety
/// `out` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(out: *mut c_int) -> Status {
    // SAFETY: as promised.
    unsafe { *out = 1 };
    SUCCESS
}

/// # Safety
/// `out` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, _: c_int) -> Status {
    // SAFETY: as promised.
    unsafe { *out = 80 << 30 };
    SUCCESS
}

/// # Safety
/// `out` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, _: c_int) -> Status {
    // CUdevice_attribute, in the driver's header.
    let value = match attribute {
        // Threads of a block, in all and along x, y and z.
        1..=3 => 1024,
        4 => 64,
        // Blocks of a grid along x, y and z.
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Threads of a warp; multiprocessors.
        10 => 32,
        16 => 132,
        // Compute capability.
        75 => 9,
        76 => 0,
        // Shared memory that a block may ask for; memory pools.
        97 => 232_448,
        115 => 1,
        _ => 0,
    };
    // SAFETY: as promised.
    unsafe { *out = value };
    SUCCESS
}

/// # Safety
/// `out` is a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(out: *mut usize, bytes: usize) -> Status {
    let block = allocate(bytes);
    // SAFETY: as promised.
    unsafe { *out = block as usize };
    if block.is_null() { OUT_OF_MEMORY } else { SUCCESS }
}

/// # Safety
/// As [`cuMemAlloc_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(out: *mut usize, bytes: usize, _: *mut c_void) -> Status {
    // SAFETY: as promised.
    unsafe { cuMemAlloc_v2(out, bytes) }
}

/// # Safety
/// As [`cuMemAlloc_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(out: *mut usize, bytes: usize) -> Status {
    // SAFETY: as promised.
    unsafe { cuMemAlloc_v2(out, bytes) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(block: usize) -> Status {
    free(block)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(block: usize, _: *mut c_void) -> Status {
    free(block)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(block: usize) -> Status {
    free(block)
}

/// # Safety
/// Both places have so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: *const u8, bytes: usize, _: *mut c_void) -> Status {
    // SAFETY: as promised.
    unsafe { copy_nonoverlapping(from, to as *mut u8, bytes) };
    SUCCESS
}

/// # Safety
/// Both places have so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: usize, bytes: usize, _: *mut c_void) -> Status {
    // SAFETY: as promised.
    unsafe { copy_nonoverlapping(from as *const u8, to, bytes) };
    SUCCESS
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Side {
    x: usize,
    y: usize,
    kind: c_int,
    host: usize,
    device: usize,
    array: usize,
    pitch: usize,
}

impl Side {
    fn row(&self, row: usize) -> usize {
        let host = self.kind == 1;
        (if host { self.host } else { self.device }) + (self.y + row) * self.pitch + self.x
    }
}

#[repr(C)]
pub struct Copy2d {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

/// # Safety
/// A copy between places that are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, _: *mut c_void) -> Status {
    // SAFETY: as promised.
    unsafe {
        let copy = &*copy;
        for row in 0..copy.height {
            copy_nonoverlapping(copy.from.row(row) as *const u8, copy.to.row(row) as *mut u8, copy.width);
        }
    }
    SUCCESS
}

/// # Safety
/// `out` is a place for a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_: c_int, out: *mut *const c_char) -> Status {
    // SAFETY: as promised.
    unsafe { *out = c"an error of the stand-in driver".as_ptr() };
    SUCCESS
}

/// # Safety
/// `out` is a place for a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_int, out: *mut *const c_char) -> Status {
    // SAFETY: as promised.
    unsafe { cuGetErrorName(error, out) }
}
