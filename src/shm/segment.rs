//! A named segment of shared memory with a header that identifies it.
//!
//! This is the only file that uses the `shared_memory` crate, which maps, and unlinks in the owner's `Drop`. It adds a header
//! that is validated at every open, a reservation of all pages (on a full tmpfs, access to an unreserved page is a SIGBUS, not
//! an error), and typed access with bounds checks.

use std::fs::File;
use std::io;
use std::mem::{align_of, size_of};
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use shared_memory::{Shmem, ShmemConf, ShmemError};
use twox_hash::XxHash3_64;

use super::error::ShmError;
use super::huge::{self, View};
use super::names::{SHM_DIR, start_time};
use super::pod::Shareable;
use super::sync::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"admixshm");
const VERSION: u32 = 1;
/// The body starts on its own page, so that offsets in it can have any alignment up to a page.
const BODY: usize = 4096;

/// Purpose of a segment; each kind of content has its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub u32);

#[repr(C)]
struct Header {
    /// Stored last by the creator.
    magic: AtomicU64,
    version: AtomicU32,
    kind: AtomicU32,
    layout_hash: AtomicU64,
    total_len: AtomicU64,
    owner_start_time: AtomicU64,
    owner_pid: AtomicU32,
    _reserved: AtomicU32,
}

// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Header {}

/// A mapped segment. The creator owns the name and removes it when dropped; the memory lives until the last process unmaps it.
pub struct Segment {
    name: String,
    mapping: Mapping,
}

enum Mapping {
    /// The crate's map, which owns the name, and of a large segment one for huge pages.
    Shared(Shmem, Option<View>),
    /// A map of no file, or of one opened for reading: stores are not shared.
    Private(MmapRaw),
}

impl Mapping {
    fn start(&self) -> *mut u8 {
        match self {
            Self::Shared(_, Some(view)) => view.start(),
            Self::Shared(mapping, None) => mapping.as_ptr(),
            Self::Private(mapping) => mapping.as_mut_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Shared(mapping, _) => mapping.len(),
            Self::Private(mapping) => mapping.len(),
        }
    }
}

