//! Copies of rows beside the table: the same rows for every batch, and the same bytes after every update.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::*;
use crate::collective::rows::encode;
use crate::settings::{RowOptimizer, SparseAverage};
use crate::shm::RunNames;
use crate::sparse::cache::copies::Bug;
use crate::sparse::{HostTable, Lookup, TableView};

const DIM: usize = 3;
const IDS: u64 = 60;

#[derive(Debug, Clone)]
struct Case {
    optimizer: RowOptimizer,
    average: SparseAverage,
    /// Ids of each rank's shard in each step, and a number from which their gradients follow.
    steps: Vec<Vec<Vec<(u64, i8)>>>,
    /// Rows of which a rank keeps copies; rows of the table, which may be fewer than there are ids.
    copies: usize,
    max_rows: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let shard = prop::collection::vec((0..IDS, any::<i8>()), 0..14);
    let steps = (2usize..4)
        .prop_flat_map(move |ranks| prop::collection::vec(prop::collection::vec(shard.clone(), ranks..=ranks), 1..12));
    let optimizer = prop::sample::select(&[
        RowOptimizer::Sgd,
        RowOptimizer::Adagrad,
        RowOptimizer::RowwiseAdagrad,
        RowOptimizer::LazyAdam,
    ]);
    let average = prop::sample::select(&[SparseAverage::Occurrence, SparseAverage::World]);
    (optimizer, average, steps, 1usize..70, prop_oneof![Just(2 * IDS as usize), 5usize..50])
        .prop_map(|(optimizer, average, steps, copies, max_rows)| Case { optimizer, average, steps, copies, max_rows })
}

/// The message of a shard with these unique ids.
fn message(lookup: &Lookup, shard: &[(u64, i8)], fields: usize) -> Vec<u8> {
    let mut gradients = vec![0.0; lookup.unique.len() * DIM];
    for ((_, g), &place) in shard.iter().zip(&lookup.inverse) {
        let floats = &mut gradients[place as usize * DIM..][..DIM];
        floats.iter_mut().zip([0.3, -1.0, 0.07]).for_each(|(sum, by)| *sum += f32::from(*g) * by);
    }
    let mut out = vec![];
    let of_row = |row: usize| ((lookup.unique[row] % fields as u64) as usize, 1.5 + row as f32, 4.0);
    encode(lookup, of_row, &gradients, fields, &mut out);
    out
}

/// What goes wrong first, if anything does, with a bug in the copies of every rank or without.
fn wrong(case: &Case, planted: Option<Bug>) -> Option<String> {
    let mut settings = ValueSettings::default();
    (settings.values.dim, settings.ranks.sparse_average) = (DIM, case.average);
    settings.table.when_full = WhenFull::Ignore;
    let fields = settings.values.fields.len();
    let shape = TableShape { dim: DIM, optimizer: case.optimizer, max_rows: case.max_rows, seed: 3, marks: false };
    let names = RunNames::for_this_process("copies").unwrap();
    let table = HostTable::create(&names.part("table"), shape).unwrap();
    let view = TableView::open(&names.part("table")).unwrap();
    let prior = || RowPrior::of(vec![[0.4, 0.7]; fields], 0.2);
    let mut rows = MergedRows::new(Store::direct(table, &settings), prior());
    let mut others: Vec<MergedCopies> = (1..case.steps[0].len())
        .map(|_| {
            let mut copies = Copies::new(shape, case.copies);
            copies.planted = planted;
            MergedCopies::new(copies, prior())
        })
        .collect();
    let (mut record, mut values) = (vec![0; shape.words()], vec![]);
    for (n, shards) in case.steps.iter().enumerate() {
        let lookups: Vec<Lookup> =
            shards.iter().map(|shard| Lookup::of(&shard.iter().map(|(id, _)| *id).collect::<Vec<_>>())).collect();
        for (MergedCopies { copies, .. }, lookup) in others.iter_mut().zip(&lookups[1..]) {
            copies.begin(&view, &lookup.unique);
            copies.read_all(&view, &lookup.unique, &mut vec![], &mut values);
            for (&id, row) in lookup.unique.iter().zip(values.chunks_exact(DIM)) {
                rows.store.table().read(id, &mut record);
                if bytemuck::cast_slice::<f32, u32>(row) != &record[..DIM] {
                    return Some(format!("step {n}: row {id}"));
                }
            }
        }
        let messages: Vec<Vec<u8>> =
            lookups.iter().zip(shards).map(|(lookup, shard)| message(lookup, shard, fields)).collect();
        let given = || messages.iter().map(|message| &message[..]);
        let step = RowStep { rate: 0.1, passes: 0.5 + n as f64, snapshot: None };
        rows.write(given(), &settings, step, 64).unwrap();
        for (rank, other) in (1..).zip(&mut others) {
            other.write(given(), &settings, step, 64).unwrap();
            if let Some(id) = other.copies.stale(&view, usize::MAX) {
                return Some(format!("step {n}: the copy of row {id} of rank {rank}"));
            }
        }
    }
    None
}

proptest! {
    #[test]
    fn copies_are_the_rows_of_the_table_after_every_update(case in cases()) {
        prop_assert_eq!(wrong(&case, None), None);
    }
}

#[test]
fn bugs_in_copies_are_found() {
    let mut runner = TestRunner::deterministic();
    let cases: Vec<Case> = (0..300).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();
    for bug in [Bug::MissesAnUpdate, Bug::CopiesAbsentRows, Bug::DropsWhatTheBatchNeeds] {
        let found = |case: &Case| {
            let tried = std::panic::catch_unwind(|| wrong(case, Some(bug)));
            tried.map_or(true, |wrong| wrong.is_some())
        };
        assert!(cases.iter().any(found), "{bug:?}");
    }
}

#[test]
fn hits_copies_and_drops_are_counted() {
    let shape = TableShape { dim: DIM, optimizer: RowOptimizer::Sgd, max_rows: 9, seed: 3, marks: false };
    let names = RunNames::for_this_process("counted").unwrap();
    let mut table = HostTable::create(&names.part("table"), shape).unwrap();
    (0..5).for_each(|id| assert!(table.find_or_insert(id).is_some()));
    let view = TableView::open(&names.part("table")).unwrap();
    let mut copies = Copies::new(shape, 2);
    let mut batch = |ids: &[u64]| {
        copies.begin(&view, ids);
        copies.read_all(&view, ids, &mut vec![], &mut vec![]);
        copies.end();
        let counters = copies.counters();
        [counters.hits, counters.misses, counters.evictions, counters.absent, counters.bytes_up]
    };
    let bytes = 4 * shape.words() as u64;
    assert_eq!(batch(&[0, 1]), [0, 2, 0, 0, 2 * bytes]);
    // 8 has no row, and 3 finds no room beside 2 and 0.
    assert_eq!(batch(&[0, 8, 2, 3]), [1, 3, 1, 2, 3 * bytes]);
    assert_eq!(batch(&[]), [1, 3, 1, 2, 3 * bytes]);
}
