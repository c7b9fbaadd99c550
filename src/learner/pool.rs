//! The replay pool: the newest segments in compact form, each with a fixed place.

use std::collections::VecDeque;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::env::Segment;

use super::trainer::Placed;

/// Keeps the newest segments, up to a number of steps and of segments.
#[derive(Debug)]
pub struct Pool {
    segments: VecDeque<Segment>,
    steps: usize,
    capacity: usize,
    room: usize,
    /// Segments ever pushed; places are assigned in rotation by this count.
    pushed: usize,
}

impl Pool {
    /// Creates a pool of at most `capacity` steps and `room` segments.
    pub fn new(capacity: usize, room: usize) -> Self {
        Self { segments: VecDeque::new(), steps: 0, capacity, room, pushed: 0 }
    }

    pub fn push(&mut self, segment: Segment) {
        self.steps += segment.len();
        self.segments.push_back(segment);
        self.pushed += 1;
        while (self.steps > self.capacity || self.segments.len() > self.room) && self.segments.len() > 1 {
            if let Some(old) = self.segments.pop_front() {
                self.steps -= old.len();
            }
        }
    }

    /// Whether the next segment displaces another although steps are to spare.
    pub fn out_of_room(&self) -> bool {
        self.segments.len() >= self.room
    }

    /// Returns those of the last `count` pushed segments that are still in the pool, oldest first.
    pub fn newest(&self, count: usize) -> Vec<Placed<'_>> {
        let len = self.segments.len();
        (len - count.min(len)..len).map(|at| self.placed(at)).collect()
    }

    fn placed(&self, at: usize) -> Placed<'_> {
        ((self.pushed - self.segments.len() + at) % self.room, &self.segments[at])
    }

    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Draws `count` segments, each with the same probability, with replacement.
    ///
    /// # Panics
    /// If the pool is empty.
    pub fn sample(&self, count: usize, rng: &mut ChaCha8Rng) -> Vec<Placed<'_>> {
        (0..count).map(|_| self.placed(rng.random_range(0..self.segments.len()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(day: u16, len: usize) -> Segment {
        Segment {
            day,
            episode: 0,
            start: crate::env::State::new(vec![]),
            per_step: 1,
            rows: vec![0; len],
            actions: vec![0; len],
            replans: vec![],
            probabilities: vec![1.0; len],
            lessons: vec![],
            next: None,
        }
    }

    #[test]
    fn keeps_the_newest_steps_within_its_capacity() {
        let mut pool = Pool::new(10, 99);
        for i in 0..6 {
            pool.push(segment(i, 3));
            assert!(pool.steps() <= 10);
        }
        assert_eq!(pool.segments.iter().map(|s| s.day).collect::<Vec<_>>(), [3, 4, 5]);
    }

    proptest::proptest! {
        /// Compares with a list that records what was written to each place.
        #[test]
        fn a_place_holds_its_segment_until_the_pool_lets_go_of_it(lens in proptest::collection::vec(1usize..5, 1..60), room in 1usize..8) {
            let mut pool = Pool::new(12, room);
            let mut written = vec![None; room];
            for (i, len) in lens.into_iter().enumerate() {
                pool.push(segment(i as u16, len));
                for (place, s) in pool.newest(1) {
                    written[place] = Some(s.day);
                }
                let all = pool.newest(usize::MAX);
                proptest::prop_assert_eq!(all.last().map(|(_, s)| s.day), Some(i as u16));
                proptest::prop_assert!(all.len() <= room);
                for (place, s) in all {
                    proptest::prop_assert_eq!(written[place], Some(s.day));
                }
            }
        }
    }
}