// SAFETY: the mapping is memory of the process, not of a thread; safe access goes through `Shareable` types,
// which synchronise by atomics, and raw ranges are handed out as pointers only.
unsafe impl Send for Segment {}
// SAFETY: as above; no method changes the handle itself through `&self`.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates segment `name` with `body_len` zeroed bytes, all of them reserved. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    pub fn create(name: &str, kind: Kind, layout_hash: u64, body_len: usize) -> Result<Self, ShmError> {
        let total = Self::footprint(body_len);
        check_space(total)?;
        let mapping = ShmemConf::new().os_id(name).size(total as usize).create().map_err(|e| match e {
            ShmemError::MappingIdExists => ShmError::Exists { name: name.into() },
            e => os_error(name, "create it", e),
        })?;
        let view = Self::view(name, &mapping);
        let segment = Self { name: name.into(), mapping: Mapping::Shared(mapping, view) };
        segment.reserve(total)?;
        segment.use_huge_pages();
        segment.fill_header(kind, layout_hash, total);
        Ok(segment)
    }

    /// Maps a large segment for huge pages.
    fn view(name: &str, mapping: &Shmem) -> Option<View> {
        if (mapping.len() as u64) < huge::FROM {
            return None;
        }
        let file = File::options().read(true).write(true).open(Path::new(SHM_DIR).join(name));
        let view = file.and_then(|file| View::of(&file, mapping.len()));
        view.inspect_err(|e| tracing::debug!("{name} stays without huge pages: {e}")).ok()
    }

    /// Puts the pages of a large segment, which are reserved, together to huge ones; returns whether all of them are.
    fn use_huge_pages(&self) -> bool {
        matches!(&self.mapping, Mapping::Shared(_, Some(view)) if view.use_huge_pages())
    }

    fn fill_header(&self, kind: Kind, layout_hash: u64, total: u64) {
        let header = self.header();
        let pid = std::process::id();
        // Relaxed: made visible by the magic below.
        header.version.store(VERSION, Ordering::Relaxed);
        header.kind.store(kind.0, Ordering::Relaxed);
        header.layout_hash.store(layout_hash, Ordering::Relaxed);
        header.total_len.store(total, Ordering::Relaxed);
        header.owner_pid.store(pid, Ordering::Relaxed);
        header.owner_start_time.store(start_time(pid).unwrap_or(0), Ordering::Relaxed);
        // Release: pairs with the Acquire in `validate`; a process that sees the magic sees the whole header.
        header.magic.store(MAGIC, Ordering::Release);
    }

    /// Opens a segment that another process created, without owning it. Its body has at least `least` bytes.
    ///
    /// # Errors
    /// If it is missing, foreign, of another kind or layout, or shorter than its header says or than `least`.
    pub fn open(name: &str, kind: Kind, layout_hash: u64, least: usize) -> Result<Self, ShmError> {
        Self::check_file(name)?;
        let mapping = ShmemConf::new().os_id(name).open().map_err(|e| os_error(name, "map it", e))?;
        let view = Self::view(name, &mapping);
        let segment = Self { name: name.into(), mapping: Mapping::Shared(mapping, view) };
        segment.validate(kind, layout_hash, least)?;
        Ok(segment)
    }

    /// Creates private memory of this process with the same header; it has no name.
    ///
    /// # Errors
    /// When there is no memory left.
    pub fn private(kind: Kind, layout_hash: u64, body_len: usize) -> Result<Self, ShmError> {
        let total = Self::footprint(body_len);
        let mapping = MmapOptions::new().len(total as usize).map_anon();
        let failed = |source| ShmError::Os { name: "private memory".into(), what: "map it", source };
        let mapping = MmapRaw::from(mapping.map_err(failed)?);
        huge::advise(&mapping);
        let mapping = Mapping::Private(mapping);
        let segment = Self { name: "private memory".into(), mapping };
        segment.fill_header(kind, layout_hash, total);
        Ok(segment)
    }

    /// Opens a segment like [`open`](Self::open) for observation: stores of others are visible, and stores through it do not
    /// reach them, even by mistake.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str, kind: Kind, layout_hash: u64, least: usize) -> Result<Self, ShmError> {
        Self::check_file(name)?;
        let path = Path::new(SHM_DIR).join(name);
        // SAFETY: a private map, read through atomics only; that the file changes under it is intended. Nobody truncates a
        // segment: names are removed, and the memory lives until its last map is gone.
        let mapped = File::open(path).and_then(|file| unsafe { MmapOptions::new().map_copy(&file) });
        let mapping = mapped.map_err(|source| ShmError::Os { name: name.into(), what: "map it", source })?;
        let segment = Self { name: name.into(), mapping: Mapping::Private(mapping.into()) };
        segment.validate(kind, layout_hash, least)?;
        Ok(segment)
    }

    /// Checks the size of the file first: mapping an empty one fails with an unhelpful message.
    fn check_file(name: &str) -> Result<(), ShmError> {
        let found = match std::fs::metadata(Path::new(SHM_DIR).join(name)) {
            Ok(meta) => meta.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(ShmError::Missing { name: name.into() });
            }
            Err(source) => {
                return Err(ShmError::Os { name: name.into(), what: "look at it", source });
            }
        };
        if found < BODY as u64 {
            return Err(ShmError::Truncated { name: name.into(), expected: BODY as u64, found });
        }
        Ok(())
    }

    fn validate(&self, kind: Kind, layout_hash: u64, least: usize) -> Result<(), ShmError> {
        let name = || self.name.clone();
        let header = self.header();
        // Acquire: pairs with the Release in `fill_header`, so that the fields below are complete.
        let magic = header.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(ShmError::Foreign { name: name(), found: magic });
        }
        let wrong_layout = |what, expected, found| ShmError::WrongLayout { name: name(), what, expected, found };
        let version = header.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(wrong_layout("version", VERSION.into(), version.into()));
        }
        let found_kind = header.kind.load(Ordering::Relaxed);
        if found_kind != kind.0 {
            return Err(ShmError::WrongKind { name: name(), expected: kind.0, found: found_kind });
        }
        let found_layout = header.layout_hash.load(Ordering::Relaxed);
        if found_layout != layout_hash {
            return Err(wrong_layout("layout", layout_hash, found_layout));
        }
        let expected = header.total_len.load(Ordering::Relaxed);
        let found = self.mapping.len() as u64;
        if expected != found {
            return Err(ShmError::Truncated { name: name(), expected, found });
        }
        if found < Self::footprint(least) {
            return Err(ShmError::Truncated { name: name(), expected: Self::footprint(least), found });
        }
        Ok(())
    }

    /// Returns the bytes of `/dev/shm` that a segment with such a body takes; sum these for [`check_space`].
    pub fn footprint(body_len: usize) -> u64 {
        (BODY + body_len).next_multiple_of(4096) as u64
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes after the header, at least as many as were asked for.
    pub fn body_len(&self) -> usize {
        self.mapping.len() - BODY
    }

    /// Returns the process id and start time of the creator.
    pub fn owner(&self) -> (u32, u64) {
        let header = self.header();
        // Relaxed: constant since `validate` acquired the magic.
        (header.owner_pid.load(Ordering::Relaxed), header.owner_start_time.load(Ordering::Relaxed))
    }

    /// Returns the `T` at `offset` bytes into the body.
    ///
    /// # Panics
    /// If it does not fit or is misaligned: offsets come from code, not from other processes.
    #[inline]
    pub fn at<T: Shareable>(&self, offset: usize) -> &T {
        &self.array::<T>(offset, 1)[0]
    }

    /// Returns `count` consecutive `T`s at `offset` bytes into the body.
    ///
    /// # Panics
    /// As [`at`](Self::at).
    #[inline]
    pub fn array<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        let len = size_of::<T>().checked_mul(count).expect("array length");
        let start = self.bytes(offset, len).cast::<T>();
        assert!(start.is_aligned(), "offset {offset} is misaligned");
        // SAFETY: the range is inside the mapping (checked by `bytes`), which lives as long as `self`, and
        // aligned; `T: Shareable` is valid for any bit pattern and changed only through atomics.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Returns `len` bytes at `offset` into the body for reading.
    ///
    /// # Safety
    /// Nobody writes there while the slice lives.
    ///
    /// # Panics
    /// If the range leaves the body.
    #[inline]
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: `bytes` has checked the range; all byte values are valid; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.bytes(offset, len), len) }
    }

    /// Returns `len` bytes at `offset` into the body for writing.
    ///
    /// # Safety
    /// Nobody else reads or writes there while the slice lives.
    ///
    /// # Panics
    /// If the range leaves the body.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller owns the range, not the segment")]
    pub unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.bytes(offset, len), len) }
    }

    /// Returns a pointer to `len` bytes at `offset` into the body.
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("end of range");
        assert!(end <= self.body_len(), "{offset}+{len} is outside of a body of {} bytes", self.body_len());
        // SAFETY: `BODY + offset` is at most the mapping's length, as just checked.
        unsafe { self.mapping.start().add(BODY + offset) }
    }

    fn header(&self) -> &Header {
        const { assert!(size_of::<Header>() <= BODY && align_of::<Header>() <= 4096) }
        // SAFETY: mappings are page aligned and all constructors ensure at least `BODY` bytes; `Header` is `Shareable`.
        unsafe { &*self.mapping.start().cast::<Header>() }
    }

    /// Makes the file system allocate every page now.
    fn reserve(&self, total: u64) -> Result<(), ShmError> {
        let failed = |source| ShmError::Os { name: self.name.clone(), what: "reserve its pages", source };
        // The crate does not expose its descriptor; this is the same file.
        let file = std::fs::OpenOptions::new().write(true).open(Path::new(SHM_DIR).join(&self.name)).map_err(failed)?;
        loop {
            return match nix::fcntl::posix_fallocate(&file, 0, total as libc::off_t) {
                Ok(()) => Ok(()),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOSPC) => Err(ShmError::NoSpace { needed: total, free: free_space()? }),
                Err(e) => Err(failed(e.into())),
            };
        }
    }
}

