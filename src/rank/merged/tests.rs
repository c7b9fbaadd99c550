//! Rows of the table are written as others have been told: those that they want first, each along its own gradient. Copies of rows beside
//! the table: the same rows for every batch, and the same bytes after every update.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::*;
use crate::collective::hints;
use crate::collective::rows::{encode, length};
use crate::settings::{RowOptimizer, SparseAverage};
use crate::shm::RunNames;
use crate::sparse::cache::copies;
use crate::sparse::{HostTable, Lookup, TableView};

const DIM: usize = 3;
const IDS: u64 = 60;

/// Bugs of the writer and of those who give it hints, which the oracle has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    ForgetsWhatIsWanted,
    TellsHalf,
    GivesRecordsOfOtherRows,
    Copies(copies::Bug),
}

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
    let of_row = |row: usize| ((lookup.unique[row] % fields as u64) as usize, 1.5 + row as f32, 4.0);
    let mut out = vec![0; length(lookup.unique.len(), DIM, fields)];
    encode(lookup, of_row, &gradients, fields, &mut out);
    out
}

/// What goes wrong first, if anything does, with a bug in the copies of every rank or without.
fn wrong(case: &Case, planted: Option<Bug>) -> Option<String> {
    let in_copies = if let Some(Bug::Copies(bug)) = planted { Some(bug) } else { None };
    let mut settings = ValueSettings::default();
    (settings.values.dim, settings.ranks.sparse_average) = (DIM, case.average);
    settings.table.when_full = WhenFull::Ignore;
    let fields = settings.values.fields.len();
    let shape = TableShape { dim: DIM, optimizer: case.optimizer, max_rows: case.max_rows, seed: 3, marks: false };
    let names = RunNames::for_this_process("copies").unwrap();
    let table = HostTable::create(&names.part("table"), shape).unwrap();
    let view = TableView::open(&names.part("table")).unwrap();
    let prior = || RowPrior::of(vec![[0.4, 0.7]; fields], 0.2);
    let ranks = case.steps[0].len();
    let mut rows = MergedRows::new(Store::direct(table, &settings), prior(), 0..ranks);
    // The same rows without any hints.
    let mut plain = MergedRows::new(Store::direct(HostTable::private(shape).unwrap(), &settings), prior(), 0..0);
    let mut others: Vec<MergedCopies> = (1..ranks)
        .map(|_| {
            let mut copies = Copies::new(shape, case.copies);
            copies.planted = in_copies;
            MergedCopies::new(copies, prior())
        })
        .collect();
    rows.order.planted = planted;
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
        let mut messages: Vec<Vec<u8>> =
            lookups.iter().zip(shards).map(|(lookup, shard)| message(lookup, shard, fields)).collect();
        let next: Vec<Vec<u64>> = match case.steps.get(n + 1) {
            Some(next) => next.iter().map(|shard| shard.iter().map(|(id, _)| *id).collect()).collect(),
            None => vec![vec![]; ranks],
        };
        for (rank, (message, lookup)) in messages.iter_mut().zip(&lookups).enumerate() {
            // One rank in three keeps copies, and knows no records; of what another has found, a part was inserted later.
            let mut records = vec![];
            if (n + rank) % 3 > 0 {
                view.find_all(&lookup.unique, &mut records);
                records.iter_mut().skip(n).step_by(4).for_each(|record| *record = None);
            }
            if planted == Some(Bug::GivesRecordsOfOtherRows) {
                records.reverse();
            }
            let half = if planted == Some(Bug::TellsHalf) { next[rank].len() / 2 } else { 0 };
            let (begin, next) = (message.len(), &next[rank][half..]);
            message.resize(begin + hints::encode(&records, next, &mut []), 0);
            hints::encode(&records, next, &mut message[begin..]);
        }
        let given = || messages.iter().map(|message| &message[..]);
        let step = RowStep { rate: 0.1, passes: 0.5 + n as f64, snapshot: None };
        let read = |id: u64| {
            let mut record = vec![0; shape.words()];
            match view.find(id) {
                Some(place) => view.read(place, &mut record),
                None => shape.first_value(id, &mut record),
            }
            record
        };
        let all = || -> Vec<Vec<u32>> { next.iter().flatten().map(|id| read(*id)).collect() };
        let mut told = None;
        let begins = |moment| {
            if moment == Moment::Rest {
                told = Some(all())
            }
            Ok(())
        };
        rows.write(given(), &settings, step, 64, begins).unwrap();
        if told.is_some_and(|told| told != all()) {
            return Some(format!("step {n}: a row that is wanted was written too late"));
        }
        plain.write(given(), &settings, step, 64, |_| Ok(())).unwrap();
        if rows.store.table().digest() != plain.store.table().digest() {
            return Some(format!("step {n}: other rows than without hints"));
        }
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
    fn hints_change_no_row_and_copies_are_the_rows_after_every_update(case in cases()) {
        prop_assert_eq!(wrong(&case, None), None);
    }
}

#[test]
fn planted_bugs_are_found() {
    let mut runner = TestRunner::deterministic();
    let cases: Vec<Case> = (0..300).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();
    let bugs = [copies::Bug::MissesAnUpdate, copies::Bug::CopiesAbsentRows, copies::Bug::DropsWhatTheBatchNeeds];
    let others = [Bug::ForgetsWhatIsWanted, Bug::TellsHalf, Bug::GivesRecordsOfOtherRows];
    for bug in bugs.map(Bug::Copies).into_iter().chain(others) {
        let found = |case: &Case| {
            let tried = std::panic::catch_unwind(|| wrong(case, Some(bug)));
            tried.map_or(true, |wrong| wrong.is_some())
        };
        assert!(cases.iter().any(found), "{bug:?}");
    }
}

/// Main replaces ranks after an exchange that broke, and ends training after other errors.
#[test]
fn that_the_exchange_broke_is_told_as_such() {
    let settings = ValueSettings::default();
    let shape =
        TableShape { dim: settings.values.dim, optimizer: RowOptimizer::Sgd, max_rows: 9, seed: 3, marks: false };
    let store = Store::direct(HostTable::private(shape).unwrap(), &settings);
    let prior = RowPrior::of(vec![[0.4, 0.7]; settings.values.fields.len()], 0.2);
    let mut rows = MergedRows::new(store, prior, 0..0);
    let step = RowStep { rate: 0.1, passes: 0.5, snapshot: None };
    let broken = Broken::Died { rank: 1 };
    let error = rows.write(std::iter::empty(), &settings, step, 1, |_| Err(broken)).unwrap_err();
    assert!(error.chain().any(|cause| cause.is::<Broken>()), "{error:#}");
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
