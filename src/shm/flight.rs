//! The file behind a flight recorder: a ring of small records that outlives its process.
//!
//! The file is mapped, so that a record costs a few stores and no system call, and stored data belongs to the kernel however
//! the process ends. A kill may fall between any two stores: a record is absent from the first store on (its sequence number is
//! 0) and complete with the last one. A reader needs only the file, not the process, and may read while records are made: a
//! checksum detects a record that was half replaced during the read or damaged on the disk. All pages are reserved when the
//! file is made, because on a disk that fills up later, access to an unreserved page would be a SIGBUS. (A file system that
//! copies on write may still fail this way.)
//!
//! Callers define the meaning of kinds and numbers.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::mem::size_of;
use std::path::Path;
use std::sync::atomic::AtomicU64 as Local;

use memmap2::MmapRaw;
use nix::errno::Errno;
use twox_hash::XxHash3_64;

use crate::files;

use super::pod::Shareable;
use super::process::monotonic_ms;
use super::segment::layout_hash;
use super::sync::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"adxfligt");
/// Number of records of a file; the oldest is overwritten.
pub const RECORDS: usize = 256;
/// Maximum bytes of text in a record.
pub const TEXT_BYTES: usize = 64;
const TEXT_WORDS: usize = TEXT_BYTES / 8;
/// Words of a record that the checksum covers: all but the checksum itself.
const COVERED: usize = size_of::<Slot>() / 8 - 1;
/// Size of a file, bytes.
pub const FILE_BYTES: usize = size_of::<Head>() + RECORDS * size_of::<Slot>();

#[repr(C, align(128))]
struct Head {
    magic: AtomicU64,
    layout: AtomicU64,
    /// Number of times that the file was opened for recording.
    starts: AtomicU64,
}

#[repr(C, align(128))]
struct Slot {
    /// Number of the record, from 1; 0 = none. Stored last.
    seq: AtomicU64,
    /// Unix milliseconds.
    wall_ms: AtomicU64,
    monotonic_ms: AtomicU64,
    /// Process id in the lower half, kind in the upper half.
    who: AtomicU64,
    numbers: [AtomicU64; 3],
    text: [AtomicU64; TEXT_WORDS],
    checksum: AtomicU64,
}

// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Head {}
// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Slot {}

const _: () = assert!(size_of::<Head>() == 128 && size_of::<Slot>() == 128);

fn layout() -> u64 {
    layout_hash(&[size_of::<Head>(), size_of::<Slot>(), RECORDS, TEXT_BYTES])
}

/// One record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightRecord {
    /// Grows by one from record to record of a file, across restarts.
    pub seq: u64,
    /// Unix milliseconds.
    pub wall_ms: u64,
    /// Milliseconds of the monotonic clock.
    pub monotonic_ms: u64,
    pub pid: u32,
    pub kind: u32,
    pub numbers: [u64; 3],
    pub text: String,
}

/// Contents of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlightLog {
    /// Number of times that the file was opened for recording.
    pub starts: u64,
    /// The complete records, in order.
    pub records: Vec<FlightRecord>,
}

/// A file into which this process records; one process at a time does.
pub struct FlightFile {
    map: MmapRaw,
    next: Local,
}

