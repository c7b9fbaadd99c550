//! Rows that come late and go again, against a plain map: whatever is fetched ahead, with and without a cache, through snapshots and
//! deaths.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::*;
use crate::run::sparse_part::DeltaMemory;
use crate::settings::{RowOptimizer, WhenFull};
use crate::shm::crash::kill_after;
use crate::shm::{HalfShape, RunNames, UndoLog, UndoShape};
use crate::sparse::file::{RowFileReader, RowLayout};
use crate::sparse::marks::LastUse;
use crate::sparse::sightings::Sightings;
use crate::sparse::{TableError, TableShape};

const DAYS: [u32; 3] = [20_000, 20_001, 20_002];

#[derive(Debug, Clone)]
struct Batch {
    ids: Vec<u64>,
    day: u16,
    /// A snapshot is taken behind it.
    snapshot: bool,
}

#[derive(Debug, Clone)]
struct Case {
    batches: Vec<Batch>,
    /// Batches from this one on are of the second pass.
    second_pass: usize,
    max_rows: usize,
    when_full: WhenFull,
    admit_after: u32,
    ahead: usize,
    /// Rows of the cache beyond the largest batch, and its arenas.
    cache: Option<(usize, usize)>,
    /// The writer dies in this batch, at this one of its stores.
    death: Option<(usize, u32)>,
    /// Rows of a snapshot that are copied behind each batch, and rows of a later one that are noted before its update.
    copied: usize,
    noted: usize,
    /// Pieces of the work of fetching the newest batch that are done behind each batch.
    pieces: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    // Few ids in small batches are asked for again while their rows are being freed.
    let of =
        |ids| (ids, 0u16..3, prop::bool::weighted(0.2)).prop_map(|(ids, day, snapshot)| Batch { ids, day, snapshot });
    let batches = prop_oneof![
        prop::collection::vec(of(prop::collection::vec(0u64..24, 1..8)), 1..40),
        prop::collection::vec(of(prop::collection::vec(0u64..4, 1..3)), 1..40),
    ];
    (
        (batches, 0usize..40, prop_oneof![1usize..16, 1usize..4]),
        prop::sample::select(&[WhenFull::Oldest, WhenFull::Oldest, WhenFull::Ignore][..]),
        (1u32..4, prop_oneof![0usize..4, 3usize..7]),
        prop::option::of((prop_oneof![0usize..6, Just(0)], prop::sample::select(&[1usize, 3][..]))),
        prop::option::of((0usize..40, 0u32..120)),
        (0usize..6, 0usize..6, 0usize..5),
    )
        .prop_map(
            |(
                (batches, second_pass, max_rows),
                when_full,
                (admit_after, ahead),
                cache,
                death,
                (copied, noted, pieces),
            )| Case {
                batches,
                second_pass,
                max_rows,
                when_full,
                admit_after,
                ahead,
                cache,
                death,
                copied,
                noted,
                pieces,
            },
        )
}

impl Case {
    fn shape(&self) -> TableShape {
        let marks = self.when_full == WhenFull::Oldest;
        TableShape { dim: 3, optimizer: RowOptimizer::Adagrad, max_rows: self.max_rows, seed: 9, marks }
    }

    fn settings(&self) -> ValueSettings {
        let mut settings = ValueSettings::default();
        let t = &mut settings.table;
        (t.max_rows, t.when_full, t.admit_after) = (self.max_rows, self.when_full, self.admit_after);
        t.counters = 1 << 16;
        t.keep_days = u32::from(self.when_full == WhenFull::Oldest);
        if let Some((slack, devices)) = self.cache {
            let largest = self.batches.iter().map(|batch| Lookup::of(&batch.ids).unique.len()).max().unwrap_or(0);
            // Each arena must hold a batch whose rows all fall to it.
            (t.cache_rows, t.devices) = ((largest + slack) * devices, devices);
        }
        settings
    }

    fn block(&self, number: usize) -> Block {
        let Batch { ids, day, .. } = &self.batches[number];
        let n = ids.len();
        // One field: as many samples as ids.
        Block {
            epoch: u64::from(number >= self.second_pass),
            ids: ids.clone(),
            weight: vec![1.0; n],
            day: vec![*day; n],
            ..Block::default()
        }
    }
}

