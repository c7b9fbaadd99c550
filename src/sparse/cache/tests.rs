//! The cache against the table without one: the same rows at every step, bit for bit, and the same table at the end.

mod emulated;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{TestCaseError, TestRunner};

use self::emulated::Emulated;
use super::resident::tests::two_of_one_hash;
use super::*;
use crate::settings::RowOptimizer;
use crate::sparse::Lookup;

/// Bugs that the oracle has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    ForgetsToWriteBack,
    ForgetsThatItChanged,
    FetchesWhatIsResident,
    EvictsPinned,
    BelievesWhatIsLikely,
    BringsInTwice,
    Traffic(traffic::Bug),
}

const OPTIMIZERS: [RowOptimizer; 4] =
    [RowOptimizer::Sgd, RowOptimizer::Adagrad, RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam];

#[derive(Debug, Clone)]
struct Batch {
    ids: Vec<u64>,
    /// A step without a backward pass changes nothing and releases its pins.
    updates: bool,
    /// Everything is written back after this batch, as for a snapshot.
    flush: bool,
}

#[derive(Debug, Clone)]
struct Case {
    optimizer: RowOptimizer,
    batches: Vec<Batch>,
    /// Rows of the cache beyond the largest batch.
    slack: usize,
    prefetch: usize,
    devices: usize,
    /// On emulated GPUs.
    on_device: bool,
    /// Rows that are fetched at a time.
    most: usize,
    /// Pieces of the work ahead that are done before, while and after a batch is computed.
    pieces: [usize; 3],
}

/// Batches in flight or prefetched.
#[derive(Default)]
struct Ahead {
    tickets: VecDeque<Ticket>,
    begun: usize,
    /// All rows of the newest one are fetched.
    fetched: bool,
}

impl Ahead {
    /// Does a piece of the work ahead of batch `step`; false where there is none, or no room.
    fn work(&mut self, cache: &mut Cache, table: &mut HostTable, lookups: &[Lookup], case: &Case, step: usize) -> bool {
        if let Some(ticket) = self.tickets.back_mut().filter(|_| !self.fetched) {
            self.fetched = cache.fetch(table, &lookups[self.begun - 1].unique, ticket, case.most);
            return true;
        }
        let Some(next) = lookups.get(self.begun).filter(|_| self.begun <= step + case.prefetch) else { return false };
        match cache.prefetch(table, &next.unique) {
            Ok(ticket) => self.tickets.push_back(ticket),
            Err(CacheError::Stall) => return false,
            Err(e) => panic!("{e}"),
        }
        (self.begun, self.fetched) = (self.begun + 1, false);
        true
    }

    /// Whether the oldest batch may be settled.
    fn is_due(&self) -> bool {
        self.tickets.len() > 1 || (self.tickets.len() == 1 && self.fetched)
    }
}

/// Ids 0 and 1 are others in truth, of one hash.
fn cases() -> impl Strategy<Value = Case> {
    let batch = (prop::collection::vec(0u64..40, 0..12), prop::bool::weighted(0.8), prop::bool::weighted(0.1));
    let twins = two_of_one_hash();
    let id = move |id: u64| twins.get(id as usize).copied().unwrap_or(id);
    let batch =
        batch.prop_map(move |(ids, updates, flush)| Batch { ids: ids.into_iter().map(id).collect(), updates, flush });
    let layout = (0usize..3, prop::sample::select(&[1usize, 3][..]), any::<bool>());
    let work = (prop::sample::select(&[1usize, 3, usize::MAX][..]), prop::array::uniform3(0usize..6));
    (
        prop::sample::select(&OPTIMIZERS[..]),
        prop::collection::vec(batch, 1..40),
        prop::sample::select(&[0usize, 1, 3, 40][..]),
        layout,
        work,
    )
        .prop_map(|(optimizer, batches, slack, (prefetch, devices, on_device), (most, pieces))| Case {
            optimizer,
            batches,
            slack,
            prefetch,
            devices,
            on_device,
            most,
            pieces,
        })
}

fn shape(optimizer: RowOptimizer) -> TableShape {
    TableShape { dim: 3, optimizer, max_rows: 64, seed: 9, marks: false }
}

fn gradient(step: usize, ids: &[u64]) -> Vec<f32> {
    ids.iter().flat_map(|id| (0..3).map(move |k| ((id * 7 + step as u64 * 3 + k) % 11) as f32 * 0.37 - 1.5)).collect()
}

/// Settles a batch whose turn has come: every id gets a row.
fn settle(cache: &mut Cache, table: &mut HostTable, unique: &[u64], ticket: &mut Ticket) {
    let mut records = vec![];
    cache.records(ticket, &mut records);
    for (record, &id) in records.iter_mut().zip(unique) {
        *record = record.or_else(|| table.find_or_insert(id));
    }
    cache.settle(table, unique, &records, ticket);
}