impl FlightFile {
    /// Opens the file for recording: continues after the existing records, or begins a new file where it is not a recording.
    ///
    /// # Errors
    /// A folder that cannot be written, or a disk without room for [`FILE_BYTES`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let earlier = match FlightLog::read(path) {
            Ok(log) => Some(log),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                // Removed, not truncated: a process that has it mapped keeps its pages.
                std::fs::remove_file(path)?;
                None
            }
            Err(e) => return Err(e),
        };
        let fresh = earlier.is_none();
        let file = OpenOptions::new().read(true).write(true).create_new(fresh).open(path)?;
        if let Err(e) = reserve(&file) {
            if fresh {
                let _ = std::fs::remove_file(path);
            }
            return Err(e);
        }
        let map = MmapRaw::map_raw(&file)?;
        if map.len() < FILE_BYTES {
            return Err(io::Error::other("the file became shorter"));
        }
        let earlier = earlier.unwrap_or_default();
        let last = earlier.records.last().map_or(0, |record| record.seq);
        let this = Self { map, next: Local::new(last.saturating_add(1)) };
        let head = this.head();
        head.layout.store(layout(), Ordering::Release);
        head.starts.store(earlier.starts.saturating_add(1), Ordering::Release);
        // Release here and above: in program order, so that a file with the magic has everything else.
        head.magic.store(MAGIC, Ordering::Release);
        Ok(this)
    }

    /// Returns how often the file was opened for recording, including this time.
    pub fn starts(&self) -> u64 {
        self.head().starts.load(Ordering::Relaxed)
    }

    /// Appends a record. As many whole characters of `text` are kept as fit into [`TEXT_BYTES`].
    pub fn record(&self, kind: u32, numbers: [u64; 3], text: &str) {
        // Relaxed: only the number matters; threads of this process get different slots.
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = &self.slots()[(seq % RECORDS as u64) as usize];
        let wall_ms = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let mut words = [0; COVERED];
        words[0] = seq;
        words[1] = wall_ms;
        words[2] = monotonic_ms();
        words[3] = u64::from(std::process::id()) | u64::from(kind) << 32;
        words[4..7].copy_from_slice(&numbers);
        let kept = (0..=text.len().min(TEXT_BYTES)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let mut bytes = [0; TEXT_BYTES];
        bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        for (word, bytes) in words[7..].iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        // Release throughout: stored in program order, so that a kill leaves a prefix of this sequence. No Acquire pairs with
        // them: a reader reads after the process has ended, or checks the checksum.
        slot.seq.store(0, Ordering::Release);
        let rest = [&slot.wall_ms, &slot.monotonic_ms, &slot.who].into_iter().chain(&slot.numbers).chain(&slot.text);
        for (shared, word) in rest.zip(&words[1..]) {
            shared.store(*word, Ordering::Release);
        }
        slot.checksum.store(checksum(&words), Ordering::Release);
        slot.seq.store(seq, Ordering::Release);
    }

    fn head(&self) -> &Head {
        // SAFETY: `open` ensured the length; maps are page aligned; `Head` is `Shareable`, hence valid for any bytes and
        // changed through atomics only.
        unsafe { &*self.map.as_mut_ptr().cast::<Head>() }
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: as `head`; the slots follow it and end within `FILE_BYTES`.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(size_of::<Head>()).cast::<Slot>(), RECORDS) }
    }
}

