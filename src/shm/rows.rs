//! Memory of fixed-size records with an index from id to record, which one process at a time writes.
//!
//! A table of embedding rows is the largest thing of a run, and it outlives the process that works on it: main owns the segment, and
//! a trainer that takes the place of a dead one takes its role. The holder of the role works on plain slices, guarded by `&mut`.
//! A machine may have several of these memories with equal rows ([`RowWriter::copy_from`]). Other ranks of the machine read ([`RowReader`]), word by word; that nothing is written meanwhile is for their protocol
//! ([`super::exchange`]). What the words mean is for `sparse`.

use std::mem::{offset_of, size_of};

use rayon::prelude::*;

use super::error::ShmError;
use super::pod::Shareable;
use super::prefetch::{ahead, prefetch_lines, prefetch_lines_to_write};
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering};

const KIND: Kind = Kind(6);
/// Parameters that the creator leaves for whoever opens the memory.
pub const PARAMETERS: usize = 8;
/// Records that a thread copies at a time, where there are several threads.
const TOGETHER: usize = 128;
/// Words that are copied at a time.
const COPIED: usize = 1 << 22;

/// How much there is of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowShape {
    /// Words of a record.
    pub words: usize,
    pub records: usize,
    /// Slots of the index.
    pub slots: usize,
}

impl RowShape {
    fn body_len(self) -> usize {
        self.records_at() + self.records * self.words * size_of::<u32>()
    }

    fn offsets_at(self) -> usize {
        size_of::<Head>() + self.slots * size_of::<u64>()
    }

    fn records_at(self) -> usize {
        (self.offsets_at() + self.slots * size_of::<u32>()).next_multiple_of(64)
    }
}

#[repr(C, align(128))]
struct Head {
    /// Constant after creation.
    words: AtomicU64,
    records: AtomicU64,
    slots: AtomicU64,
    parameters: [AtomicU64; PARAMETERS],
    /// Records handed out so far.
    used: AtomicU64,
    /// Ids in the index.
    len: AtomicU64,
    /// Process that may write; 0 = none.
    writer: AtomicU64,
    /// 1 while entries of the index are being moved.
    moving: AtomicU64,
    /// Batches of changes that were written, those that were undone later among them.
    batches: AtomicU64,
}

// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Head {}

/// A mapping of the memory; the roles are made from it.
struct Memory {
    segment: Segment,
    shape: RowShape,
}

impl Memory {
    fn of(segment: Segment) -> Result<Self, ShmError> {
        let head = segment.at::<Head>(0);
        // Relaxed: constant since creation.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed) as usize;
        let shape = RowShape { words: load(&head.words), records: load(&head.records), slots: load(&head.slots) };
        let fits = shape.slots > 0 && shape.words.max(shape.records).max(shape.slots) <= segment.body_len();
        let expected = if fits { shape.body_len() as u64 } else { u64::MAX };
        let found = segment.body_len() as u64;
        if expected > found {
            return Err(ShmError::Truncated { name: segment.name().into(), expected, found });
        }
        Ok(Self { segment, shape })
    }

    fn head(&self) -> &Head {
        self.segment.at::<Head>(0)
    }

    fn keys(&self) -> &[AtomicU64] {
        self.segment.array(size_of::<Head>(), self.shape.slots)
    }

    fn offsets(&self) -> &[AtomicU32] {
        self.segment.array(self.shape.offsets_at(), self.shape.slots)
    }

    /// The words of the first `records` records.
    fn words(&self, records: usize) -> &[AtomicU32] {
        let records = records.min(self.shape.records);
        self.segment.array(self.shape.records_at(), records * self.shape.words)
    }

    fn parameters(&self) -> [u64; PARAMETERS] {
        // Relaxed: constant since creation.
        std::array::from_fn(|i| self.head().parameters[i].load(Ordering::Relaxed))
    }

    /// Starts to load the first `words` words of records.
    fn load_ahead(&self, records: impl Iterator<Item = u32>, words: usize) {
        self.shared(records, words).for_each(prefetch_lines);
    }

