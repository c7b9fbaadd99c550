//! Whether the kernels tell the places of an arena apart, all over it.
//!
//! An address that is cut off, to 32 bits of words or of bytes, lets two places of a large arena share their words, and nothing but wrong
//! rows would tell. So a few records are put all over a new arena, those that would meet among them, and every kernel works on them.

use std::collections::BTreeSet;

use burn_cubecl::CubeRuntime;

use crate::gpu::numbers::{Numbers, Reader};
use crate::sparse::TableShape;
use crate::sparse::table::DIRECT;

use super::arena::Arena;

/// Number of places that are spread evenly over the arena.
const SPREAD: u64 = 256;
/// Words after which an address that is cut off begins again: 31 and 32 bits of bytes, then of words.
const TURNS: [u64; 4] = [1 << 29, 1 << 30, 1 << 31, 1 << 32];
/// Rate of the updates, and the largest difference of a float from the host's: relative, or absolute below 1.
const RATE: f32 = 0.5;
const TOLERANCE: f32 = 1e-5;

/// Puts records into an arena that holds nothing yet, and has each kernel work on them.
///
/// # Errors
/// A place that does not hold what it should.
pub fn check<R: CubeRuntime>(
    arena: &Arena<R>,
    table: TableShape,
    reader: &Reader<R>,
    corrections: &Numbers<R>,
) -> anyhow::Result<()> {
    let places = places(arena.capacity as u64, arena.width as u64);
    let mut records: Vec<u32> = (0..places.len()).flat_map(|i| record(table, i)).collect();
    arena.put(&places, &records);
    let told = |what: &str, of: usize, wrong: usize| {
        anyhow::anyhow!(
            "place {} of {} on the GPU {what}: rows there would be wrong; lower table.cache_rows, or use --device cpu",
            places[wrong / of],
            arena.capacity
        )
    };
    let found = reader.begin(&arena.take(&places))();
    if let Some(wrong) = different(&records, &found) {
        return Err(told("does not keep its record", arena.width, wrong));
    }
    let (rows, at) = arena.gather(&places, &[]);
    let gathered: Vec<u32> =
        records.chunks_exact(arena.width).flat_map(|record| &record[..arena.dim]).copied().collect();
    if let Some(wrong) = different(&gathered, &reader.begin(&rows)()) {
        return Err(told("is not gathered", arena.dim, wrong));
    }
    let gradients: Vec<f32> = (0..places.len() * arena.dim).map(|i| (i % 13) as f32 / 16.0 - 0.25).collect();
    let on_device = arena.words.upload(bytemuck::cast_slice(&gradients));
    // Without a prior, and with one that pulls at nothing: two kernels.
    for precisions in [vec![], vec![0.0; places.len() * (DIRECT + 1)]] {
        arena.update(&at, &on_device, &precisions, corrections, table.optimizer, [RATE, 0.0]);
        for (record, gradient) in records.chunks_exact_mut(arena.width).zip(gradients.chunks_exact(arena.dim)) {
            table.update(record, gradient, RATE);
        }
    }
    let found = reader.begin(&arena.take(&places))();
    match far(&records, &found, arena.width) {
        Some(wrong) => Err(told("is not updated", arena.width, wrong)),
        None => Ok(()),
    }
}

/// Places all over an arena, the first and the last, and those that are a turn apart from the first ones.
fn places(capacity: u64, width: u64) -> Vec<u32> {
    let spread = (0..SPREAD).map(|i| i * (capacity - 1) / (SPREAD - 1));
    let turns = TURNS.iter().flat_map(|turn| (0..=capacity * width / turn).map(move |i| i * turn / width));
    let beside = turns.flat_map(|place| place.saturating_sub(1)..place + 3);
    let places: BTreeSet<u64> = spread.chain(beside).filter(|place| *place < capacity).collect();
    places.into_iter().map(|place| u32::try_from(place).expect("places have 32 bits")).collect()
}

/// A record with floats of its own.
fn record(table: TableShape, number: usize) -> Vec<u32> {
    let floats = (0..table.floats()).map(|i| ((number * 31 + i * 7) % 4093 + 1) as f32 / 1024.0);
    floats.map(f32::to_bits).chain([number as u32 % 100]).collect()
}

/// The first word that is not as expected.
fn different(expected: &[u32], found: &[u32]) -> Option<usize> {
    (0..expected.len()).find(|&i| found.get(i) != Some(&expected[i]))
}

/// The first word that is further from what is expected than rounding explains; the last of a record is a count.
fn far(expected: &[u32], found: &[u32], width: usize) -> Option<usize> {
    (0..expected.len()).find(|&i| {
        let Some(&word) = found.get(i) else { return true };
        if (i + 1).is_multiple_of(width) {
            return word != expected[i];
        }
        let [expected, found] = [expected[i], word].map(f32::from_bits);
        // Not a number is near to nothing.
        let near = (expected - found).abs() <= TOLERANCE * expected.abs().max(1.0);
        !near
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RowOptimizer;

    /// What an arena of so many places holds when its addresses are cut off after `turn` words.
    fn cut_off(capacity: u64, width: u64, turn: u64) -> bool {
        let places = places(capacity, width);
        assert!(places.contains(&0) && places.contains(&((capacity - 1) as u32)));
        let starts = places.iter().map(|place| u64::from(*place) * width);
        let mut words: Vec<u64> = starts.flat_map(|start| start..start + width).map(|word| word % turn).collect();
        words.sort_unstable();
        words.windows(2).any(|pair| pair[0] == pair[1])
    }

    #[test]
    fn places_meet_where_addresses_are_cut_off() {
        for turn in TURNS {
            for width in [4, 20, 82, 130, 515] {
                let words = turn + turn / 8;
                assert!(cut_off(words / width, width, turn), "{width} words a record, {turn} words");
                assert!(!cut_off(words / width, width, 2 * words), "{width} words a record: places are apart");
            }
        }
    }

    #[test]
    fn a_wrong_word_is_found_and_rounding_is_not() {
        let table = TableShape { dim: 4, optimizer: RowOptimizer::RowwiseAdagrad, max_rows: 9, seed: 1, marks: false };
        let records: Vec<u32> = (0..9).flat_map(|i| record(table, i)).collect();
        let width = table.words();
        assert_eq!((different(&records, &records), far(&records, &records, width)), (None, None));
        let rounded: Vec<u32> =
            records.iter().enumerate().map(|(i, word)| word + u32::from((i + 1) % width != 0)).collect();
        assert_eq!((different(&records, &rounded), far(&records, &rounded, width)), (Some(0), None));
        for at in [0, width - 1, 3 * width + 2] {
            let mut wrong = records.clone();
            wrong[at] = if (at + 1).is_multiple_of(width) { 200 } else { f32::NAN.to_bits() };
            assert_eq!((different(&records, &wrong), far(&records, &wrong, width)), (Some(at), Some(at)));
        }
        assert_eq!((different(&records, &[]), far(&records, &[], width)), (Some(0), Some(0)));
    }
}
