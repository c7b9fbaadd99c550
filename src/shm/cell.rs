//! The newest parameters, from one writer to any number of readers.
//!
//! There are two slots. Publication n goes to slot n mod 2 while readers use the other one, and is then announced by storing n:
//! a writer that is killed half way leaves the previous publication intact. Nothing here blocks: a reader copies, and then
//! checks that the writer had not begun to overwrite the copied data (each slot carries the number of the last publication
//! begun there, a seqlock per slot). A reader is overtaken only by two publications during one copy, and then the newer one is
//! what it needs anyway.
//!
//! The words are relaxed atomics, so that an overtaken reader reads garbage instead of causing undefined behaviour. A checksum
//! over version and words guards against faults outside the protocol (a stray write, broken memory).

use std::mem::{offset_of, size_of};

use twox_hash::XxHash3_64;

use super::error::ShmError;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use super::wait::Doorbell;

const KIND: Kind = Kind(2);
/// Attempts of a reader that is overtaken; each one fails only if two publications fall into one copy.
const ATTEMPTS: usize = 64;

#[repr(C, align(128))]
#[derive(Default)]
struct Head {
    /// Capacity of a slot in words; constant after creation.
    capacity: AtomicU64,
    /// Number of the newest complete publication, 0 for none yet.
    published: AtomicU64,
    /// Number of copies that passed the protocol but not the checksum.
    torn: AtomicU64,
    slots: [Slot; 2],
}

#[repr(C, align(128))]
#[derive(Default)]
struct Slot {
    /// Number of the last publication begun here.
    begun: AtomicU64,
    version: AtomicU64,
    /// Words in use.
    len: AtomicU64,
    checksum: AtomicU64,
}

// SAFETY: repr(C), atomics and a struct of atomics only.
unsafe impl Shareable for Head {}

/// The parameter cell of a run.
pub struct ParamCell {
    segment: Segment,
    capacity: usize,
}

impl ParamCell {
    /// Creates the segment `name` with room for `capacity` words. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` is too small.
    pub fn create(name: &str, capacity: usize) -> Result<Self, ShmError> {
        let segment = Segment::create(name, KIND, layout(), body_len(capacity))?;
        // Relaxed: children that open the cell are spawned later.
        let head = segment.at::<Head>(0);
        head.capacity.store(capacity as u64, Ordering::Relaxed);
        Ok(Self { segment, capacity })
    }

