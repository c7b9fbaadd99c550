//! Lotteries: planned play probabilities, drawn on each request. The classical way to serve a plan.
//!
//! The contracts in a queue that still owe impressions are processed in the plan's allocation order. Each takes its share of
//! the request from the remainder of the earlier ones; the best auction ad gets the rest. The draw of a contract is a hash of
//! seed, request and ad, so that it can be repeated and does not depend on the order of the queue: contract j with share `x_j`
//! wins iff `hash < x_j / (1 - shares before it)`, which happens with probability `x_j`. The seed is derived from that of the
//! rate draws. A contract that owes nothing competes with its click worth. If no auction ad may be shown, the first contract in
//! the order is shown.

use crate::env::Replay;
use crate::log::draw;
use crate::plan::shale::{Rounds, Shale, price_of};
use crate::policy::Policy;

/// Separates these draws from the rate draws, which use the same hash.
const STREAM: u64 = 0x7E7A_1077;

/// Draw that both policies share.
#[derive(Default)]
struct Lottery {
    seed: u64,
    /// Rank of each contract in the allocation order.
    ranks: Vec<u32>,
    /// Candidates of the current request that still owe, as (rank, candidate).
    queue: Vec<(u32, usize)>,
}

impl Lottery {
    fn begin(&mut self, replay: &Replay) {
        self.seed = draw::hash64(STREAM, replay.episode.rate_seed, 0);
        self.ranks = vec![0; replay.day.order.len()];
        for (rank, &j) in (0..).zip(&replay.day.order) {
            self.ranks[j as usize] = rank;
        }
    }

    /// Collects the candidates that still owe impressions, in allocation order.
    fn line_up(&mut self, replay: &Replay) {
        self.queue.clear();
        for (i, c) in replay.candidates().iter().enumerate() {
            let j = c.contract as usize;
            if replay.state.observed[j] < replay.episode.owed[j] {
                self.queue.push((self.ranks[j], i));
            }
        }
        self.queue.sort_unstable();
    }

    /// Draws, and writes scores that make the winner the highest; `share` is a contract's share of the request.
    fn draw(&self, replay: &Replay, share: impl Fn(usize) -> f64, contracts: &mut [f64], auctions: &[f64]) {
        let request = replay.visit().request_id;
        let mut left = 1.0;
        let mut winner = None;
        for &(_, i) in &self.queue {
            let j = replay.candidates()[i].contract as usize;
            let x = share(j).min(left);
            let hash = draw::hash64(self.seed, request, replay.day.contracts[j].ad_id) as f64 / 2f64.powi(64);
            if hash * left < x {
                winner = Some(i);
                break;
            }
            left -= x;
        }
        if auctions.is_empty() {
            winner = winner.or(self.queue.first().map(|&(_, i)| i));
        }
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = c.click;
        }
        for &(_, i) in &self.queue {
            contracts[i] = f64::NEG_INFINITY;
        }
        if let Some(i) = winner {
            contracts[i] = f64::INFINITY;
        }
    }
}

/// Shows a contract with its planned play probability: the control table's theta, else High Water Mark's.
#[derive(Default)]
pub struct ThetaLottery {
    lottery: Lottery,
}

impl Policy for ThetaLottery {
    fn begin(&mut self, replay: &Replay) {
        self.lottery.begin(replay);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        self.lottery.line_up(replay);
        self.lottery.draw(replay, |j| replay.day.contracts[j].theta, contracts, auctions);
    }
}

/// Serves SHALE's plan: the price of the request follows from the contracts in its queue, the shares from that price.
#[derive(Default)]
pub struct ShaleLottery {
    lottery: Lottery,
    plan: Option<Shale>,
}

impl Policy for ShaleLottery {
    fn begin(&mut self, replay: &Replay) {
        self.lottery.begin(replay);
        self.plan = Some(Shale::of(&replay.day.graph, &replay.day.order, Rounds::default()));
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        let Some(plan) = &self.plan else { return };
        self.lottery.line_up(replay);
        // No limits, because each of them is in this queue.
        let wanted = self.lottery.queue.iter().map(|&(_, i)| {
            let j = replay.candidates()[i].contract as usize;
            plan.shares[j].wanted(1.0, plan.spread)
        });
        let beta = price_of(wanted, 0.0);
        self.lottery.draw(replay, |j| plan.shares[j].play(beta, plan.spread), contracts, auctions);
    }
}
