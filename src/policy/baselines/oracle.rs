//! The oracle: it serves with the prices that prove the day's bound, and so knows the future.
//!
//! Where values are rounded, as logged prices are, many requests are worth the same to a contract and to the auction at such a price, and a
//! contract gets its due only if it wins so many of them and no more. How many that is is counted before the day begins.

use crate::env::Replay;
use crate::log::CompiledLog;
use crate::plan::{Bound, bound};
use crate::policy::Policy;

/// Worths that differ by less than this share of them are the same: the prices of a bound are not known better where it is flat.
const SAME: f64 = 1e-4;

/// Bids the prices of a bound, and wins as many ties as each contract needs.
pub struct Oracle {
    prices: Vec<f64>,
    /// Of each contract, over the whole day.
    ties: Vec<Ties>,
    /// Of each contract, from the current request on.
    left: Vec<Ties>,
}

/// Requests on which a contract and something else are worth the same, and no other ad more.
#[derive(Debug, Clone, Copy, Default)]
struct Ties {
    /// How many there are, and how many of them the contract has to win.
    all: u64,
    needed: u64,
}

impl Ties {
    /// Share of the ties that has to be won.
    fn urgency(self) -> f64 {
        self.needed as f64 / self.all.max(1) as f64
    }
}

impl Oracle {
    /// `bound` is that of the day's `log` under the rate draws of `rate_seed`.
    pub fn new(bound: &Bound, log: &CompiledLog, rate_seed: u64) -> Self {
        let prices = bound.prices.clone();
        let mut ties = vec![Ties::default(); prices.len()];
        // Requests on which a contract is worth more than anything else.
        let mut won = vec![0u64; prices.len()];
        bound::visit(log, rate_seed, 0..log.requests().len(), |_, best, passed| {
            let least = same_as(bound::value(best, passed, &prices));
            let tops = || passed.iter().map(|&(j, click)| (j as usize, click)).filter(|(j, c)| c + prices[*j] >= least);
            let alone = best.max(0.0) < least && tops().count() == 1;
            tops().for_each(|(j, _)| if alone { won[j] += 1 } else { ties[j].all += 1 });
        });
        for (((ties, won), c), &price) in ties.iter_mut().zip(won).zip(log.contracts()).zip(&prices) {
            let due = match price {
                // One impression more is worth no more than what it takes: whoever needs the tie shall have it.
                price if price >= same_as(c.penalty) => 0,
                0.0.. => c.owed(),
                _ => c.left(),
            };
            ties.needed = due.saturating_sub(won);
        }
        Self { prices, ties, left: vec![] }
    }
}

/// The lowest worth that is the same as `worth`.
fn same_as(worth: f64) -> f64 {
    worth - SAME * worth.abs()
}

impl Policy for Oracle {
    fn begin(&mut self, _: &Replay) {
        self.left.clone_from(&self.ties);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        let candidates = replay.candidates();
        for (score, c) in contracts.iter_mut().zip(candidates) {
            *score = self.prices[c.contract as usize] + c.click;
        }
        let best = replay.best();
        let top = contracts.iter().copied().fold(best, f64::max);
        let least = same_as(top);
        let tied = || contracts.iter().enumerate().filter(|(_, score)| **score >= least).map(|(i, _)| i);
        if tied().count() + usize::from(best >= least) < 2 {
            return;
        }
        let place = |i: usize| candidates[i].contract as usize;
        let urgency = |i: &usize| self.left[place(*i)].urgency();
        let winner = tied().filter(|i| urgency(i) > 0.0).max_by(|a, b| urgency(a).total_cmp(&urgency(b)));
        let tied: Vec<usize> = tied().collect();
        for i in tied {
            let ties = &mut self.left[place(i)];
            ties.all = ties.all.saturating_sub(1);
            contracts[i] = if Some(i) == winner {
                ties.needed -= 1;
                top + SAME * top.abs()
            } else {
                least - SAME * top.abs()
            };
        }
    }

    fn boosted(&self) -> bool {
        false
    }
}