    /// Opens the cell that main created.
    ///
    /// # Errors
    /// When the segment is missing or does not hold a cell of this build.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::open(name, KIND, layout(), size_of::<Head>())?)
    }

    /// Opens the cell for observation: a private map through which the run cannot be changed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::observe(name, KIND, layout(), size_of::<Head>())?)
    }

    fn of(segment: Segment) -> Result<Self, ShmError> {
        // Relaxed: constant since creation.
        let claimed = segment.at::<Head>(0).capacity.load(Ordering::Relaxed);
        let fits = usize::try_from(claimed)
            .ok()
            .filter(|c| *c <= segment.body_len() / size_of::<u32>())
            .filter(|c| body_len(*c) <= segment.body_len());
        match fits {
            Some(capacity) => Ok(Self { segment, capacity }),
            None => Err(ShmError::Truncated {
                name: segment.name().into(),
                expected: claimed.saturating_mul(2 * size_of::<u32>() as u64),
                found: segment.body_len() as u64,
            }),
        }
    }

    /// Returns the bytes of `/dev/shm` that a cell for `capacity` words takes.
    pub fn footprint(capacity: usize) -> u64 {
        Segment::footprint(body_len(capacity))
    }

    /// Returns the maximum number of words of a publication.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Publishes `words` and rings `bell`. One process at a time does this; a restarted one continues after
    /// [`version`](Self::version).
    ///
    /// # Errors
    /// When `version` does not exceed the published one or the words do not fit.
    pub fn publish(&self, version: u64, words: &[u32], bell: &Doorbell) -> Result<(), ShmError> {
        let head = self.head();
        if words.len() > self.capacity {
            return Err(ShmError::TooLong { words: words.len(), capacity: self.capacity });
        }
        // Acquire: a restarted writer must see what its predecessor announced; our own stores otherwise.
        let published = head.published.load(Ordering::Acquire);
        // Relaxed: acquired with the number.
        let newest = head.slots[slot_of(published)].version.load(Ordering::Relaxed);
        if published > 0 && version <= newest {
            return Err(ShmError::StaleVersion { published: newest, offered: version });
        }
        let next = published + 1;
        let slot = &head.slots[slot_of(next)];
        // Release: pairs with the Acquire of `begun` in `copy` and `version`. A reader that sees itself overtaken also
        // sees the publication before this one, and need not try again until two more overtake it.
        slot.begun.store(next, Ordering::Release);
        // Release fence: pairs with the Acquire fence in `copy`. A reader that copied any of the words below
        // also sees `begun`, and rejects its copy.
        fence(Ordering::Release);
        // Relaxed: made visible by the announcement below.
        slot.version.store(version, Ordering::Relaxed);
        slot.len.store(words.len() as u64, Ordering::Relaxed);
        slot.checksum.store(checksum(version, words), Ordering::Relaxed);
        for (shared, word) in self.words(next, words.len()).iter().zip(words) {
            shared.store(*word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `read` and `version`; a reader that sees the number sees the whole slot.
        head.published.store(next, Ordering::Release);
        bell.ring();
        Ok(())
    }

    /// Copies the newest parameters into `out`, which is cleared, and returns their version. `None` if nothing was published
    /// yet or, very rarely, if the writer overtook every attempt; `out` is then empty and the caller tries again later.
    pub fn read(&self, out: &mut Vec<u32>) -> Option<u64> {
        let head = self.head();
        for _ in 0..ATTEMPTS {
            // Acquire: pairs with the Release in `publish`.
            let number = head.published.load(Ordering::Acquire);
            if number == 0 {
                break;
            }
            let Some((version, expected)) = self.copy(number, out) else {
                continue;
            };
            if checksum(version, out) == expected {
                return Some(version);
            }
            // Relaxed: a statistic.
            head.torn.fetch_add(1, Ordering::Relaxed);
        }
        out.clear();
        None
    }

    /// Copies publication `number` and returns its version and checksum, or `None` if the writer has begun to overwrite it.
    fn copy(&self, number: u64, out: &mut Vec<u32>) -> Option<(u64, u64)> {
        let slot = &self.head().slots[slot_of(number)];
        // Relaxed: garbage if the writer is here again, which the check below detects. The length is kept within bounds until
        // then.
        let version = slot.version.load(Ordering::Relaxed);
        let expected = slot.checksum.load(Ordering::Relaxed);
        let len = slot.len.load(Ordering::Relaxed);
        let len = len.min(self.capacity as u64) as usize;
        out.clear();
        let words = self.words(number, len).iter();
        out.extend(words.map(|word| word.load(Ordering::Relaxed)));
        // Acquire fence: pairs with the Release fence in `publish`; keeps the check after the copy.
        fence(Ordering::Acquire);
        // Acquire: pairs with the Release of `begun` in `publish`, for the next attempt.
        (slot.begun.load(Ordering::Acquire) == number).then_some((version, expected))
    }

    /// Returns the version of the newest parameters; 0 before the first, and, as rarely as [`read`](Self::read) finds none, if
    /// overtaken.
    pub fn version(&self) -> u64 {
        let head = self.head();
        for _ in 0..ATTEMPTS {
            // Acquire: pairs with the Release in `publish`.
            let number = head.published.load(Ordering::Acquire);
            if number == 0 {
                return 0;
            }
            let slot = &head.slots[slot_of(number)];
            let version = slot.version.load(Ordering::Relaxed);
            // Acquire fence, and Acquire: as in `copy`. Tried again only when two publications fell in between, so a dead
            // writer cannot block a reader.
            fence(Ordering::Acquire);
            if slot.begun.load(Ordering::Acquire) == number {
                return version;
            }
        }
        // Overtaken every time, or a head that no writer leaves: nothing can be read now.
        0
    }

    /// Returns the number of copies that passed the protocol but not the checksum: anything but 0 is a bug or broken memory.
    pub fn torn(&self) -> u64 {
        // Relaxed: a statistic.
        self.head().torn.load(Ordering::Relaxed)
    }

    fn head(&self) -> &Head {
        self.segment.at::<Head>(0)
    }

    fn words(&self, number: u64, len: usize) -> &[AtomicU32] {
        let offset = size_of::<Head>() + slot_of(number) * slot_len(self.capacity);
        self.segment.array::<AtomicU32>(offset, len)
    }
}

fn slot_of(number: u64) -> usize {
    (number % 2) as usize
}

fn slot_len(capacity: usize) -> usize {
    (capacity * size_of::<u32>()).next_multiple_of(128)
}

fn body_len(capacity: usize) -> usize {
    size_of::<Head>() + 2 * slot_len(capacity)
}

fn layout() -> u64 {
    layout_hash(&[size_of::<Head>(), offset_of!(Head, slots), size_of::<Slot>(), offset_of!(Slot, checksum)])
}

/// Returns the hash of the words, seeded by the version, so that one publication's version does not match another's words.
fn checksum(version: u64, words: &[u32]) -> u64 {
    XxHash3_64::oneshot_with_seed(version, bytemuck::cast_slice(words))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::super::crash::kill_after;
    use super::super::segment::tests::unique_name;
    use super::*;

    const WORDS: usize = 61;

    fn bell() -> Doorbell {
        Doorbell::default()
    }

    fn cell() -> ParamCell {
        ParamCell::create(&unique_name("cell"), WORDS).unwrap()
    }

    /// Content that is a function of the version, so that a torn copy shows without the checksum.
    fn content(version: u64) -> Vec<u32> {
        let len = WORDS - (version % 3) as usize;
        let word = |i| (version as u32).wrapping_mul(0x9E37_79B1) ^ i;
        (0..len as u32).map(word).collect()
    }

    fn read(cell: &ParamCell) -> Option<u64> {
        let mut out = vec![1, 2, 3];
        let version = cell.read(&mut out);
        assert_eq!(out, version.map(content).unwrap_or_default());
        version
    }

    #[test]
    fn versions_come_back_and_only_grow() {
        let name = unique_name("cell");
        let cell = ParamCell::create(&name, WORDS).unwrap();
        let other = ParamCell::open(&name).unwrap();
        let bell = bell();
        assert_eq!((read(&other), other.version()), (None, 0));
        for version in [1, 2, 10, 1 << 40] {
            let before = bell.value();
            cell.publish(version, &content(version), &bell).unwrap();
            assert_ne!(bell.value(), before);
            assert_eq!((read(&other), other.version()), (Some(version), version));
        }
        let stale = cell.publish(10, &content(10), &bell);
        assert!(matches!(stale, Err(ShmError::StaleVersion { .. })));
        let long = cell.publish(1 << 41, &[0; WORDS + 1], &bell);
        assert!(matches!(long, Err(ShmError::TooLong { .. })));
        assert_eq!(read(&other), Some(1 << 40), "refusals change nothing");
    }

    #[test]
    fn a_writer_killed_at_any_store_leaves_a_whole_version() {
        for step in 0.. {
            let (cell, bell) = (cell(), bell());
            cell.publish(4, &content(4), &bell).unwrap();
            cell.publish(5, &content(5), &bell).unwrap();
            let done = kill_after(step, || cell.publish(6, &content(6), &bell).unwrap());
            let seen = read(&cell).expect("a version");
            assert!(seen == 5 || seen == 6, "step {step}: {seen}");
            assert_eq!(cell.version(), seen, "what can be read is what is announced");
            // The next writer continues from what is there.
            cell.publish(seen + 1, &content(seen + 1), &bell).unwrap();
            assert_eq!((read(&cell), cell.version()), (Some(seen + 1), seen + 1));
            if done.is_some() {
                assert!(step as usize > WORDS, "every store was a step");
                break;
            }
        }
    }

    #[test]
    fn damage_is_counted_and_not_handed_out() {
        let (cell, bell) = (cell(), bell());
        cell.publish(3, &content(3), &bell).unwrap();
        cell.words(1, WORDS)[7].fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&cell), None);
        assert_eq!(cell.torn(), ATTEMPTS as u64);
    }

    /// A reader of a head with contents that no writer stores looped for ever.
    #[test]
    fn a_head_that_contradicts_itself_holds_nobody_up() {
        let (cell, bell) = (cell(), bell());
        cell.publish(3, &content(3), &bell).unwrap();
        cell.head().published.store(9, Ordering::Relaxed);
        assert_eq!((read(&cell), cell.version()), (None, 0));
    }

    #[test]
    fn readers_under_a_publishing_thread_see_no_tear() {
        const PUBLICATIONS: u64 = 200_000;
        let (cell, bell, over) = (cell(), bell(), AtomicBool::new(false));
        thread::scope(|s| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        let (mut last, mut reads) = (0, 0u64);
                        while !over.load(Ordering::Relaxed) {
                            if let Some(version) = read(&cell) {
                                assert!(version >= last, "{version} after {last}");
                                last = version;
                                reads += 1;
                            }
                        }
                        reads
                    })
                })
                .collect();
            for version in 1..=PUBLICATIONS {
                cell.publish(version, &content(version), &bell).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            let reads: u64 = readers.into_iter().map(|r| r.join().unwrap()).sum();
            assert!(reads > 0);
        });
        assert_eq!((read(&cell), cell.torn()), (Some(PUBLICATIONS), 0));
    }
}