fn gradients(rows: &[f32]) -> Vec<f32> {
    rows.iter().enumerate().map(|(i, w)| w * 1.5 + (i % 7) as f32 * 0.25 - 0.5).collect()
}

type Rows = BTreeMap<u64, Vec<u32>>;

/// What the rules say, in the plainest way.
#[derive(Clone)]
struct Model {
    shape: TableShape,
    /// Each row's words as they stand in files.
    rows: Rows,
    seen: HashMap<u64, u32>,
    uses: u64,
}

impl Model {
    fn last(&self, id: u64) -> LastUse {
        LastUse::of(&self.rows[&id][self.shape.words()..])
    }

    fn touch(&mut self, id: u64, day: u16) {
        if self.shape.marks {
            self.uses += 1;
            let day = self.last(id).day.max(DAYS[usize::from(day)]);
            let words = LastUse { number: self.uses, day }.words();
            self.rows.get_mut(&id).unwrap()[self.shape.words()..].copy_from_slice(&words);
        }
    }

    /// Gives ids their rows; false where the table holds fewer rows than the batch needs.
    fn settle(&mut self, case: &Case, number: usize) -> bool {
        let Batch { ids, day, .. } = &case.batches[number];
        let unique = Lookup::of(ids).unique;
        let before = self.uses;
        for &id in unique.iter().filter(|id| self.rows.contains_key(id)).collect::<Vec<_>>() {
            self.touch(id, *day);
        }
        for &id in &unique {
            if self.rows.contains_key(&id) {
                continue;
            }
            let seen = self.seen.entry(id).or_default();
            if number < case.second_pass {
                *seen += ids.iter().filter(|other| **other == id).count() as u32;
            }
            if case.admit_after > 1 && *seen < case.admit_after {
                continue;
            }
            if self.rows.len() == case.max_rows {
                if case.when_full == WhenFull::Ignore {
                    continue;
                }
                let oldest = *self.rows.keys().min_by_key(|id| self.last(**id).number).unwrap();
                if self.last(oldest).number > before {
                    return false;
                }
                self.rows.remove(&oldest);
            }
            let mut words = vec![0; self.shape.file_words()];
            self.shape.first_value(id, &mut words[..self.shape.words()]);
            self.rows.insert(id, words);
            self.touch(id, *day);
        }
        true
    }

    fn gather(&self, unique: &[u64]) -> Vec<f32> {
        let mut first = vec![0; self.shape.words()];
        let mut all = vec![];
        for id in unique {
            let words = match self.rows.get(id) {
                Some(words) => words,
                None => {
                    self.shape.first_value(*id, &mut first);
                    &first
                }
            };
            all.extend_from_slice(bytemuck::cast_slice::<u32, f32>(&words[..self.shape.dim]));
        }
        all
    }

    fn versions(&self, unique: &[u64]) -> Vec<Option<u32>> {
        unique.iter().map(|id| self.rows.get(id).map(|words| words[self.shape.words() - 1])).collect()
    }

    fn update(&mut self, unique: &[u64], gradients: &[f32]) {
        for (id, gradient) in unique.iter().zip(gradients.chunks(self.shape.dim)) {
            if let Some(words) = self.rows.get_mut(id) {
                self.shape.update(&mut words[..self.shape.words()], gradient, 0.1);
            }
        }
    }
}

fn all(table: &HostTable) -> Rows {
    table.sorted().into_iter().map(|(id, record)| (id, table.file_record(record).to_vec())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What a snapshot holds.
#[derive(Clone)]
struct Snapshot {
    number: u64,
    /// Batches before it.
    behind: usize,
    model: Model,
    sightings: Vec<u8>,
    /// What the deltas on disk come to.
    merged: Rows,
}

fn undo_log(case: &Case, since: u64) -> (UndoLog, UndoLog) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = RunNames::for_this_process(&format!("store{n}")).unwrap().part("undo");
    let shape = UndoShape { words: case.shape().stored_words(), entries: case.max_rows };
    (UndoLog::create(&name, shape, since).unwrap(), UndoLog::open(&name).unwrap())
}

fn store(case: &Case, mut table: HostTable, log: UndoLog, sightings: &[u8], bug: Option<Bug>) -> Store {
    table.track(log);
    let settings = case.settings();
    let mut store = Store::new(table, &settings);
    store.begin(&settings, &DAYS, sightings).unwrap();
    store.admission.planted = bug;
    store
}

/// Halves whose newest snapshot on disk is that of a number.
fn halves(case: &Case, number: u64) -> Arc<Halves> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = RunNames::for_this_process(&format!("store{n}")).unwrap().part("halves");
    let sightings = Sightings::bytes(case.settings().table.counters);
    let sparse = SparsePart::capacity(case.shape().into(), case.max_rows, sightings);
    let halves = Halves::create(&name, HalfShape { dense: 1, sparse }).unwrap();
    halves.commit(number);
    Arc::new(halves)
}

