//! How the exposures of a batch are dealt to ranks.
//!
//! The first rank of each machine also writes the rows of the table. In step with it the others would wait, so it gets fewer exposures. What
//! is learned does not depend on this but for the order of sums: a shard's gradient is divided by the samples of the whole batch.

use super::World;

/// Shares of the ranks in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deal {
    /// The last hash that goes to each rank.
    last: Vec<u64>,
}

impl Deal {
    /// Deals to the ranks of a job; the first rank of each machine gets `writer_share` times as many exposures as each other rank, 1 where
    /// every machine has one rank.
    pub fn new(World { ranks, local, .. }: World, writer_share: f64) -> Self {
        let weight = |rank: usize| if local > 1 && rank.is_multiple_of(local) { writer_share } else { 1.0 };
        let total: f64 = (0..ranks).map(weight).sum();
        let mut sum = 0.0;
        let mut last: Vec<u64> = (0..ranks)
            .map(|rank| {
                sum += weight(rank);
                (sum / total * 2f64.powi(64)) as u64
            })
            .collect();
        if let Some(last) = last.last_mut() {
            *last = u64::MAX;
        }
        Self { last }
    }

    /// Returns the rank of an exposure whose request has this hash; hashes are uniform.
    pub fn rank(&self, hash: u64) -> usize {
        self.last.partition_point(|last| *last < hash)
    }

    /// Returns the largest share of a rank.
    pub fn largest(&self) -> f64 {
        let ends = std::iter::once(&0).chain(&self.last).zip(&self.last);
        ends.map(|(begin, end)| (end - begin) as f64 / 2f64.powi(64)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_get_their_shares(local in 1usize..5, nodes in 1usize..4, share in 0.1f64..1.0) {
            let ranks = local * nodes;
            let deal = Deal::new(World { ranks, first: 0, local }, share);
            let n = 100_000u64;
            let mut dealt = vec![0u64; ranks];
            (0..n).for_each(|i| dealt[deal.rank((u128::from(i) * u128::from(u64::MAX) / u128::from(n)) as u64)] += 1);
            let own = |rank: usize| if local > 1 && rank.is_multiple_of(local) { share } else { 1.0 };
            let total: f64 = (0..ranks).map(own).sum();
            for (rank, &dealt) in dealt.iter().enumerate() {
                prop_assert!((dealt as f64 / n as f64 - own(rank) / total).abs() < 1e-4);
            }
            // Without a rank that writes alone all are alike, and their sum is their number.
            let largest = 1.0 / total;
            prop_assert!((deal.largest() - largest).abs() < 1e-9);
            prop_assert_eq!((deal.rank(0), deal.rank(u64::MAX)), (0, ranks - 1));
        }
    }
}