/// Runs a case with and without the cache.
fn check(case: &Case, bug: Option<Bug>) -> Result<Counters, TestCaseError> {
    let shape = shape(case.optimizer);
    let lookups: Vec<Lookup> = case.batches.iter().map(|batch| Lookup::of(&batch.ids)).collect();
    let largest = lookups.iter().map(|l| l.unique.len()).max().unwrap_or(0).max(1);
    // Each arena must hold a batch whose rows all fall to it.
    let capacity = largest + case.slack;
    let emulated = Emulated::new(shape, capacity, case.devices);
    let devices = emulated.devices();
    let mut cache = match case.on_device {
        true => Cache::on_device(shape, Box::new(emulated)),
        false => Cache::new(shape, capacity * case.devices, case.devices),
    };
    cache.planted = bug;
    cache.traffic.planted = bug.and_then(|bug| if let Bug::Traffic(bug) = bug { Some(bug) } else { None });
    cache.arenas.iter_mut().for_each(|arena| arena.evicts_pinned = bug == Some(Bug::EvictsPinned));
    let (mut table, mut flat) = (HostTable::private(shape).unwrap(), HostTable::private(shape).unwrap());
    let mut ahead = Ahead::default();
    let (mut rows, mut versions) = (Vec::new(), Vec::new());
    for (step, (batch, lookup)) in case.batches.iter().zip(&lookups).enumerate() {
        let work = |ahead: &mut Ahead, cache: &mut Cache, table: &mut HostTable, pieces: usize| {
            (0..pieces).all(|_| ahead.work(cache, table, &lookups, case, step))
        };
        work(&mut ahead, &mut cache, &mut table, case.pieces[0]);
        while !ahead.is_due() {
            prop_assert!(work(&mut ahead, &mut cache, &mut table, 1), "no batch in flight, and no room");
        }
        let mut ticket = ahead.tickets.pop_front().expect("the oldest one");
        settle(&mut cache, &mut table, &lookup.unique, &mut ticket);
        if case.on_device {
            cache.gather_on_device(&ticket, &lookup.unique, 0);
            rows.clone_from(&devices.lock().unwrap().rows);
        } else {
            cache.gather(&ticket, &lookup.unique, &mut rows, &mut versions);
        }
        work(&mut ahead, &mut cache, &mut table, case.pieces[1]);
        let records: Vec<u32> = lookup.unique.iter().map(|&id| flat.find_or_insert(id).unwrap()).collect();
        let expected: Vec<f32> = records.iter().flat_map(|&record| flat.row(record).to_vec()).collect();
        prop_assert_eq!(bits(&rows), bits(&expected), "rows of step {}", step);
        if !case.on_device {
            let expected: Vec<_> = records.iter().map(|&record| flat.record(record).last().copied()).collect();
            prop_assert_eq!(&versions, &expected, "versions of step {}", step);
        }
        if batch.updates {
            let gradients = gradient(step, &lookup.unique);
            if case.on_device {
                devices.lock().unwrap().gradients.clone_from(&gradients);
                cache.update_on_device(ticket, 0, &DeviceStep { rate: 0.1, passes: 0.0, precisions: vec![] });
            } else {
                cache.update(ticket, &gradients, 0.1);
            }
            for ((id, record), gradient) in lookup.unique.iter().zip(&records).zip(gradients.chunks(3)) {
                flat.update(*id, *record, gradient, 0.1);
            }
        } else {
            cache.release(ticket);
        }
        work(&mut ahead, &mut cache, &mut table, case.pieces[2]);
        prop_assert!(bug.is_some() || cache.is_in_order(), "after step {}", step);
        if batch.flush {
            cache.flush(&mut table);
            for (id, record) in flat.sorted() {
                let here = table.find(id).ok_or_else(|| TestCaseError::fail("a row is missing"))?;
                prop_assert_eq!(table.record(here), flat.record(record), "id {} after a flush", id);
            }
        }
    }
    prop_assert_eq!(cache.pinned(), 0, "no pins at the end");
    cache.flush(&mut table);
    let all = |table: &HostTable| -> Vec<(u64, Vec<u32>)> {
        table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect()
    };
    prop_assert_eq!(all(&table), all(&flat));
    let counters = cache.counters();
    prop_assert_eq!(counters.bytes_up, counters.misses * 4 * shape.words() as u64);
    prop_assert_eq!(counters.bytes_down, counters.write_backs * 4 * shape.words() as u64);
    let asked: usize = lookups.iter().map(|l| l.unique.len()).sum();
    prop_assert_eq!(counters.hits + counters.misses, asked as u64);
    let resident: usize = cache.arenas.iter().map(|arena| arena.resident.len()).sum();
    prop_assert_eq!(resident as u64, counters.misses - counters.evictions, "no row twice");
    Ok(counters)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn cached_equals_uncached_bit_for_bit() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 600, ..ProptestConfig::default() });
    runner.run(&cases(), |case| check(&case, None).map(|_| ())).unwrap();
}