impl Snapshot {
    /// Brings the snapshot, whose rows are ready, to disk behind `before`, and checks it.
    fn commit(mut self, halves: &Halves, case: &Case, before: &Rows) -> Result<Self, TestCaseError> {
        halves.write(Part::Dense, self.number, 0, []).unwrap();
        let layout = RowLayout::from(case.shape());
        let part = SparsePart::parse(halves.pending().unwrap().expect("complete").sparse, layout).unwrap();
        prop_assert_eq!(part.sightings, &self.sightings[..]);
        let mut memory = DeltaMemory::default();
        let file = part.delta(&mut memory);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delta");
        std::fs::write(&path, file).unwrap();
        let mut reader = RowFileReader::open(&path).unwrap();
        // All rows are also what has changed since the snapshot before: its file may be read behind an older base.
        self.merged = before.clone();
        while let Some((id, words)) = reader.read().unwrap() {
            if layout.marks && LastUse::of(&words[layout.words()..]).number == 0 {
                self.merged.remove(&id).expect("it was in a snapshot");
            } else {
                self.merged.insert(id, words.to_vec());
            }
        }
        prop_assert_eq!(&self.merged, &self.model.rows, "the deltas are the table");
        halves.commit(self.number);
        Ok(self)
    }
}

/// Does up to so many pieces of the work of fetching a batch; false where there is no room.
fn fetch(store: &mut Store, batch: &mut BatchRows, pieces: usize) -> Result<bool, TestCaseError> {
    for _ in 0..pieces {
        if batch.is_fetched() {
            break;
        }
        if !store.fetch(batch).map_err(|e| TestCaseError::fail(e.to_string()))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs a case through the store and through the model.
fn check(case: &Case, bug: Option<Bug>) -> Result<(), TestCaseError> {
    let shape = case.shape();
    let mut model = Model { shape, rows: Rows::new(), seen: HashMap::new(), uses: 0 };
    let mut newest = Snapshot { number: 0, behind: 0, model: model.clone(), sightings: vec![], merged: Rows::new() };
    let ((mut main, log), mut halves) = (undo_log(case, 0), self::halves(case, 0));
    // A snapshot whose rows are being copied.
    let mut begun: Option<Snapshot> = None;
    let mut store = store(case, HostTable::private(shape).unwrap(), log, &[], bug);
    let mut ahead: VecDeque<BatchRows> = VecDeque::new();
    let (mut n, mut death) = (0, case.death);
    while n < case.batches.len() {
        let (block, mut died) = (case.block(n), false);
        let mut step = || -> Result<bool, TestCaseError> {
            while ahead.len() <= case.ahead && n + ahead.len() < case.batches.len() {
                let mut batch = BatchRows::default();
                // One after another, as the row thread does.
                ahead
                    .back_mut()
                    .into_iter()
                    .try_for_each(|before| fetch(&mut store, before, usize::MAX).map(|_| ()))?;
                batch.begin(&mut Finder::default(), &case.batches[n + ahead.len()].ids);
                if !fetch(&mut store, &mut batch, 1)? {
                    break;
                }
                ahead.push_back(batch);
            }
            ahead.back_mut().into_iter().try_for_each(|last| fetch(&mut store, last, case.pieces).map(|_| ()))?;
            if let Some(batch) = ahead.get_mut(1) {
                store.note_ahead(batch, case.noted);
            }
            let mut batch = ahead.pop_front().ok_or_else(|| TestCaseError::fail("no room for a batch in its turn"))?;
            fetch(&mut store, &mut batch, usize::MAX)?;
            let room = model.settle(case, n);
            match store.settle(&mut batch, &block) {
                Err(e) if !room && e.is::<TableError>() => return Ok(false),
                Err(e) => return Err(TestCaseError::fail(e.to_string())),
                Ok(()) => prop_assert!(room, "batch {} needs more rows than there are", n),
            }
            store.gather(&mut batch);
            let unique = batch.lookup.unique.clone();
            let expected = model.gather(&unique);
            prop_assert_eq!(bits(&batch.values), bits(&expected), "rows of batch {}", n);
            prop_assert_eq!(&batch.versions, &model.versions(&unique), "versions of batch {}", n);
            let gradients = gradients(&expected);
            store.update(&mut batch, &gradients, 0.1);
            model.update(&unique, &gradients);
            prop_assert!(bug.is_some() || store.cache.as_ref().is_none_or(Cache::is_in_order), "after batch {}", n);
            if case.batches[n].snapshot && begun.is_none() {
                let (number, sightings) = (newest.number + 1, store.admission.sightings().to_vec());
                store.begin_snapshot(&halves, number, 0).unwrap();
                begun = Some(Snapshot { number, behind: n + 1, model: model.clone(), sightings, merged: Rows::new() });
            }
            store.copy_rows(case.copied);
            Ok(true)
        };
        let room = match death.filter(|(batch, _)| *batch == n) {
            Some((_, stores)) => {
                death = None;
                let ended = kill_after(stores, step);
                died = ended.is_none();
                ended.transpose()?.unwrap_or(true)
            }
            None => step()?,
        };
        if !room {
            return Ok(());
        }
        if died {
            // Whatever it was doing: the table is what it was at the newest snapshot, and what was fetched ahead is lost.
            ahead.clear();
            begun = None;
            let mut table = store.into_table();
            prop_assert!(table.roll_back(&main, newest.number).is_some());
            prop_assert_eq!(all(&table), newest.model.rows.clone(), "after a death in batch {}", n);
            prop_assert_eq!(table.len(), newest.model.rows.len());
            (n, model) = (newest.behind, newest.model.clone());
            let log;
            (main, log) = undo_log(case, newest.number);
            halves = self::halves(case, newest.number);
            store = self::store(case, table, log, &newest.sightings, bug);
            continue;
        }
        n += 1;
        if !store.table.is_copying()
            && let Some(ready) = begun.take()
        {
            newest = ready.commit(&halves, case, &newest.merged)?;
        }
    }
    store.flush();
    prop_assert_eq!(all(&store.table), model.rows);
    if let Some(cache) = &store.cache {
        prop_assert_eq!(cache.pinned(), 0, "no pins at the end");
    }
    Ok(())
}

#[test]
fn rows_come_and_go_as_in_a_plain_map() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 1500, ..ProptestConfig::default() });
    runner.run(&cases(), |case| check(&case, None)).unwrap();
}

