//! Which rank a sample goes to, and whether that makes the ranks equally busy.
//!
//! A hash of the request decides, so that every reader and every run deals samples alike. The first rank of a table writes the rows of all of
//! its ranks, so it can be given fewer samples than the others, which wait for it otherwise.

use serde::Serialize;

use crate::settings::ValueSettings;
use crate::shm::Role;
use crate::shm::control::ControlBlock;

/// How busy the ranks of a machine were, the first ranks of its tables and the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Work {
    /// Mean CPU time of a first rank's updates, and of another one's.
    pub first_busy_s: f64,
    pub other_busy_s: f64,
    /// The share of the first rank, as configured, and the one at which all would have been about equally busy.
    pub first_share: f64,
    pub even_share: f64,
}

impl Work {
    /// Since the ranks of this machine started; `None` where each table has one rank, or where a rank has made no update on the CPU.
    pub fn of(settings: &ValueSettings, control: &ControlBlock) -> Option<Self> {
        let slot = |rank| &control.processes[Role::rank(rank).slot()];
        let busy = (0..settings.ranks_here()).map(|rank| slot(rank).busy_ns.get() as f64 * 1e-9);
        Self::of_busy(settings, &busy.collect::<Vec<_>>())
    }

    /// Of the CPU seconds of each rank, in their order.
    ///
    /// All work of the other ranks is taken to be in proportion to their samples, which is nearly so. What the first rank takes beyond that is
    /// for rows, whatever its share is. Ranks that are equally busy get their own share as the even one.
    fn of_busy(settings: &ValueSettings, busy: &[f64]) -> Option<Self> {
        let (of_table, first_share) = (settings.values.ranks, settings.ranks.first_share);
        if of_table == 1 || busy.contains(&0.0) {
            return None;
        }
        let mean_where = |first: bool| {
            let those = busy.iter().enumerate().filter(|(rank, _)| rank.is_multiple_of(of_table) == first);
            let (sum, count) = those.fold((0.0, 0), |(sum, count), (_, busy)| (sum + busy, count + 1));
            sum / f64::from(count)
        };
        let (first_busy_s, other_busy_s) = (mean_where(true), mean_where(false));
        let ranks = of_table as f64;
        let other_share = (ranks - first_share) / (ranks - 1.0);
        // Of the mean share of samples.
        let computing = other_busy_s / other_share;
        let rows = first_busy_s - first_share * computing;
        let even = 1.0 - rows / computing * (ranks - 1.0) / ranks;
        let even_share = (even.clamp(0.0, 1.0) * PARTS as f64).round() / PARTS as f64;
        Some(Self { first_busy_s, other_busy_s, first_share, even_share })
    }

    /// Whether another share would have made a difference that shows.
    pub fn is_uneven(&self) -> bool {
        (self.even_share - self.first_share).abs() > UNEVEN
    }
}

/// Shares are rounded to so many parts of the mean.
const PARTS: usize = 100;
/// A share that is further from the even one than this costs speed.
const UNEVEN: f64 = 0.03;

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

    /// Ranks that compute for `computing` seconds with the mean share, the first of which writes rows for `rows` seconds.
    fn busy(ranks: usize, tables: usize, first_share: f64, (computing, rows): (f64, f64)) -> (ValueSettings, Vec<f64>) {
        let mut settings = ValueSettings::default();
        (settings.values.ranks, settings.ranks.first_share) = (ranks, first_share);
        let other = (ranks as f64 - first_share) / (ranks as f64 - 1.0) * computing;
        let of_rank = |rank: usize| if rank.is_multiple_of(ranks) { first_share * computing + rows } else { other };
        (settings, (0..ranks * tables).map(of_rank).collect())
    }

    #[test]
    fn the_even_share_makes_all_ranks_equally_busy() {
        for (ranks, tables) in [(2, 1), (3, 2), (8, 3)] {
            for cost in [(10.0, 4.0), (3.0, 0.1), (1.0, 1.0)] {
                for share in [1.0, 0.7, 0.0] {
                    let (settings, busy_s) = busy(ranks, tables, share, cost);
                    let work = Work::of_busy(&settings, &busy_s).unwrap();
                    let (evenly, even) = busy(ranks, tables, work.even_share, cost);
                    let most = even.iter().copied().fold(0.0, f64::max);
                    let least = even.iter().copied().fold(f64::INFINITY, f64::min);
                    assert!(most - least <= 0.012 * cost.0, "{ranks} x {tables}, {cost:?}, {share}: {work:?}");
                    assert!(!Work::of_busy(&evenly, &even).unwrap().is_uneven(), "{work:?}");
                }
            }
        }
    }

    #[test]
    fn a_first_rank_that_has_more_than_it_can_do_only_writes() {
        let (settings, busy_s) = busy(2, 1, 1.0, (1.0, 5.0));
        let work = Work::of_busy(&settings, &busy_s).unwrap();
        assert!(work.even_share == 0.0 && work.is_uneven());
    }

    #[test]
    fn ranks_that_are_alone_or_on_gpus_have_no_even_share() {
        let (mut settings, busy_s) = busy(2, 2, 1.0, (1.0, 1.0));
        settings.values.ranks = 1;
        assert_eq!(Work::of_busy(&settings, &busy_s), None);
        settings.values.ranks = 2;
        assert_eq!(Work::of_busy(&settings, &[1.0, 0.0]), None);
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