/// Checks the free space of `/dev/shm` against `total` bytes, the sum of all footprints of a run, before anything is created: a
/// part of a run's segments is useless.
///
/// # Errors
/// [`ShmError::NoSpace`], which states how much is needed, how much is free and what to change.
pub fn check_space(total: u64) -> Result<(), ShmError> {
    let free = free_space()?;
    if total > free {
        return Err(ShmError::NoSpace { needed: total, free });
    }
    Ok(())
}

fn free_space() -> Result<u64, ShmError> {
    let stat = nix::sys::statvfs::statvfs(SHM_DIR).map_err(|e| ShmError::Os {
        name: SHM_DIR.into(),
        what: "ask for its free space",
        source: e.into(),
    })?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// Hashes everything that a layout depends on (sizes, offsets, counts) into one number that is compared at open.
pub(super) fn layout_hash(parts: &[usize]) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(parts))
}

fn os_error(name: &str, what: &'static str, error: ShmemError) -> ShmError {
    let source = match error {
        ShmemError::MapCreateFailed(code) | ShmemError::MapOpenFailed(code) | ShmemError::UnknownOsError(code) => {
            io::Error::from_raw_os_error(code as i32)
        }
        other => io::Error::other(other.to_string()),
    };
    ShmError::Os { name: name.into(), what, source }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::names::RunNames;
    use super::*;

    const KIND: Kind = Kind(99);

    /// Returns a segment name that no other test uses.
    pub fn unique_name(part: &str) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = RunNames::for_this_process(&format!("unit{n}")).unwrap();
        names.part(part)
    }

    fn open_error(name: &str, kind: Kind, layout: u64) -> ShmError {
        Segment::open(name, kind, layout, 64).err().expect("refused")
    }

    #[test]
    fn what_one_mapping_stores_the_other_sees() {
        let name = unique_name("seg");
        let owner = Segment::create(&name, KIND, 7, 64).unwrap();
        let other = Segment::open(&name, KIND, 7, 64).unwrap();
        owner.at::<AtomicU64>(8).store(42, Ordering::Release);
        assert_eq!(other.at::<AtomicU64>(8).load(Ordering::Acquire), 42);
        assert_eq!(other.owner().0, std::process::id());
        drop(other);
        Segment::open(&name, KIND, 7, 64).expect("only the owner removes the name");
        drop(owner);
        assert!(matches!(open_error(&name, KIND, 7), ShmError::Missing { .. }));
    }

    #[test]
    fn a_taken_name_is_refused_and_survives() {
        let name = unique_name("seg");
        let _owner = Segment::create(&name, KIND, 7, 64).unwrap();
        let second = Segment::create(&name, KIND, 7, 64);
        assert!(matches!(second, Err(ShmError::Exists { .. })));
        Segment::open(&name, KIND, 7, 64).expect("the first is untouched");
    }

    #[test]
    fn other_kinds_layouts_and_versions_are_refused() {
        let name = unique_name("seg");
        let owner = Segment::create(&name, KIND, 7, 64).unwrap();
        let error = open_error(&name, Kind(98), 7);
        assert!(matches!(error, ShmError::WrongKind { found: 99, .. }));
        let error = open_error(&name, KIND, 8);
        assert!(matches!(error, ShmError::WrongLayout { found: 7, .. }));
        owner.header().version.store(77, Ordering::Relaxed);
        let error = open_error(&name, KIND, 7);
        assert!(error.to_string().contains("version 0x4d"), "{error}");
        owner.header().magic.store(1, Ordering::Relaxed);
        let error = open_error(&name, KIND, 7);
        assert!(matches!(error, ShmError::Foreign { found: 1, .. }));
    }

    #[test]
    fn truncated_files_are_refused() {
        let name = unique_name("seg");
        let _owner = Segment::create(&name, KIND, 7, 100_000).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(Path::new(SHM_DIR).join(&name)).unwrap();
        for len in [8192, 100, 0] {
            file.set_len(len).unwrap();
            let error = open_error(&name, KIND, 7);
            assert!(matches!(error, ShmError::Truncated { found, .. } if found == len), "{error}");
        }
    }

    /// A header that was right except for its length made the first access panic.
    #[test]
    fn a_segment_without_room_for_its_contents_is_refused() {
        let name = unique_name("seg");
        let _owner = Segment::create(&name, KIND, 7, 64).unwrap();
        for opened in [Segment::open(&name, KIND, 7, 4097), Segment::observe(&name, KIND, 7, 4097)] {
            assert!(matches!(opened, Err(ShmError::Truncated { expected: 12288, found: 8192, .. })));
        }
    }

    #[test]
    fn who_observes_sees_everything_and_changes_nothing() {
        let name = unique_name("seg");
        let owner = Segment::create(&name, KIND, 7, 64).unwrap();
        let observer = Segment::observe(&name, KIND, 7, 64).unwrap();
        owner.at::<AtomicU64>(8).store(42, Ordering::Release);
        assert_eq!(observer.at::<AtomicU64>(8).load(Ordering::Acquire), 42);
        observer.at::<AtomicU64>(8).store(1, Ordering::Release);
        assert_eq!(owner.at::<AtomicU64>(8).load(Ordering::Acquire), 42);
    }

    /// The map that the `shared_memory` crate makes begins anywhere, and the kernel then leaves huge pages in pieces.
    #[test]
    fn a_large_segment_begins_where_huge_pages_fit() {
        let name = unique_name("seg");
        let body = 4 * huge::FROM as usize;
        let owner = Segment::create(&name, KIND, 7, body).unwrap();
        let other = Segment::open(&name, KIND, 7, body).unwrap();
        for offset in [0, 2 << 20, body - 8] {
            owner.at::<AtomicU64>(offset).store(offset as u64 + 1, Ordering::Release);
            assert_eq!(other.at::<AtomicU64>(offset).load(Ordering::Acquire), offset as u64 + 1);
        }
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        for segment in [&owner, &other] {
            let start = segment.header() as *const Header as usize;
            assert_eq!(start % (2 << 20), 0);
            assert!(maps().contains(&format!("{start:x}-")), "{start:x}");
        }
        if owner.use_huge_pages() {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let start = owner.header() as *const Header as usize;
            let mine = smaps.split_once(&format!("\n{start:x}-")).unwrap().1;
            let huge = mine.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap().trim();
            assert_ne!(huge, "0 kB", "{}", &mine[..1000]);
        } else {
            eprintln!("skipped in part: no huge pages here");
        }
        drop((owner, other));
        assert!(!maps().contains(&name), "its maps outlive it");
    }

    #[test]
    fn a_lack_of_space_says_what_to_change() {
        let error = check_space(1 << 60).unwrap_err().to_string();
        for hint in ["--shm-size", "learner.pool", "fewer actors", "actors.write_every", "table.max_rows"] {
            assert!(error.contains(hint), "{error}");
        }
        let name = unique_name("seg");
        assert!(matches!(Segment::create(&name, KIND, 7, 1 << 50), Err(ShmError::NoSpace { .. })));
        assert!(matches!(open_error(&name, KIND, 7), ShmError::Missing { .. }));
    }

    #[test]
    #[should_panic(expected = "outside of a body")]
    fn access_outside_of_the_body_panics() {
        let segment = Segment::create(&unique_name("seg"), KIND, 7, 64).unwrap();
        segment.at::<AtomicU64>(segment.body_len() - 4);
    }

    #[test]
    #[should_panic(expected = "misaligned")]
    fn misaligned_access_panics() {
        let segment = Segment::create(&unique_name("seg"), KIND, 7, 64).unwrap();
        segment.at::<AtomicU64>(4);
    }
}