/// Makes the file system allocate every page now.
fn reserve(file: &File) -> io::Result<()> {
    loop {
        match nix::fcntl::posix_fallocate(file, 0, FILE_BYTES as libc::off_t) {
            Err(Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
}

fn checksum(covered: &[u64; COVERED]) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(covered))
}

impl FlightLog {
    /// Reads a recording; its process may be alive or dead.
    ///
    /// # Errors
    /// A file that cannot be read, or (`InvalidData`) is not a recording of this build.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = files::open(path)?;
        let mut bytes = Vec::with_capacity(FILE_BYTES);
        file.take(FILE_BYTES as u64).read_to_end(&mut bytes)?;
        Self::decode(&bytes).ok_or_else(|| {
            let reason = format!("{} is not a flight recording of this build", path.display());
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })
    }

    /// Decodes the complete records of a file; `None` if its header is not that of a recording. Torn, damaged and truncated
    /// records are left out.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, slots) = bytes.split_at_checked(size_of::<Head>())?;
        let head = words_of(head);
        if head[0] != MAGIC || head[1] != layout() {
            return None;
        }
        let mut records: Vec<FlightRecord> =
            slots.chunks_exact(size_of::<Slot>()).take(RECORDS).enumerate().filter_map(record_of).collect();
        records.sort_unstable_by_key(|record| record.seq);
        Some(Self { starts: head[2], records })
    }
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn record_of((at, slot): (usize, &[u8])) -> Option<FlightRecord> {
    let words = words_of(slot);
    let (covered, sum) = (words[..COVERED].try_into().ok()?, words[COVERED]);
    let seq = words[0];
    if seq == 0 || seq % RECORDS as u64 != at as u64 || checksum(&covered) != sum {
        return None;
    }
    let text: Vec<u8> = words[7..COVERED].iter().flat_map(|word| word.to_le_bytes()).take_while(|&b| b != 0).collect();
    Some(FlightRecord {
        seq,
        wall_ms: words[1],
        monotonic_ms: words[2],
        pid: words[3] as u32,
        kind: (words[3] >> 32) as u32,
        numbers: [words[4], words[5], words[6]],
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::crash::{abandon, kill_after};
    use super::*;

    fn place() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.bin");
        (folder, path)
    }

    fn texts(path: &Path) -> Vec<String> {
        FlightLog::read(path).unwrap().records.into_iter().map(|r| r.text).collect()
    }

    #[test]
    fn records_come_back_in_order_and_the_oldest_give_way() {
        let (_folder, path) = place();
        let file = FlightFile::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
        for i in 0..RECORDS as u64 + 7 {
            file.record(i as u32, [i, i * 2, u64::MAX - i], &format!("event {i}"));
        }
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.starts, log.records.len()), (1, RECORDS));
        for (record, i) in log.records.iter().zip(7u64..) {
            assert_eq!((record.seq, record.kind, record.pid), (i + 1, i as u32, std::process::id()));
            assert_eq!((record.numbers, record.text.as_str()), ([i, i * 2, u64::MAX - i], &*format!("event {i}")));
            assert!(record.wall_ms > 1_700_000_000_000 && record.monotonic_ms > 0);
        }
    }

    #[test]
    fn the_next_process_goes_on_where_the_last_one_ended() {
        let (_folder, path) = place();
        for start in 1..4 {
            let file = FlightFile::open(&path).unwrap();
            assert_eq!(file.starts(), start);
            file.record(1, [start, 0, 0], "");
        }
        let log = FlightLog::read(&path).unwrap();
        assert_eq!(log.records.iter().map(|r| (r.seq, r.numbers[0])).collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn a_process_killed_at_any_store_leaves_each_record_whole_or_absent() {
        for fill in [3, RECORDS + 3] {
            let expected: Vec<String> = (fill.saturating_sub(RECORDS)..fill).map(|i| i.to_string()).collect();
            for step in 0.. {
                let (_folder, path) = place();
                let file = FlightFile::open(&path).unwrap();
                (0..fill).for_each(|i| file.record(1, [7; 3], &i.to_string()));
                let text = "the last one, that is under way";
                let done = kill_after(step, || file.record(2, [9; 3], text));
                let mut seen = texts(&path);
                if done.is_some() {
                    assert_eq!(seen.pop().as_deref(), Some(text));
                }
                // Only the oldest may be gone: the one that was being replaced.
                let gone = expected.len() - seen.len();
                assert_eq!(seen, expected[gone..], "step {step}");
                assert!(gone <= usize::from(fill >= RECORDS), "step {step}: {gone} are gone");
                abandon(file);
                let next = FlightFile::open(&path).unwrap();
                next.record(3, [0; 3], "after");
                assert_eq!(texts(&path).last().map(String::as_str), Some("after"));
                if done.is_some() {
                    assert!(step as usize > COVERED, "every store was a step");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_file_killed_while_it_was_begun_is_begun_anew() {
        for step in 0..3 {
            let (_folder, path) = place();
            assert!(kill_after(step, || FlightFile::open(&path)).is_none());
            FlightFile::open(&path).unwrap().record(1, [0; 3], "whole");
            assert_eq!(texts(&path), ["whole"]);
        }
    }

    #[test]
    fn long_texts_end_at_a_character() {
        let (_folder, path) = place();
        let file = FlightFile::open(&path).unwrap();
        file.record(1, [0; 3], &"\u{e9}".repeat(40));
        file.record(1, [0; 3], &format!("x{}", "\u{e9}".repeat(40)));
        file.record(1, [0; 3], "nul\0 ends it");
        let texts = texts(&path);
        assert_eq!(texts, ["\u{e9}".repeat(32), format!("x{}", "\u{e9}".repeat(31)), "nul".into()]);
    }

    #[test]
    fn no_room_and_no_permission_are_errors() {
        let (folder, _) = place();
        assert!(FlightFile::open(&folder.path().join("missing").join("p.bin")).is_err());
        assert!(FlightFile::open(folder.path()).is_err(), "a folder is no file");
    }
}
