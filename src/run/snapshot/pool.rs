//! The replay pool in a snapshot: the blocks that it was filled with, as they were handed over.
//!
//! A pool keeps the newest segments up to a number of steps, so it is determined by any sequence of blocks that reaches back
//! far enough: pushing them again in order gives the same pool. Blocks are numbered from 0 in the order in which the learner
//! ingests them.

use std::collections::VecDeque;

use anyhow::{Context as _, bail, ensure};

/// A block of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolBlock {
    pub index: u64,
    /// Number of steps in the block.
    pub samples: u32,
    /// The serialised block ([`crate::env::Block`]).
    pub bytes: Vec<u8>,
}

const HEAD: usize = 16;

impl PoolBlock {
    /// Returns the header that precedes the block's bytes.
    pub fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.index.to_le_bytes());
        head[8..12].copy_from_slice(&self.samples.to_le_bytes());
        head[12..].copy_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        head
    }
}

/// Parses consecutive blocks.
///
/// # Errors
/// Malformed blocks, or numbers that are not consecutive.
pub fn parse(mut bytes: &[u8]) -> anyhow::Result<Vec<PoolBlock>> {
    let mut blocks: Vec<PoolBlock> = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD).context("half a block")?;
        let word = |range: std::ops::Range<usize>| {
            head[range].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let (body, rest) = rest.split_at_checked(word(12..16) as usize).context("half a block")?;
        let index = word(0..8);
        if let Some(last) = blocks.last() {
            ensure!(last.index.checked_add(1) == Some(index), "block {index} follows block {}", last.index);
        }
        blocks.push(PoolBlock { index, samples: word(8..12) as u32, bytes: body.to_owned() });
        bytes = rest;
    }
    Ok(blocks)
}

/// The blocks behind a pool of a given number of steps.
#[derive(Debug, Clone, Default)]
pub struct PoolBlocks {
    capacity: usize,
    steps: usize,
    blocks: VecDeque<PoolBlock>,
}

impl PoolBlocks {
    /// Creates an empty list for a pool of `capacity` steps.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Adds newer blocks and drops those whose segments are no longer in the pool. After a gap, only the newer blocks remain of
    /// the pool, because the sender had dropped the ones between as well.
    ///
    /// # Errors
    /// Blocks that were added before.
    pub fn extend(&mut self, newer: Vec<PoolBlock>) -> anyhow::Result<()> {
        for block in newer {
            if let Some(last) = self.blocks.back() {
                if block.index <= last.index {
                    bail!("block {} of the pool follows block {}", block.index, last.index);
                }
                if block.index > last.index + 1 {
                    self.clear();
                }
            }
            self.steps += block.samples as usize;
            self.blocks.push_back(block);
        }
        while let Some(oldest) = self.blocks.front() {
            // The pool is the longest run of newest segments within its capacity: if the blocks after this one fill it, it has
            // no segment of this one.
            if self.steps - (oldest.samples as usize) < self.capacity {
                break;
            }
            self.forget_oldest();
        }
        Ok(())
    }

    /// Drops the oldest block; returns false if there is none.
    pub fn forget_oldest(&mut self) -> bool {
        let oldest = self.blocks.pop_front();
        self.steps -= oldest.as_ref().map_or(0, |block| block.samples as usize);
        oldest.is_some()
    }

    /// Drops the blocks with this number and later ones.
    pub fn forget_from(&mut self, index: u64) {
        while let Some(newest) = self.blocks.pop_back_if(|block| block.index >= index) {
            self.steps -= newest.samples as usize;
        }
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.steps = 0;
    }

    pub fn iter(&self) -> impl Iterator<Item = &PoolBlock> {
        self.blocks.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(index: u64, samples: u32) -> PoolBlock {
        PoolBlock { index, samples, bytes: vec![index as u8; 3 + samples as usize % 5] }
    }

    fn joined<'a>(blocks: impl IntoIterator<Item = &'a PoolBlock>) -> Vec<u8> {
        blocks.into_iter().flat_map(|b| b.head().into_iter().chain(b.bytes.clone())).collect()
    }

    #[test]
    fn blocks_are_taken_apart_again_and_nothing_else_is() {
        let blocks: Vec<PoolBlock> = (5..9).map(|i| block(i, i as u32)).collect();
        let bytes = joined(&blocks);
        assert_eq!(parse(&bytes).unwrap(), blocks);
        for len in 1..bytes.len() {
            let whole = parse(&bytes[..len]).map(|some| joined(&some).len() == len);
            assert!(whole.is_err() || whole.is_ok_and(|whole| whole), "{len}");
        }
        assert!(parse(&joined([&block(1, 1), &block(3, 1)])).is_err());
    }

    /// The checkpointer could not take the blocks of a learner that had started again from the snapshot before the newest.
    #[test]
    fn blocks_that_are_numbered_again_take_the_place_of_the_earlier_ones() {
        let mut pool = PoolBlocks::new(100);
        pool.extend((0..6).map(|i| block(i, 2)).collect()).unwrap();
        assert!(pool.clone().extend(vec![block(4, 3)]).is_err());
        pool.forget_from(4);
        pool.extend(vec![block(4, 3), block(5, 3)]).unwrap();
        let left: Vec<(u64, u32)> = pool.iter().map(|b| (b.index, b.samples)).collect();
        assert_eq!(left, [(0, 2), (1, 2), (2, 2), (3, 2), (4, 3), (5, 3)]);
        assert_eq!(pool.steps, 14);
        pool.forget_from(0);
        assert_eq!((pool.iter().count(), pool.steps), (0, 0));
    }

    proptest! {
        /// Whatever is dropped, a pool filled from the remaining blocks equals the pool filled with all of them.
        #[test]
        fn enough_is_kept_for_the_whole_pool(sizes in prop::collection::vec(prop::collection::vec(1usize..20, 1..5), 1..40),
                                             capacity in 1usize..100, deltas in 1usize..5) {
            // A pool as in `learner::pool`, of (block, length).
            let pool = |blocks: &[(usize, &Vec<usize>)]| {
                let mut held = VecDeque::new();
                let mut steps = 0;
                for (i, segments) in blocks {
                    for &len in *segments {
                        steps += len;
                        held.push_back((*i, len));
                        while steps > capacity && held.len() > 1 {
                            steps -= held.pop_front().unwrap().1;
                        }
                    }
                }
                held
            };
            let all: Vec<(usize, &Vec<usize>)> = sizes.iter().enumerate().collect();
            let mut kept = PoolBlocks::new(capacity);
            for delta in all.chunks(deltas) {
                let newer = delta.iter().map(|(i, s)| block(*i as u64, s.iter().sum::<usize>() as u32)).collect();
                kept.extend(newer).unwrap();
            }
            let left: Vec<(usize, &Vec<usize>)> = kept.iter().map(|b| all[b.index as usize]).collect();
            prop_assert_eq!(pool(&left), pool(&all));
        }
    }
}