    /// Starts to load all cache lines of records.
    fn load_lines_ahead(&self, records: &[u32]) {
        self.shared(records.iter().copied(), self.shape.words).for_each(prefetch_lines);
    }

    /// The first `words` words of those of these records that exist.
    fn shared(&self, records: impl Iterator<Item = u32>, words: usize) -> impl Iterator<Item = &[AtomicU32]> {
        // Whoever loads ahead often asks for no record.
        let mut all = None;
        records.filter_map(move |record| {
            let at = record as usize * self.shape.words;
            all.get_or_insert_with(|| self.words(self.shape.records)).get(at..at + words)
        })
    }

    #[inline]
    fn at(&self, record: u32) -> usize {
        assert!((record as usize) < self.shape.records, "record {record}");
        self.shape.records_at() + record as usize * self.shape.words * size_of::<u32>()
    }
}

/// The writing role, held by one process at a time.
pub struct RowWriter(Memory);

impl RowWriter {
    /// Creates the segment `name`, owned by this process. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    pub fn create(name: &str, shape: RowShape, parameters: [u64; PARAMETERS]) -> Result<Self, ShmError> {
        let segment = Segment::create(name, KIND, layout(), shape.body_len())?;
        Self::fresh(segment, shape, parameters)
    }

    /// Memory of this process alone.
    ///
    /// # Errors
    /// When there is none left.
    pub fn private(shape: RowShape, parameters: [u64; PARAMETERS]) -> Result<Self, ShmError> {
        Self::fresh(Segment::private(KIND, layout(), shape.body_len())?, shape, parameters)
    }

    fn fresh(segment: Segment, shape: RowShape, parameters: [u64; PARAMETERS]) -> Result<Self, ShmError> {
        let head = segment.at::<Head>(0);
        // Relaxed: other processes are spawned later.
        for (word, value) in [(&head.words, shape.words), (&head.records, shape.records), (&head.slots, shape.slots)] {
            word.store(value as u64, Ordering::Relaxed);
        }
        head.parameters.iter().zip(parameters).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        Ok(Self(Memory { segment, shape }))
    }

    /// Takes the writing role of memory that main created.
    ///
    /// # Errors
    /// When it is missing, or another process has the role, or had it when it died and main has not taken it back yet.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let memory = Memory::of(Segment::open(name, KIND, layout(), size_of::<Head>())?)?;
        let me = u64::from(std::process::id());
        // AcqRel: pairs with the Release by which the role is given back; we see all that the last holder wrote.
        match memory.head().writer.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Self(memory)),
            Err(pid) => Err(ShmError::RoleTaken { name: name.into(), role: "writing", pid }),
        }
    }

    /// How much of `/dev/shm` such memory takes.
    pub fn footprint(shape: RowShape) -> u64 {
        Segment::footprint(shape.body_len())
    }

    /// Takes the role back from a process that died; called by main, once it has reaped it.
    pub fn recover(&self) {
        // Release: pairs with the Acquire in `open`.
        self.0.head().writer.store(0, Ordering::Release);
    }

    pub fn shape(&self) -> RowShape {
        self.0.shape
    }

    pub fn parameters(&self) -> [u64; PARAMETERS] {
        self.0.parameters()
    }

    pub fn keys(&self) -> &[AtomicU64] {
        self.0.keys()
    }

    pub fn offsets(&self) -> &[AtomicU32] {
        self.0.offsets()
    }

    /// Ids in the index.
    pub fn len(&self) -> usize {
        self.0.head().len.load(Ordering::Relaxed) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the number of ids in the index.
    pub fn set_len(&mut self, len: usize) {
        self.0.head().len.store(len as u64, Ordering::Relaxed);
    }

    /// Hands out a record that nobody has; `None` when there is none.
    pub fn allocate(&mut self) -> Option<u32> {
        let head = self.0.head();
        let used = head.used.load(Ordering::Relaxed);
        (used < self.0.shape.records as u64).then(|| {
            head.used.store(used + 1, Ordering::Relaxed);
            used as u32
        })
    }

    /// Takes back all records from number `used` on.
    pub fn take_back(&mut self, used: usize) {
        self.0.head().used.store(used as u64, Ordering::Relaxed);
    }

    /// Says whether entries of the index are being moved: if the writer dies meanwhile, the index is made anew from the records.
    pub fn set_moving(&mut self, moving: bool) {
        // Release: whoever finds the flag down after a death finds all moves whole.
        self.0.head().moving.store(moving.into(), Ordering::Release);
    }

    /// Whether a writer died while it moved entries of the index.
    pub fn is_moving(&self) -> bool {
        // Acquire: pairs with the Release in `set_moving`.
        self.0.head().moving.load(Ordering::Acquire) != 0
    }

    /// Records handed out so far.
    pub fn used(&self) -> usize {
        self.0.head().used.load(Ordering::Relaxed) as usize
    }

    /// Counts a batch of changes that is written.
    pub fn count_batch(&mut self) {
        self.0.head().batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces everything here by what `of` holds, which nobody changes meanwhile. Calls `look` now and then. If this process dies before
    /// the end, what is here is of no use, and has to be replaced again.
    ///
    /// # Panics
    /// When the two differ in shape or parameters.
    pub fn copy_from(&mut self, of: &RowReader, look: impl Fn()) {
        let (to, from) = (&self.0, &of.0);
        assert_eq!((to.shape, to.parameters()), (from.shape, from.parameters()), "tables of different shape");
        let used = from.head().used.load(Ordering::Relaxed) as usize;
        for (to, from) in to.keys().chunks(COPIED).zip(from.keys().chunks(COPIED)) {
            // Relaxed, as everywhere below: whoever reads here waits until this process says that all is there.
            to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
            look();
        }
        for (to, from) in [(to.offsets(), from.offsets()), (to.words(used), from.words(used))] {
            for (to, from) in to.chunks(COPIED).zip(from.chunks(COPIED)) {
                to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
                look();
            }
        }
        for (to, from) in [
            (&to.head().used, &from.head().used),
            (&to.head().len, &from.head().len),
            (&to.head().moving, &from.head().moving),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn record(&self, record: u32) -> &[u32] {
        // SAFETY: in bounds and aligned; this process alone writes, and it writes through `&mut self`.
        let bytes = unsafe { self.0.segment.slice(self.0.at(record), self.0.shape.words * size_of::<u32>()) };
        bytemuck::cast_slice(bytes)
    }

    /// Starts to load records.
    pub fn load_ahead(&self, records: impl Iterator<Item = u32>) {
        self.0.load_ahead(records, self.0.shape.words);
    }

    /// Starts to load records that are about to be written, and that other processes have read.
    pub fn load_ahead_to_write(&self, records: impl Iterator<Item = u32>) {
        self.0.shared(records, self.0.shape.words).for_each(prefetch_lines_to_write);
    }

    /// Copies the first `width` words of each record into `words`, one record after another. Many go on several threads.
    ///
    /// # Panics
    /// When `words` has another length, or `width` is not from 1 to the words of a record.
    pub fn load_all(&self, records: &[u32], width: usize, words: &mut [u32]) {
        self.check(records, width, words);
        let load = |records: &[u32], words: &mut [u32]| {
            for (i, (record, words)) in records.iter().zip(words.chunks_exact_mut(width)).enumerate() {
                self.0.load_lines_ahead(&records[ahead(i, records.len())]);
                words.copy_from_slice(&self.record(*record)[..width]);
            }
        };
        if records.len() < 2 * TOGETHER {
            return load(records, words);
        }
        let parts = records.par_chunks(TOGETHER).zip(words.par_chunks_mut(TOGETHER * width));
        parts.for_each(|(records, words)| load(records, words));
    }

    /// Replaces the first `width` words of each record by those that stand one after another in `words`. Many go on several threads.
    ///
    /// # Panics
    /// As [`load_all`](Self::load_all).
    pub fn store_all(&mut self, records: &[u32], width: usize, words: &[u32]) {
        self.check(records, width, words);
        let this = &*self;
        // By atomic words, so that a record which is named twice is a mixture, not a race.
        let store = |records: &[u32], words: &[u32]| {
            for (i, (record, words)) in records.iter().zip(words.chunks_exact(width)).enumerate() {
                this.0.load_lines_ahead(&records[ahead(i, records.len())]);
                let shared = this.0.segment.array::<AtomicU32>(this.0.at(*record), width);
                // Relaxed: the threads are joined below.
                shared.iter().zip(words).for_each(|(shared, word)| shared.store(*word, Ordering::Relaxed));
            }
        };
        if records.len() < 2 * TOGETHER {
            return store(records, words);
        }
        let parts = records.par_chunks(TOGETHER).zip(words.par_chunks(TOGETHER * width));
        parts.for_each(|(records, words)| store(records, words));
    }

    fn check(&self, records: &[u32], width: usize, words: &[u32]) {
        assert!((1..=self.0.shape.words).contains(&width), "{width} words of a record");
        assert_eq!(words.len(), records.len() * width, "{width} words for each record");
    }

    #[inline]
    pub fn record_mut(&mut self, record: u32) -> &mut [u32] {
        // SAFETY: as above.
        let bytes = unsafe { self.0.segment.slice_mut(self.0.at(record), self.0.shape.words * size_of::<u32>()) };
        bytemuck::cast_slice_mut(bytes)
    }
}

impl Drop for RowWriter {
    fn drop(&mut self) {
        let me = u64::from(std::process::id());
        // Release: pairs with the Acquire in `open`. It fails where main, which created the memory, never took the role.
        let _ = self.0.head().writer.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// The reading role, of any number of processes.
pub struct RowReader(Memory);

impl RowReader {
    /// Opens memory that main created.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        Ok(Self(Memory::of(Segment::open(name, KIND, layout(), size_of::<Head>())?)?))
    }

    /// Opens memory that main created to look at it: nothing can be changed there by mistake.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Ok(Self(Memory::of(Segment::observe(name, KIND, layout(), size_of::<Head>())?)?))
    }

    pub fn shape(&self) -> RowShape {
        self.0.shape
    }

    pub fn parameters(&self) -> [u64; PARAMETERS] {
        self.0.parameters()
    }

    pub fn keys(&self) -> &[AtomicU64] {
        self.0.keys()
    }

    pub fn offsets(&self) -> &[AtomicU32] {
        self.0.offsets()
    }

    /// Ids in the index.
    pub fn len(&self) -> usize {
        self.0.head().len.load(Ordering::Relaxed) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of `/dev/shm` that it takes.
    pub fn bytes(&self) -> u64 {
        RowWriter::footprint(self.0.shape)
    }

    /// The process that has the writing role, if any.
    pub fn writer(&self) -> Option<u64> {
        Some(self.0.head().writer.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Batches of changes that were written so far.
    pub fn batches(&self) -> u64 {
        self.0.head().batches.load(Ordering::Relaxed)
    }

    /// Starts to load the first `words` words of records.
    pub fn load_ahead(&self, records: impl Iterator<Item = u32>, words: usize) {
        self.0.load_ahead(records, words);
    }

    /// Copies a record, as many of its words as `out` has. The writer must not be at work on it.
    #[inline]
    pub fn read(&self, record: u32, out: &mut [u32]) {
        let words = self.0.segment.array::<AtomicU32>(self.0.at(record), self.0.shape.words);
        // Relaxed: whoever told the reader that the rows are there ordered them before.
        out.iter_mut().zip(words).for_each(|(out, word)| *out = word.load(Ordering::Relaxed));
    }
}

fn layout() -> u64 {
    layout_hash(&[size_of::<Head>(), offset_of!(Head, batches), PARAMETERS])
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::unique_name;
    use super::*;

    const SHAPE: RowShape = RowShape { words: 3, records: 4, slots: 8 };

    #[test]
    fn records_are_handed_out_once() {
        let mut rows = RowWriter::private(SHAPE, [0; PARAMETERS]).unwrap();
        let all: Vec<u32> = std::iter::from_fn(|| rows.allocate()).collect();
        assert_eq!(all, [0, 1, 2, 3]);
        assert_eq!(rows.allocate(), None);
    }

    #[test]
    fn many_records_are_copied_as_one_by_one() {
        let records = 5 * TOGETHER + 7;
        let shape = RowShape { words: 40, records, slots: 8 };
        // All but the last word of each record; the records in an order of their own, on one thread and on several.
        for count in [0, 1, 2 * TOGETHER - 1, 2 * TOGETHER, records] {
            let mut rows = RowWriter::private(shape, [0; PARAMETERS]).unwrap();
            while let Some(record) = rows.allocate() {
                rows.record_mut(record).fill(u32::MAX);
            }
            let named: Vec<u32> = (0..count).map(|i| ((i * 251 + 3) % records) as u32).collect();
            let words: Vec<u32> = (0..39 * count as u32).collect();
            rows.store_all(&named, 39, &words);
            for (record, words) in named.iter().zip(words.chunks_exact(39)) {
                assert_eq!((&rows.record(*record)[..39], rows.record(*record)[39]), (words, u32::MAX));
            }
            let untouched = (0..records as u32).filter(|record| rows.record(*record)[0] == u32::MAX).count();
            assert_eq!(untouched, records - count, "of {records} records, {count} are named");
            let mut back = vec![0; words.len()];
            rows.load_all(&named, 39, &mut back);
            assert_eq!(back, words);
        }
    }

    #[test]
    fn a_copy_holds_what_the_original_holds_whatever_it_held_before() {
        let (name, other) = (unique_name("table"), unique_name("table1"));
        let mut original = RowWriter::create(&name, SHAPE, [7; PARAMETERS]).unwrap();
        let mut copy = RowWriter::create(&other, SHAPE, [7; PARAMETERS]).unwrap();
        let fill = |rows: &mut RowWriter, records: u32| {
            for _ in 0..records {
                let record = rows.allocate().unwrap();
                rows.record_mut(record).fill(record + 10 * records);
                rows.keys()[record as usize + 2].store(u64::from(records), Ordering::Relaxed);
                rows.set_len(record as usize + 1);
            }
        };
        fill(&mut original, 2);
        fill(&mut copy, 4);
        copy.set_moving(true);
        copy.copy_from(&RowReader::open(&name).unwrap(), || {});
        let all = |rows: &RowWriter| -> (usize, usize, bool, Vec<u64>, Vec<Vec<u32>>) {
            let keys = rows.keys().iter().map(|key| key.load(Ordering::Relaxed)).collect();
            let records = (0..rows.used() as u32).map(|record| rows.record(record).to_vec()).collect();
            (rows.used(), rows.len(), rows.is_moving(), keys, records)
        };
        assert_eq!(all(&copy), all(&original));
        copy.record_mut(0)[0] += 1;
        assert_ne!(all(&copy), all(&original), "they share nothing");
        assert_eq!((RowReader::observe(&name).unwrap().len(), original.used()), (2, 2));
    }

    #[test]
    fn one_process_writes_at_a_time_and_the_next_sees_it() {
        let name = unique_name("rows");
        let main = RowWriter::create(&name, SHAPE, [7; PARAMETERS]).unwrap();
        let mut writer = RowWriter::open(&name).unwrap();
        assert!(matches!(RowWriter::open(&name), Err(ShmError::RoleTaken { .. })));
        let record = writer.allocate().unwrap();
        writer.record_mut(record).copy_from_slice(&[1, 2, 3]);
        // A process that died with the role leaves it to main to take it back.
        std::mem::forget(writer);
        main.recover();
        let next = RowWriter::open(&name).unwrap();
        assert_eq!((next.parameters(), next.record(record)), ([7; PARAMETERS], &[1, 2, 3][..]));
        let mut read = [0; 3];
        RowReader::open(&name).unwrap().read(record, &mut read);
        assert_eq!(read, [1, 2, 3]);
        drop(next);
        RowWriter::open(&name).expect("given back");
    }
}