#[test]
fn the_oracle_finds_every_planted_bug() {
    for bug in [
        Bug::EvictsFromTheBatch,
        Bug::ForgetsUses,
        Bug::CountsEveryPass,
        Bug::LeavesFreedRowsInTheCache,
        Bug::BelievesWhatItFoundAhead,
    ] {
        let mut runner = TestRunner::deterministic();
        let found = (0..1000).any(|_| {
            let case = cases().new_tree(&mut runner).unwrap().current();
            !matches!(catch_unwind(AssertUnwindSafe(|| check(&case, Some(bug)))), Ok(Ok(())))
        });
        assert!(found, "{bug:?}");
    }
}

fn small(batches: &[&[u64]], max_rows: usize, ahead: usize) -> Case {
    let batches = batches.iter().map(|ids| Batch { ids: ids.to_vec(), day: 0, snapshot: true }).collect();
    Case {
        batches,
        second_pass: usize::MAX,
        max_rows,
        when_full: WhenFull::Oldest,
        admit_after: 1,
        ahead,
        cache: None,
        death: None,
        copied: 1,
        noted: 1,
        pieces: 1,
    }
}

#[test]
fn a_row_that_is_freed_and_given_to_another_id_between_look_up_and_gather() {
    // The third batch is found while the row of 1 is there; the second gives its record to 3.
    for cache in [None, Some((4, 1))] {
        let mut case = small(&[&[1, 2], &[3], &[1], &[3, 1]], 2, 2);
        case.cache = cache;
        check(&case, None).unwrap();
    }
}

