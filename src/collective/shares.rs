//! Which rank a sample goes to.
//!
//! A hash of the request decides, so that every reader and every run deals samples alike. The first rank of a table writes the rows of all of
//! its ranks, so it can be given fewer samples than the others, which wait for it otherwise.

use crate::settings::ValueSettings;

/// Shares are rounded to so many parts of the mean.
const PARTS: usize = 100;

/// The samples that each rank has.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// The rank of each remainder of a hash.
    ranks: Vec<u16>,
    /// The largest share of a rank, 1 = as many as the mean.
    largest: f64,
}

impl Shares {
    /// Shares of the `ranks` of all tables.
    pub fn of(settings: &ValueSettings, ranks: usize) -> Self {
        Self::new(settings.values.ranks, ranks, settings.ranks.first_share)
    }

    /// Shares of `ranks` ranks, so many `of_table` each. The first one of a table has the share `first`, 1 = as many as the mean; its others
    /// have the rest in equal parts. A rank that is alone at its table has all.
    fn new(of_table: usize, ranks: usize, first: f64) -> Self {
        let others = of_table - 1;
        // Whole numbers of parts: the first one's times the number of others, and what is left.
        let first = ((first * PARTS as f64).round() as usize).min(PARTS) * others;
        let other = (PARTS * of_table * others - first).checked_div(others).unwrap_or(0);
        let [first, other] = if first == other || others == 0 { [1, 1] } else { lowest_terms(first, other) };
        let parts = |rank: usize| if rank.is_multiple_of(of_table) { first } else { other };
        let of_each = (0..ranks).flat_map(|rank| std::iter::repeat_n(rank as u16, parts(rank)));
        let mean = (first + others * other) as f64 / of_table as f64;
        Self { ranks: of_each.collect(), largest: first.max(other) as f64 / mean }
    }

    /// The rank that a sample with this hash goes to.
    pub fn rank_of(&self, hash: u64) -> usize {
        usize::from(self.ranks[(hash % self.ranks.len() as u64) as usize])
    }

    /// The largest share of a rank, 1 = as many as the mean.
    pub fn largest(&self) -> f64 {
        self.largest
    }
}

fn lowest_terms(a: usize, b: usize) -> [usize; 2] {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    [a / divisor, b / divisor]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::index::mix;

    #[test]
    fn equal_shares_are_remainders() {
        for (of_table, ranks) in [(1, 1), (1, 3), (2, 2), (4, 12)] {
            let shares = Shares::new(of_table, ranks, 1.0);
            assert!(
                (0..50).all(|hash| shares.rank_of(hash) == (hash % ranks as u64) as usize) && shares.largest() == 1.0
            );
        }
        // Whoever is alone has nobody to give samples to.
        assert_eq!(Shares::new(1, 3, 0.5), Shares::new(1, 3, 1.0));
    }

    #[test]
    fn the_first_rank_of_each_table_has_its_share() {
        for (of_table, tables, first) in [(2, 1, 0.75), (2, 1, 0.0), (3, 2, 0.2), (8, 3, 0.33), (4, 1, 0.999)] {
            let ranks = of_table * tables;
            let shares = Shares::new(of_table, ranks, first);
            let mut counts = vec![0.0; ranks];
            (0..1 << 20).for_each(|n| counts[shares.rank_of(mix(n))] += ranks as f64 / f64::from(1 << 20));
            let other = (of_table as f64 - first) / (of_table - 1) as f64;
            for (rank, count) in counts.iter().enumerate() {
                let share = if rank % of_table == 0 { first } else { other };
                assert!((count - share).abs() < 0.03, "rank {rank} of {of_table}: {count}, not {share}");
            }
            assert!((shares.largest() - other).abs() < 0.01);
        }
    }
}
