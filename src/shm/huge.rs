//! Huge pages for large segments, and for large memory of one process.
//!
//! Rows of an embedding table are read in no order, and so are shuffled exposures. With pages of 4 KiB much of the time goes to finding the page, which one of 2 MiB saves. The
//! kernel maps such a page only where address and offset in the file agree modulo its size. The map that the `shared_memory` crate makes
//! does not promise that, so a large segment is mapped once more, at an address of our choice. Where there are no huge pages nothing else changes.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use memmap2::{Advice, MmapRaw};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::prctl;

/// Size of a huge page; a power of two. On machines with other sizes the map is aligned to more or less than needed.
const PAGE: usize = 2 << 20;

/// Memory of at least so many bytes uses huge pages.
pub const FROM: u64 = PAGE as u64;

/// A shared map of a file that begins at a multiple of the size of a huge page.
pub struct View {
    /// Reserved addresses; the view lies in them.
    reserved: NonNull<libc::c_void>,
    start: NonNull<u8>,
    len: usize,
}

impl View {
    /// Maps `len` bytes of a file for reading and writing.
    ///
    /// # Errors
    /// When there are no addresses left, or the file cannot be mapped.
    pub fn of(file: &File, len: usize) -> io::Result<Self> {
        let all = NonZeroUsize::new(len + PAGE).expect("a page at least");
        // SAFETY: the kernel chooses addresses that are free.
        let reserved = unsafe {
            mmap_anonymous(None, all, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)?
        };
        // `len` stays that of the reservation, so that dropping the view gives all of it back, mapped or not.
        let skipped = reserved.cast::<u8>().align_offset(PAGE);
        // SAFETY: `skipped` is less than `PAGE`, so the address is in the reservation.
        let start = unsafe { reserved.cast::<u8>().add(skipped) };
        let view = Self { reserved, start, len };
        let (at, len) = (NonZeroUsize::new(start.as_ptr() as usize), NonZeroUsize::new(len).expect("not empty"));
        let (access, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED);
        // SAFETY: the range is in the reservation, which nobody else knows.
        unsafe { mmap(at, len, access, flags, file, 0)? };
        Ok(view)
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Puts the pages of the file, which must be there, together to huge ones, as far as these are free; returns whether all are. Kernels
    /// before 6.1 have huge pages only in a file system mounted with `huge=`.
    pub fn use_huge_pages(&self) -> bool {
        self.touch();
        collapse_range(self.start(), self.len)
    }

    /// Reads a byte of each huge page. In a file system mounted with `huge=always` or `huge=within_size` a reservation makes huge pages that
    /// are not cleared yet. `MADV_COLLAPSE` maps them as they are, and the kernel (6.18) clears them when the next process maps them, with
    /// what this one has written.
    fn touch(&self) {
        for at in (0..self.len).step_by(PAGE) {
            // SAFETY: in the map, whose pages are reserved. Others may write there; the byte does not matter.
            unsafe { self.start().add(at).read_volatile() };
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the reservation and the map in it are this view's alone, and whoever has a pointer into it borrows the segment.
        if let Err(e) = unsafe { munmap(self.reserved, self.len + PAGE) } {
            tracing::debug!("a map of {} MB is not given back: {e}", self.len >> 20);
        }
    }
}

/// Puts the pages of a large slice, which is in memory of this process alone, together to huge ones, as far as these are free. Kernels before
/// 6.1 cannot.
pub fn collapse<T>(slice: &[T]) {
    let start = slice.as_ptr().cast::<u8>();
    let (skipped, len) = (start.align_offset(PAGE), size_of_val(slice));
    if let Some(whole) = len.checked_sub(skipped).map(|rest| rest / PAGE * PAGE)
        && whole > 0
    {
        collapse_range(start.wrapping_add(skipped), whole);
    }
}

/// Puts the pages of a range of memory together to huge ones; returns whether all of them are.
///
/// A process that has disabled huge pages for itself (`PR_SET_THP_DISABLE`) makes them too, and still maps small ones of shared memory.
fn collapse_range(start: *const u8, len: usize) -> bool {
    let disabled = prctl::get_thp_disable().unwrap_or(false) && prctl::set_thp_disable(false).is_ok();
    // SAFETY: advice does not change what is in memory, and of a range that is not mapped the kernel only says so.
    let done = match unsafe { libc::madvise(start.cast_mut().cast(), len, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    if disabled && let Err(e) = prctl::set_thp_disable(true) {
        tracing::debug!("huge pages stay on: {e}");
    }
    done.inspect_err(|e| tracing::debug!("some pages of {} MB of memory stay small: {e}", len >> 20)).is_ok()
}

/// Asks for huge pages in memory of this process.
pub fn advise(map: &MmapRaw) {
    if map.len() as u64 >= FROM
        && let Err(e) = map.advise(Advice::HugePage)
    {
        tracing::debug!("pages of {} MB of memory stay small: {e}", map.len() >> 20);
    }
}
