//! A histogram of whole numbers that one process records and any process may read.
//!
//! The bins are fixed, so that it can be in shared memory: 0, 1, 2-3, 4-7, .. each as wide as all before it together, and the
//! last one open. Quantiles are interpolated: within a bin, its values are assumed to be equally frequent.

use super::counter::Counter;

/// Number of bins; the last one holds everything from 2^20 on.
const BINS: usize = 22;

/// Counts of recorded values. Relaxed throughout: a statistic implies no ordering.
#[repr(C)]
#[derive(Default)]
pub struct Histogram {
    bins: [Counter; BINS],
    sum: Counter,
    max: Counter,
}

/// Contents of a [`Histogram`] when it was read.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Distribution {
    /// Number of values recorded.
    pub count: u64,
    pub mean: f64,
    /// Median, interpolated within its bin.
    pub p50: u64,
    /// 95 % quantile, interpolated within its bin.
    pub p95: u64,
    pub max: u64,
    /// The bins up to the last non-empty one.
    pub bins: Vec<Bin>,
}

/// Number of values within `from..=to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Bin {
    pub from: u64,
    pub to: u64,
    pub count: u64,
}

fn bin_of(value: u64) -> usize {
    ((u64::BITS - value.leading_zeros()) as usize).min(BINS - 1)
}

/// Returns the least and the largest value of a bin.
fn edges(bin: usize) -> (u64, u64) {
    match bin {
        0 => (0, 0),
        _ if bin == BINS - 1 => (1 << (bin - 1), u64::MAX),
        _ => (1 << (bin - 1), (1 << bin) - 1),
    }
}

impl Histogram {
    pub fn record(&self, value: u64) {
        self.max.raise(value);
        self.sum.add(value);
        self.bins[bin_of(value)].add(1);
    }

    pub fn read(&self) -> Distribution {
        let counts: Vec<u64> = self.bins.iter().map(Counter::get).collect();
        let (count, max) = (counts.iter().fold(0, |sum: u64, &n| sum.saturating_add(n)), self.max.get());
        let used = counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        let bins: Vec<Bin> = counts[..used]
            .iter()
            .enumerate()
            .map(|(bin, &count)| {
                let (from, to) = edges(bin);
                Bin { from, to: if bin + 1 == used { to.min(max).max(from) } else { to }, count }
            })
            .collect();
        let quantile = |share: f64| {
            let wanted = (share * count as f64).ceil() as u64;
            let mut below = 0u64;
            for bin in &bins {
                if below.saturating_add(bin.count) >= wanted && bin.count > 0 {
                    let part = wanted.saturating_sub(below) as f64 / bin.count as f64;
                    let width = (bin.to - bin.from) as f64 + 1.0;
                    return bin.from.saturating_add(((part * width).ceil() as u64).saturating_sub(1));
                }
                below = below.saturating_add(bin.count);
            }
            0
        };
        Distribution {
            count,
            mean: self.sum.get() as f64 / (count as f64).max(1.0),
            p50: quantile(0.5),
            p95: quantile(0.95),
            max,
            bins,
        }
    }
}

impl Distribution {
    /// Returns the mean of the values recorded since `earlier`, a reading of the same histogram; `None` if there are none.
    pub fn mean_since(&self, earlier: &Self) -> Option<f64> {
        let sum = |d: &Self| d.mean * d.count as f64;
        let count = self.count.checked_sub(earlier.count).filter(|&n| n > 0)?;
        Some((sum(self) - sum(earlier)) / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_the_bin_that_says_so() {
        let largest = [0, 1, 3, 7, 15, 31].map(|to| (to, bin_of(to)));
        assert_eq!(largest, [(0, 0), (1, 1), (3, 2), (7, 3), (15, 4), (31, 5)]);
        for value in (0..200).chain([1 << 19, (1 << 20) - 1, 1 << 20, 1 << 40, u64::MAX]) {
            let (from, to) = edges(bin_of(value));
            assert!((from..=to).contains(&value), "{value} in {from}..={to}");
        }
        for bin in 1..BINS {
            assert_eq!(edges(bin).0, edges(bin - 1).1 + 1);
        }
    }

    #[test]
    fn mean_and_maximum_are_exact_and_quantiles_are_right_to_a_bin() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read(), Distribution::default());
        let mut values: Vec<u64> = (0..1000).map(|i| i * i % 317).collect();
        values.iter().for_each(|&v| histogram.record(v));
        values.sort_unstable();
        let read = histogram.read();
        assert_eq!((read.count, read.max), (1000, values[999]));
        assert!((read.mean - values.iter().sum::<u64>() as f64 / 1000.0).abs() < 1e-9);
        for (said, exact) in [(read.p50, values[499]), (read.p95, values[949])] {
            assert_eq!(bin_of(said), bin_of(exact));
            assert!(said.abs_diff(exact) <= exact / 4 && said <= read.max, "{said} for {exact}");
        }
        for bin in &read.bins {
            assert_eq!(bin.count as usize, values.iter().filter(|v| (bin.from..=bin.to).contains(v)).count());
        }
    }
}
