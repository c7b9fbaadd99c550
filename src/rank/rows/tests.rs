//! The row thread against a plain map, whatever it overlaps with.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::*;
use crate::settings::{RowOptimizer, ValueSettings};
use crate::shm::{HalfShape, Part, RunNames, UndoLog, UndoShape};
use crate::sparse::{HostTable, Lookup, TableShape};

/// Bugs that the oracle has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    GathersBeforeTheUpdate,
    UpdatesBeforeReady,
}

const SHAPE: TableShape = TableShape { dim: 3, optimizer: RowOptimizer::Adagrad, max_rows: 64, seed: 9, marks: false };

#[derive(Debug, Clone)]
struct Case {
    /// Ids of each batch, and whether it has a backward pass.
    batches: Vec<(Vec<u64>, bool)>,
    /// Rows of the cache beyond the largest batch; `None` = no cache.
    slack: Option<usize>,
    ahead: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let batch = (prop::collection::vec(0u64..20, 1..8), prop::bool::weighted(0.8));
    (prop::collection::vec(batch, 1..30), prop::option::of(0usize..6), 0usize..4)
        .prop_map(|(batches, slack, ahead)| Case { batches, slack, ahead })
}

/// What the trainer makes of rows: it depends on every one of their bits.
fn gradients(rows: &[f32]) -> Vec<f32> {
    rows.iter().enumerate().map(|(i, w)| w * 1.5 + (i % 7) as f32 * 0.25 - 0.5).collect()
}

fn all(table: &HostTable) -> BTreeMap<u64, Vec<u32>> {
    table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect()
}

fn check(case: &Case, bug: Option<Bug>) -> Result<(), TestCaseError> {
    let mut settings = ValueSettings::default();
    let unique = |ids: &[u64]| Lookup::of(ids).unique.len();
    let largest = case.batches.iter().map(|(ids, _)| unique(ids)).max().unwrap_or(0);
    settings.table.cache_rows = case.slack.map_or(0, |slack| largest + slack);
    let store = Store::new(HostTable::private(SHAPE).unwrap(), &settings);
    let mut rows = Rows::start_with(store, (None, None), case.ahead, bug).unwrap();
    let mut flat = HostTable::private(SHAPE).unwrap();
    let mut asked = 0;
    for (n, (ids, updates)) in case.batches.iter().enumerate() {
        while asked < case.batches.len() && rows.has_room() {
            rows.ask(Arc::new(Block { ids: case.batches[asked].0.clone(), ..Block::default() }));
            asked += 1;
        }
        prop_assert!(asked > n, "no room for batch {}", n);
        let shared = rows.shared.clone();
        let mut looked_up = rows.looked_up(|| ()).unwrap();
        let (_, batch, d_rows) = looked_up.parts();
        let expected: Vec<f32> = Lookup::of(ids)
            .unique
            .iter()
            .flat_map(|&id| {
                let record = flat.find_or_insert(id).unwrap();
                flat.row(record).to_vec()
            })
            .collect();
        let bits = |rows: &[f32]| rows.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&batch.values), bits(&expected), "rows of batch {}", n);
        *d_rows = gradients(&batch.values);
        match bug {
            // It has all the time that it needs to go wrong.
            Some(Bug::GathersBeforeTheUpdate) if n + 1 < asked => {
                shared.turns.wait(Turn::LookedUp, n as u64 + 2, NAP, || ());
            }
            Some(Bug::UpdatesBeforeReady) => {
                shared.turns.wait(Turn::Updated, n as u64 + 1, NAP, || ());
            }
            _ => {}
        }
        if *updates {
            looked_up.ready(RowStep { rate: 0.1, passes: 1.0, snapshot: None });
            for (&id, gradient) in Lookup::of(ids).unique.iter().zip(gradients(&expected).chunks(3)) {
                let record = flat.find(id).unwrap();
                flat.update(id, record, gradient, 0.1);
            }
        } else {
            looked_up.release();
        }
    }
    drop(rows.settle(|| ()));
    let mut store = rows.end();
    store.flush();
    prop_assert_eq!(all(store.table()), all(&flat));
    Ok(())
}

#[test]
fn rows_of_every_batch_are_those_of_a_plain_table() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    runner.run(&cases(), |case| check(&case, None)).unwrap();
}

#[test]
fn the_oracle_finds_a_row_thread_that_does_not_wait() {
    for bug in [Bug::GathersBeforeTheUpdate, Bug::UpdatesBeforeReady] {
        let mut runner = TestRunner::deterministic();
        let found = (0..100).any(|_| {
            let case = cases().new_tree(&mut runner).unwrap().current();
            !matches!(catch_unwind(AssertUnwindSafe(|| check(&case, Some(bug)))), Ok(Ok(())))
        });
        assert!(found, "{bug:?}");
    }
}

#[test]
fn a_batch_larger_than_the_cache_is_told_when_its_turn_comes() {
    let mut settings = ValueSettings::default();
    settings.table.cache_rows = 2;
    let store = Store::new(HostTable::private(SHAPE).unwrap(), &settings);
    let mut rows = Rows::start(store, None, None, 1).unwrap();
    for ids in [vec![1, 2], vec![1, 2, 3]] {
        rows.ask(Arc::new(Block { ids, ..Block::default() }));
    }
    rows.looked_up(|| ()).unwrap().release();
    let error = rows.looked_up(|| ()).err().expect("refused").to_string();
    assert!(error.contains("table.cache_rows"), "{error}");
}

/// The trainer used to look at the count from before the snapshot while the row thread was still at it, took it for another full log, and
/// waited until the snapshot was on disk to begin the next one.
#[test]
fn a_snapshot_is_copied_beside_later_batches_which_see_that_nothing_has_changed_since() {
    let names = RunNames::for_this_process("rows").unwrap();
    let halves = Halves::create(&names.part("halves"), HalfShape { dense: 1, sparse: 1 << 16 }).unwrap();
    let halves = Arc::new(halves);
    let undo = UndoShape { words: SHAPE.words(), entries: SHAPE.max_rows };
    let _main = UndoLog::create(&names.part("undo"), undo, 0).unwrap();
    let mut table = HostTable::private(SHAPE).unwrap();
    table.track(UndoLog::open(&names.part("undo")).unwrap());
    let store = Store::new(table, &ValueSettings::default());
    let mut rows = Rows::start(store, None, Some(halves.clone()), 1).unwrap();
    for number in 1..6 {
        rows.ask(Arc::new(Block { ids: (0..60).collect(), weight: vec![1.0; 60], ..Block::default() }));
        let mut looked_up = rows.looked_up(|| ()).unwrap();
        assert_eq!(looked_up.changed(), 60 * usize::from(number % 2 == 0));
        let (_, batch, gradients) = looked_up.parts();
        *gradients = vec![1.0; batch.values.len()];
        let snapshot = (number % 2 == 0).then_some((number / 2, number));
        looked_up.ready(RowStep { rate: 0.1, passes: 1.0, snapshot });
        if let Some((number, update)) = snapshot {
            halves.write(Part::Dense, number, update, []).unwrap();
            let complete = loop {
                match halves.pending().unwrap() {
                    Some(complete) => break complete,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((complete.snapshot, complete.update), (number, update));
            halves.commit(number);
        }
    }
}
