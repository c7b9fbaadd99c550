//! When gradients of other ranks arrive.
//!
//! In shared memory they are there once they are pushed. A benchmark can inject the latency of a network (the failpoint
//! `exchange.latency`): then an iteration counts as arrived that much after it was first seen.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::run::failpoint;

/// What has arrived from each rank.
pub struct Arrivals {
    latency: Duration,
    /// Of each rank: iterations that were seen and have not arrived, oldest first.
    under_way: Vec<VecDeque<(u64, Instant)>>,
    arrived: Vec<u64>,
}

impl Arrivals {
    pub fn new(ranks: usize) -> Self {
        Self::with_latency(ranks, failpoint::wait_at("exchange.latency").unwrap_or_default())
    }

    fn with_latency(ranks: usize, latency: Duration) -> Self {
        Self { latency, under_way: vec![VecDeque::new(); ranks], arrived: vec![0; ranks] }
    }

    /// The newest iteration of each rank that has arrived; `pushed` tells which one a rank has pushed.
    pub fn look(&mut self, pushed: impl Fn(usize) -> u64) -> &[u64] {
        let now = Instant::now();
        for (rank, (arrived, under_way)) in self.arrived.iter_mut().zip(&mut self.under_way).enumerate() {
            let newest = pushed(rank);
            if self.latency.is_zero() {
                *arrived = newest;
                continue;
            }
            if newest > under_way.back().map_or(*arrived, |(iteration, _)| *iteration) {
                under_way.push_back((newest, now));
            }
            while under_way.front().is_some_and(|(_, seen)| now.duration_since(*seen) >= self.latency) {
                *arrived = under_way.pop_front().map_or(*arrived, |(iteration, _)| iteration);
            }
        }
        &self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_latency_all_is_there_and_with_it_nothing_at_first() {
        let mut there = Arrivals::with_latency(2, Duration::ZERO);
        assert_eq!(there.look(|rank| rank as u64 + 3), [3, 4]);
        let mut late = Arrivals::with_latency(2, Duration::from_secs(3600));
        assert_eq!(late.look(|rank| rank as u64 + 3), [0, 0]);
        assert_eq!(late.look(|_| 5), [0, 0]);
        late.latency = Duration::from_nanos(1);
        while late.look(|_| 5) != [5, 5] {}
        assert!(late.under_way.iter().all(VecDeque::is_empty));
    }
}