#[test]
fn a_row_that_comes_back_while_later_batches_pin_its_place_takes_no_second_one() {
    // The row of 1 is freed while the third and fourth batch have it pinned; the third gives it a row again.
    let mut case = small(&[&[1], &[2], &[1], &[1], &[2]], 1, 3);
    case.cache = Some((1, 1));
    check(&case, None).unwrap();
}

/// The part had all rows and not the ids of those that were dropped: read behind an older base, as it is where it could not become one, it brought
/// them back.
#[test]
fn a_snapshot_of_which_rows_were_dropped_says_so_even_if_all_others_have_changed() {
    let case = small(&[&[1, 2], &[3, 4]], 2, 0);
    let layout = RowLayout::from(case.shape());
    let mut store = store(&case, HostTable::private(case.shape()).unwrap(), undo_log(&case, 0).1, &[], None);
    let halves = halves(&case, 0);
    for (number, all, dropped) in [(1, true, 0), (2, false, 2)] {
        let (n, mut batch) = (number as usize - 1, BatchRows::default());
        let block = case.block(n);
        batch.begin(&mut Finder::default(), &block.ids);
        assert!(fetch(&mut store, &mut batch, usize::MAX).unwrap());
        store.settle(&mut batch, &block).unwrap();
        store.gather(&mut batch);
        let gradients = gradients(&batch.values);
        store.update(&mut batch, &gradients, 0.1);
        store.snapshot(&halves, number, number).unwrap();
        halves.write(Part::Dense, number, number, []).unwrap();
        let pending = halves.pending().unwrap().expect("complete");
        let part = SparsePart::parse(pending.sparse, layout).unwrap();
        let mut memory = DeltaMemory::default();
        let rows = (part.delta(&mut memory).len() - 40) / layout.row_bytes();
        assert_eq!((part.all, rows), (all, 2 + dropped), "snapshot {number}");
        halves.commit(number);
    }
}

#[test]
fn a_table_of_one_row() {
    for (cache, ahead) in [(None, 0), (None, 2), (Some((3, 1)), 2)] {
        let mut case = small(&[&[1], &[2], &[1, 1], &[1], &[3], &[2]], 1, ahead);
        case.cache = cache;
        check(&case, None).unwrap();
    }
    // A batch of two ids has no room, and says so.
    let mut store = store(
        &small(&[&[1]], 1, 0),
        HostTable::private(small(&[], 1, 0).shape()).unwrap(),
        undo_log(&small(&[&[1]], 1, 0), 0).1,
        &[],
        None,
    );
    let (case, mut batch) = (small(&[&[1, 2]], 1, 0), BatchRows::default());
    batch.begin(&mut Finder::default(), &[1, 2]);
    assert!(store.fetch(&mut batch).unwrap());
    let error = store.settle(&mut batch, &case.block(0)).unwrap_err().to_string();
    assert!(error.contains("2 ids") && error.contains("table.max_rows"), "{error}");
}

/// At every store of a batch that gives a record to another id, with and without snapshots before.
#[test]
fn a_writer_that_is_killed_at_any_point_leaves_a_table_that_goes_back() {
    for cache in [None, Some((2, 1))] {
        for (batches, dies_in) in [
            (&[&[1, 2, 3][..], &[4], &[5, 1], &[2, 6]][..], 1),
            (&[&[1, 2, 3], &[4], &[5, 1], &[2, 6]], 2),
            (&[&[1, 2, 3], &[4], &[5, 1], &[2, 6]], 3),
            (&[&[1, 2, 3], &[4]], 0),
        ] {
            for stores in 0..200 {
                for snapshots in [true, false] {
                    let mut case = small(batches, 3, 1);
                    case.batches.iter_mut().for_each(|batch| batch.snapshot = snapshots);
                    (case.cache, case.death) = (cache, Some((dies_in, stores)));
                    check(&case, None).unwrap();
                }
            }
        }
    }
}