#[test]
fn the_oracle_finds_every_planted_bug() {
    for bug in [
        Bug::ForgetsToWriteBack,
        Bug::ForgetsThatItChanged,
        Bug::FetchesWhatIsResident,
        Bug::EvictsPinned,
        Bug::BelievesWhatIsLikely,
        Bug::BringsInTwice,
        Bug::Traffic(traffic::Bug::LeavesTheStateBehind),
        Bug::Traffic(traffic::Bug::PutsBeforeItTakes),
        Bug::Traffic(traffic::Bug::ForgetsWhatIsAway),
        Bug::Traffic(traffic::Bug::ForgetsThatOthersAreAway),
    ] {
        let mut runner = TestRunner::deterministic();
        let cases = cases();
        let found = (0..4000).any(|_| {
            let case = cases.new_tree(&mut runner).unwrap().current();
            !matches!(catch_unwind(AssertUnwindSafe(|| check(&case, Some(bug)))), Ok(Ok(_)))
        });
        assert!(found, "{bug:?}");
    }
}

fn plain(batches: &[&[u64]], rows: usize) -> (Cache, HostTable, Vec<Lookup>) {
    let shape = shape(RowOptimizer::RowwiseAdagrad);
    let lookups: Vec<Lookup> = batches.iter().map(|ids| Lookup::of(ids)).collect();
    let mut table = HostTable::private(shape).unwrap();
    for id in lookups.iter().flat_map(|lookup| &lookup.unique) {
        table.find_or_insert(*id).unwrap();
    }
    (Cache::new(shape, rows, 1), table, lookups)
}

/// Fetches all rows of a batch.
fn fetch(cache: &mut Cache, table: &mut HostTable, unique: &[u64]) -> Result<Ticket, CacheError> {
    let mut ticket = cache.prefetch(table, unique)?;
    assert!(cache.fetch(table, unique, &mut ticket, usize::MAX));
    Ok(ticket)
}

#[test]
fn a_row_of_the_batch_before_is_not_fetched_again() {
    let (mut cache, mut table, l) = plain(&[&[1, 2], &[2, 3]], 4);
    let first = fetch(&mut cache, &mut table, &l[0].unique).unwrap();
    let second = fetch(&mut cache, &mut table, &l[1].unique).unwrap();
    assert_eq!((cache.counters().hits, cache.counters().misses), (1, 3));
    cache.update(first, &[1.0; 6], 0.1);
    let mut rows = Vec::new();
    cache.gather(&second, &l[1].unique, &mut rows, &mut vec![]);
    let mut flat = HostTable::private(table.shape()).unwrap();
    let record = flat.find_or_insert(2).unwrap();
    flat.update(2, record, &[1.0; 3], 0.1);
    assert_eq!(&rows[..3], flat.row(record), "the prefetched batch reads what the one before it has written");
}

#[test]
fn a_row_that_is_evicted_and_needed_next_comes_back_with_its_last_value() {
    let (mut cache, mut table, l) = plain(&[&[1], &[2], &[1]], 1);
    let ticket = fetch(&mut cache, &mut table, &l[0].unique).unwrap();
    cache.update(ticket, &[1.0; 3], 0.1);
    let ticket = fetch(&mut cache, &mut table, &l[0].unique).unwrap();
    let mut before = Vec::new();
    cache.gather(&ticket, &l[0].unique, &mut before, &mut vec![]);
    cache.release(ticket);
    let ticket = fetch(&mut cache, &mut table, &l[1].unique).unwrap();
    cache.release(ticket);
    let ticket = fetch(&mut cache, &mut table, &l[2].unique).unwrap();
    let mut after = Vec::new();
    cache.gather(&ticket, &l[2].unique, &mut after, &mut vec![]);
    assert_eq!(before, after);
    // The clean row of id 2 was evicted and not written.
    assert_eq!((cache.counters().evictions, cache.counters().write_backs), (2, 1));
}

#[test]
fn pinned_rows_stall_a_prefetch_which_then_changes_nothing() {
    let (mut cache, mut table, l) = plain(&[&[1, 2], &[3, 4], &[1, 2, 3, 4]], 3);
    let ticket = fetch(&mut cache, &mut table, &l[0].unique).unwrap();
    let before = cache.counters();
    assert_eq!(fetch(&mut cache, &mut table, &l[1].unique), Err(CacheError::Stall));
    assert_eq!(cache.counters(), Counters { stalls: 1, ..before });
    assert_eq!(cache.pinned(), 2);
    let too_large = CacheError::BatchTooLarge { needed: 4, capacity: 3 };
    assert_eq!(fetch(&mut cache, &mut table, &l[2].unique), Err(too_large));
    cache.release(ticket);
    let ticket = fetch(&mut cache, &mut table, &l[1].unique).unwrap();
    cache.release(ticket);
    assert_eq!(cache.pinned(), 0);
}

