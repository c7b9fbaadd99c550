//! Maps a file read-only. The only place of this folder that needs `unsafe`.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapMut, UncheckedAdvice};

/// Maps the whole of `path`.
pub fn read_only(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: this program writes compiled logs and rows of models to a temporary name and renames them into place, and never writes
    // them again: the mapped inode does not change under the map, and a replaced file leaves the old inode mapped. A file that another
    // program writes in place is beyond this; docs/values.md says how to replace a model.
    unsafe { Mmap::map(&file) }
}

/// Returns an anonymous map that holds `bytes`, aligned like any other.
pub fn in_memory(bytes: &[u8]) -> std::io::Result<Mmap> {
    let mut map = MmapMut::map_anon(bytes.len())?;
    map.copy_from_slice(bytes);
    map.make_read_only()
}

/// Takes a range of a mapped file out of this process's resident memory. It stays in the page cache, from where the next access maps it
/// again. `map` must come from [`read_only`].
pub fn release(map: &Mmap, range: Range<usize>) {
    // SAFETY: the pages are backed by the file, so what is read after this is what was read before.
    let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    released.unwrap_or_else(|e| tracing::debug!("pages of a compiled log stay resident: {e}"));
}
