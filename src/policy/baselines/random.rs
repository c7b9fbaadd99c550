//! A uniformly random choice.

use crate::env::Replay;
use crate::log::draw::hash64;
use crate::policy::Policy;

/// Shows a uniformly random one of the contracts that may be shown and the best auction ad. The draw is a hash of seed, request
/// and ad, so it does not depend on the order of the queue.
pub struct Random {
    seed: u64,
}

impl Random {
    /// `seed` should differ from the seed of the rate draws, which use the same hash.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns a number in [1, 2), divided by the boost that multiplies it later: a platform's boost must not bias the draw.
    fn draw(&self, request_id: u64, ad_id: u64, boost: f64) -> f64 {
        (1.0 + hash64(self.seed, request_id, ad_id) as f64 / 18_446_744_073_709_551_616.0) / boost
    }
}

impl Policy for Random {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        let request_id = replay.visit().request_id;
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = self.draw(request_id, replay.day.contracts[c.contract as usize].ad_id, c.boost);
        }
        for (score, a) in auctions.iter_mut().zip(replay.auctions()) {
            *score = self.draw(request_id, a.ad_id, a.boost);
        }
    }
}
