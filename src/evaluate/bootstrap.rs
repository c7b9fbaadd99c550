//! Confidence intervals of shares: a block bootstrap over the hours of the day.
//!
//! Requests of one hour share its prices and its traffic, so hours are the blocks. The earnings of a policy in each hour are
//! compared with the bound's part of that hour (as defined in [`super::measure::DayMeasure`]), hours are drawn with
//! replacement, and the share is computed again. Draws come from one fixed seed, so that the same evaluation gives the same
//! interval, and policies see the same draws.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 95;
const REPLICATES: usize = 1000;

/// Contribution of one block to `J + S` and to `UB + S`, minor units.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Block {
    pub earned: f64,
    pub bound: f64,
}

/// Returns the 95 % percentile interval of the mean over days of the share; blocks are drawn within their day. `None` if a day
/// has nothing at stake.
pub fn share_interval(days: &[&[Block]]) -> Option<[f64; 2]> {
    let at_stake = |blocks: &&[Block]| blocks.iter().map(|b| b.bound).sum::<f64>() != 0.0;
    if !days.iter().all(at_stake) {
        return None;
    }
    percentiles(days.len(), |day, rng| {
        let blocks = days[day];
        share((0..blocks.len()).map(|_| blocks[rng.random_range(0..blocks.len())]))
    })
}

/// Returns the 95 % percentile interval of the mean over days of the difference between two policies' shares. The same hours are
/// drawn for both. `None` if a day has nothing at stake, or the two policies do not have the same hours.
pub fn difference_interval(days: &[(&[Block], &[Block])]) -> Option<[f64; 2]> {
    let comparable = |(a, b): &(&[Block], &[Block])| {
        a.len() == b.len()
            && a.iter().map(|x| x.bound).sum::<f64>() != 0.0
            && b.iter().map(|x| x.bound).sum::<f64>() != 0.0
    };
    if !days.iter().all(comparable) {
        return None;
    }
    percentiles(days.len(), |day, rng| {
        let (a, b) = days[day];
        let hours: Vec<usize> = (0..a.len()).map(|_| rng.random_range(0..a.len())).collect();
        share(hours.iter().map(|&h| a[h])) - share(hours.iter().map(|&h| b[h]))
    })
}

/// Returns the 95 % interval of the mean over `days` of the values of `draw`.
fn percentiles(days: usize, draw: impl Fn(usize, &mut ChaCha8Rng) -> f64) -> Option<[f64; 2]> {
    if days == 0 {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut means: Vec<f64> = (0..REPLICATES)
        .map(|_| (0..days).map(|day| draw(day, &mut rng)).sum::<f64>() / days as f64)
        .filter(|mean| mean.is_finite())
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |quantile: f64| means.get((quantile * (means.len().max(1) - 1) as f64).round() as usize).copied();
    Some([at(0.025)?, at(0.975)?])
}

/// Returns the share of the sum of blocks.
fn share(blocks: impl Iterator<Item = Block>) -> f64 {
    let (earned, bound) = blocks.fold((0.0, 0.0), |(e, b), block| (e + block.earned, b + block.bound));
    earned / bound
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(earned: &[f64]) -> Vec<Block> {
        earned.iter().map(|&earned| Block { earned, bound: 10.0 }).collect()
    }

    #[test]
    fn a_paired_interval_is_narrow_where_two_policies_vary_together() {
        let good: Vec<f64> = (0..24).map(|h| 4.0 + f64::from(h % 5)).collect();
        let less: Vec<f64> = good.iter().map(|e| e - 0.1).collect();
        let (good, less) = (day(&good), day(&less));
        let [low, high] = difference_interval(&[(&good, &less)]).unwrap();
        assert!((low - 0.01).abs() < 1e-12 && (high - 0.01).abs() < 1e-12, "{low} {high}");
        let [from, to] = share_interval(&[&good]).unwrap();
        assert!(to - from > 0.05, "the shares themselves vary: {from}..{to}");
        let turned = difference_interval(&[(&less, &good)]).unwrap();
        assert_eq!(turned, [-high, -low]);
    }

    #[test]
    fn days_that_cannot_be_paired_have_no_interval() {
        let (two, three) = (day(&[1.0, 2.0]), day(&[1.0, 2.0, 3.0]));
        assert_eq!(difference_interval(&[(&two, &three)]), None);
        assert_eq!(difference_interval(&[]), None);
        let nothing = vec![Block::default(); 2];
        assert_eq!(difference_interval(&[(&nothing, &nothing)]), None);
    }
}
