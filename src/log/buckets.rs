//! Quantiles of any number of values in bounded memory: values are counted in buckets that are 0.1 % wide.

use std::collections::HashMap;

/// Mantissa bits of a value that do not tell buckets apart: 10 of 52 are left, so a bucket is less than 0.1 % wide. Whole numbers up to
/// 2,048 have a bucket each.
const DROPPED: u32 = 42;

/// Values that are not negative, each with a mark or without.
#[derive(Debug, Clone, Default)]
pub struct Buckets(HashMap<u64, Bucket, foldhash::fast::RandomState>);

/// Sums over the values of a bucket, or over a part of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bucket {
    pub count: u64,
    pub sum: f64,
    /// Number of values with a mark; a part of a bucket has its share.
    pub marked: f64,
    pub largest: f64,
}

impl Buckets {
    pub fn add(&mut self, value: f64, marked: bool) {
        debug_assert!(value >= 0.0);
        // A negative zero becomes a positive one, whose bits are the lowest.
        let value = value + 0.0;
        let bucket = self.0.entry(value.to_bits() >> DROPPED).or_default();
        bucket.count += 1;
        bucket.sum += value;
        bucket.marked += f64::from(u8::from(marked));
        bucket.largest = bucket.largest.max(value);
    }

    /// Returns for each of `shares`, which rise, the least value that this share of the values does not exceed, at most 0.1 % too large.
    /// `None` without values.
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> Option<[f64; N]> {
        let sorted = self.sorted();
        let count: u64 = sorted.iter().map(|bucket| bucket.count).sum();
        let (mut buckets, mut passed) = (sorted.iter(), 0);
        let mut bucket = buckets.next()?;
        Some(shares.map(|share| {
            let rank = ((share * count as f64).ceil() as u64).clamp(1, count);
            while passed + bucket.count < rank {
                passed += bucket.count;
                bucket = buckets.next().expect("ranks are at most the count");
            }
            bucket.largest
        }))
    }

    /// Deals the values to `parts` parts of equal counts, lowest first; parts without a value are left out. A bucket that is in several parts
    /// gives each its share of the sums, so values that are equal are never told apart by their marks.
    pub fn parts(&self, parts: u64) -> Vec<Bucket> {
        let sorted = self.sorted();
        let count: u64 = sorted.iter().map(|bucket| bucket.count).sum();
        let (mut buckets, mut used) = (sorted.iter(), 0);
        let mut bucket = Bucket::default();
        let sizes = (0..parts).map(|part| (part + 1) * count / parts - part * count / parts).filter(|size| *size > 0);
        sizes
            .map(|size| {
                let mut part = Bucket::default();
                while part.count < size {
                    if used == bucket.count {
                        (bucket, used) = (*buckets.next().expect("the parts have as many values as the buckets"), 0);
                    }
                    let taken = (size - part.count).min(bucket.count - used);
                    let share = taken as f64 / bucket.count as f64;
                    part.count += taken;
                    part.sum += share * bucket.sum;
                    part.marked += share * bucket.marked;
                    part.largest = bucket.largest;
                    used += taken;
                }
                part
            })
            .collect()
    }

    /// Buckets in the order of their values: bits of numbers that are not negative rise with the numbers.
    fn sorted(&self) -> Vec<Bucket> {
        let mut sorted: Vec<(u64, Bucket)> = self.0.iter().map(|(bits, bucket)| (*bits, *bucket)).collect();
        sorted.sort_unstable_by_key(|(bits, _)| *bits);
        sorted.into_iter().map(|(_, bucket)| bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_order_statistics_within_a_bucket(mut values in prop::collection::vec(0.0..1e9f64, 1..300)) {
            let mut buckets = Buckets::default();
            values.iter().for_each(|value| buckets.add(*value, false));
            values.sort_by(f64::total_cmp);
            let shares = [0.01, 0.5, 0.9, 0.99, 1.0];
            for (share, found) in shares.into_iter().zip(buckets.quantiles(shares).unwrap()) {
                let exact = values[((share * values.len() as f64).ceil() as usize).max(1) - 1];
                prop_assert!(exact <= found && found <= exact * 1.001);
            }
        }

        #[test]
        fn parts_hold_every_value_once_and_rise(
            values in prop::collection::vec((0.0..1.0f64, any::<bool>()), 0..300), parts in 1..20u64,
        ) {
            let mut buckets = Buckets::default();
            values.iter().for_each(|(value, marked)| buckets.add(*value, *marked));
            let found = buckets.parts(parts);
            prop_assert_eq!(found.len() as u64, parts.min(values.len() as u64));
            prop_assert_eq!(found.iter().map(|p| p.count).sum::<u64>(), values.len() as u64);
            let (least, most) = found.iter().fold((u64::MAX, 0), |(a, b), p| (a.min(p.count), b.max(p.count)));
            prop_assert!(found.is_empty() || most - least <= 1);
            let total = |f: fn(&Bucket) -> f64| found.iter().map(f).sum::<f64>();
            prop_assert!((total(|p| p.sum) - values.iter().map(|v| v.0).sum::<f64>()).abs() < 1e-9);
            prop_assert!((total(|p| p.marked) - values.iter().filter(|v| v.1).count() as f64).abs() < 1e-9);
            prop_assert!(found.windows(2).all(|w| w[0].sum / w[0].count as f64 <= w[1].sum / w[1].count as f64 * 1.000001));
        }
    }

    /// Sorting would put all values without a mark first and show ten tenths from 0 to 1.
    #[test]
    fn equal_values_are_not_told_apart_by_their_marks() {
        let mut buckets = Buckets::default();
        (0..1000).for_each(|i| buckets.add(0.25, i >= 900));
        assert!(buckets.parts(10).iter().all(|part| (part.marked / part.count as f64 - 0.1).abs() < 1e-12));
        assert_eq!(buckets.quantiles([0.5]), Some([0.25]));
        assert_eq!(Buckets::default().quantiles([0.5]), None);
    }

    #[test]
    fn a_negative_zero_is_no_large_number() {
        let mut buckets = Buckets::default();
        [-0.0, 1.0, 2.0].iter().for_each(|value| buckets.add(*value, false));
        assert_eq!(buckets.quantiles([0.1, 0.5, 1.0]), Some([0.0, 1.0, 2.0]));
    }
}
