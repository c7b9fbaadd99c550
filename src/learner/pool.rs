//! The replay pool: the newest segments, as compact as they came.

use std::collections::VecDeque;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::env::Segment;

/// Keeps the newest segments, up to a number of steps.
#[derive(Debug)]
pub struct Pool {
    segments: VecDeque<Segment>,
    steps: usize,
    capacity: usize,
}

impl Pool {
    /// A pool of at most `capacity` steps.
    pub fn new(capacity: usize) -> Self {
        Self { segments: VecDeque::new(), steps: 0, capacity }
    }

    pub fn push(&mut self, segment: Segment) {
        self.steps += segment.len();
        self.segments.push_back(segment);
        while self.steps > self.capacity && self.segments.len() > 1 {
            if let Some(old) = self.segments.pop_front() {
                self.steps -= old.len();
            }
        }
    }

    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Draws `count` segments, each with the same probability, with replacement.
    ///
    /// # Panics
    /// If the pool is empty.
    pub fn sample(&self, count: usize, rng: &mut ChaCha8Rng) -> Vec<&Segment> {
        (0..count).map(|_| &self.segments[rng.random_range(0..self.segments.len())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_steps_within_its_capacity() {
        let day = crate::env::State::new(vec![]);
        let mut pool = Pool::new(10);
        for i in 0..6 {
            pool.push(Segment {
                day: i,
                episode: 0,
                start: day.clone(),
                per_step: 1,
                rows: vec![0; 3],
                actions: vec![0; 3],
                replans: vec![],
                probabilities: vec![1.0; 3],
                next: None,
            });
            assert!(pool.steps() <= 10);
        }
        assert_eq!(pool.segments.iter().map(|s| s.day).collect::<Vec<_>>(), [3, 4, 5]);
    }
}