/// The queue of victims grew by an entry for every row of every batch, for ever.
#[test]
fn a_cache_that_never_evicts_keeps_no_history() {
    let (mut cache, mut table, l) = plain(&[&[1, 2]], 4);
    for _ in 0..10_000 {
        let ticket = fetch(&mut cache, &mut table, &l[0].unique).unwrap();
        cache.release(ticket);
    }
    assert!(cache.arenas[0].is_in_order());
}

#[test]
fn ids_that_come_once_do_not_drive_out_those_that_come_again() {
    let (mut cache, mut table, _) = plain(&[], 20);
    let mut ask = |cache: &mut Cache, ids: &[u64]| {
        let mut ticket = fetch(cache, &mut table, ids).unwrap();
        settle(cache, &mut table, ids, &mut ticket);
        cache.release(ticket);
    };
    ask(&mut cache, &[1, 2, 3]);
    ask(&mut cache, &[1, 2, 3]);
    // As many ids as the table has room for, twice as many as there are places.
    (10..50).for_each(|id| ask(&mut cache, &[id]));
    assert!([1, 2, 3].iter().all(|id| cache.is_resident(*id)));
    assert_eq!(cache.arenas[0].young + 3, cache.arenas[0].resident.len());
}

/// A row is freed and its record given to another id while a prefetched batch has it pinned.
#[test]
fn a_row_that_is_freed_while_it_is_pinned_is_gone_when_its_batch_comes() {
    let shape = TableShape { marks: true, ..shape(RowOptimizer::Sgd) };
    let (mut cache, mut table) = (Cache::new(shape, 3, 1), HostTable::private(shape).unwrap());
    let record = table.find_or_insert(1).unwrap();
    table.update(1, record, &[1.0; 3], 0.1);
    let mut ticket = fetch(&mut cache, &mut table, &[1]).unwrap();
    table.replace(record, 2);
    cache.forget(1);
    assert!(!cache.is_resident(1));
    settle(&mut cache, &mut table, &[1], &mut ticket);
    let (mut rows, mut first) = (vec![], vec![0; shape.words()]);
    cache.gather(&ticket, &[1], &mut rows, &mut vec![]);
    shape.first_value(1, &mut first);
    assert_eq!(bits(&rows), first[..3], "it has begun anew, in another record");
    cache.update(ticket, &[1.0; 3], 0.1);
    cache.flush(&mut table);
    shape.first_value(2, &mut first);
    assert_eq!(table.record(record), first, "the new owner's row is its own");
    assert_eq!((cache.pinned(), cache.arenas[0].reserved, cache.arenas[0].free.len()), (0, 0, 2));
}

/// Room that a prefetched batch keeps for new ids is not given to later ones.
#[test]
fn room_is_kept_for_ids_that_have_no_row_yet() {
    let (mut cache, mut table, _) = plain(&[&[3, 4]], 3);
    let mut first = fetch(&mut cache, &mut table, &[1, 2]).unwrap();
    assert_eq!(fetch(&mut cache, &mut table, &[3, 4]), Err(CacheError::Stall));
    settle(&mut cache, &mut table, &[1, 2], &mut first);
    assert_eq!(cache.pinned(), 2);
    cache.release(first);
    // One that is never settled gives its room back, too.
    let unsettled = fetch(&mut cache, &mut table, &[5, 6, 7]).unwrap();
    cache.release(unsettled);
    assert_eq!((cache.pinned(), cache.arenas[0].reserved), (0, 0));
    fetch(&mut cache, &mut table, &[3, 4]).unwrap();
}

#[test]
fn ids_of_one_hash_have_rows_of_their_own() {
    let [first, second] = two_of_one_hash();
    // Room for both, and for one: the exact count of the room there is must tell them apart, too.
    for (rows, fits) in [(3, true), (1, false)] {
        let (mut cache, mut table, _) = plain(&[&[first, second]], rows);
        let ticket = fetch(&mut cache, &mut table, &[first]).unwrap();
        let other = fetch(&mut cache, &mut table, &[second]);
        assert_eq!(other.is_ok(), fits);
        assert_eq!(cache.is_resident(second), fits);
        cache.release(ticket);
        if let Ok(other) = other {
            cache.update(other, &[1.0; 3], 0.1);
            cache.flush(&mut table);
            let [untouched, moved] = [first, second].map(|id| table.record(table.find(id).unwrap()).last().copied());
            assert_eq!((untouched, moved), (Some(0), Some(1)));
        }
    }
}
