//! The parts of a snapshot that belong to the ranks of a learner.
//!
//! All ranks have the same networks, so those are stored once. Each rank has its own pool, random stream and count of blocks. If a run is
//! resumed with another number of ranks, [`Snapshot::dealt_to`] deals the blocks of all pools to the new ranks.

use std::collections::VecDeque;

use crate::nodes::World;

use super::folder::{RankPart, Snapshot};
use super::pool::PoolBlock;
use super::state::{RankState, RngState};

impl Snapshot {
    /// Returns the states of a rank's actors, by actor.
    pub fn explorers_of(&self, rank: usize) -> &[Vec<u8>] {
        match rank.checked_sub(1) {
            None => &self.state.explorers,
            Some(other) => self.ranks.get(other).map_or(&[], |part| &part.state.explorers),
        }
    }

    /// Returns the state of an actor after its last block, whichever rank took that in.
    pub fn explorer(&self, actor: usize) -> Option<&[u8]> {
        let all = (0..=self.ranks.len()).filter_map(|rank| self.explorers_of(rank).get(actor));
        all.map(Vec::as_slice).find(|state| !state.is_empty())
    }

    /// Returns the number of blocks that a rank has taken in.
    pub fn blocks_of(&self, rank: usize) -> u64 {
        match rank.checked_sub(1) {
            None => self.state.blocks,
            Some(other) => self.ranks.get(other).map_or(0, |part| part.state.blocks),
        }
    }

    /// Returns the random stream of a rank, the number of samples that it has taken in, and its pool; `None` for a rank that took no part.
    pub fn part_of(&self, rank: usize) -> Option<(&RngState, u64, &[PoolBlock])> {
        let Some(other) = rank.checked_sub(1) else {
            let others: u64 = self.ranks.iter().map(|part| part.state.samples).sum();
            return Some((&self.state.rng, self.state.samples - others, &self.pool));
        };
        let part = self.ranks.get(other)?;
        Some((&part.state.rng, part.state.samples, &part.pool))
    }

    /// Deals the pools of a node's ranks to its ranks of `world`; returns it as it is if there are as many. The parts are a function of the
    /// snapshot, so the learner and the checkpointer number the blocks alike. Samples so far count as those of the first rank.
    pub fn dealt_to(mut self, world: World) -> Self {
        let ranks = world.local;
        if self.ranks.len() + 1 == ranks {
            return self;
        }
        let pools = std::iter::once(self.pool).chain(self.ranks.into_iter().map(|part| part.pool));
        let mut dealt: Vec<Vec<PoolBlock>> = vec![vec![]; ranks];
        for (i, block) in by_age(pools.map(VecDeque::from).collect()).into_iter().enumerate() {
            let pool = &mut dealt[i % ranks];
            pool.push(PoolBlock { index: pool.len() as u64, ..block });
        }
        let state = &mut self.state;
        state.rng = state.rng.of_rank(world.first);
        let mut dealt = dealt.into_iter();
        self.pool = dealt.next().unwrap_or_default();
        state.blocks = self.pool.len() as u64;
        let part = |(rank, pool): (usize, Vec<PoolBlock>)| RankPart {
            state: RankState {
                format: RankState::FORMAT,
                updates: state.updates,
                samples: 0,
                blocks: pool.len() as u64,
                rng: state.rng.of_rank(world.first + rank),
                explorers: vec![],
            },
            pool,
        };
        self.ranks = (1..).zip(dealt).map(part).collect();
        self
    }
}

/// Joins pools to one list, oldest blocks first. The newest blocks of all pools are of about the same age.
fn by_age(mut pools: Vec<VecDeque<PoolBlock>>) -> Vec<PoolBlock> {
    let most = pools.iter().map(VecDeque::len).max().unwrap_or(0);
    let mut joined = Vec::with_capacity(pools.iter().map(VecDeque::len).sum());
    for age in (0..most).rev() {
        joined.extend(pools.iter_mut().filter(|pool| pool.len() > age).filter_map(VecDeque::pop_front));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(rank: u8, len: u8) -> VecDeque<PoolBlock> {
        (0..len).map(|i| PoolBlock { index: 40 + u64::from(i), samples: 9, bytes: vec![rank, len - 1 - i] }).collect()
    }

    #[test]
    fn blocks_of_all_pools_are_joined_oldest_first_and_none_is_lost() {
        let joined = by_age(vec![pool(0, 2), pool(1, 4), pool(2, 0), pool(3, 1)]);
        let bytes: Vec<&[u8]> = joined.iter().map(|block| &block.bytes[..]).collect();
        assert_eq!(bytes, [[1, 3], [1, 2], [0, 1], [1, 1], [0, 0], [1, 0], [3, 0]]);
    }
}
