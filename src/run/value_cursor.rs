//! Position of a run of `admix values train` in the blocks of its readers.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::values::Block;

/// Position of training in the readers' blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// Pass over the exposures, from 0.
    pub epoch: u64,
    /// Turn counter; modulo the number of readers it gives the reader whose turn it is.
    turn: u64,
    /// Number of the next block of each reader, and whether it has given its last block of the pass.
    pub positions: Vec<u64>,
    ended: Vec<bool>,
}

impl Cursor {
    pub fn new(readers: usize) -> Self {
        Self { epoch: 0, turn: 0, positions: vec![0; readers], ended: vec![false; readers] }
    }

    /// Returns the number of blocks before it.
    pub fn blocks(&self) -> u64 {
        self.positions.iter().sum()
    }

    /// Returns whether all readers have given their last block of the pass.
    pub fn pass_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    /// Returns the reader of the next block of the pass.
    ///
    /// # Panics
    /// If the pass has ended.
    pub fn reader(&mut self) -> usize {
        assert!(!self.pass_ended());
        let readers = self.ended.len() as u64;
        while self.ended[(self.turn % readers) as usize] {
            self.turn += 1;
        }
        (self.turn % readers) as usize
    }

    /// Advances past a block of the reader whose turn it is; returns false for a block that was given before.
    ///
    /// # Errors
    /// A block that is not the next one.
    pub fn advance(&mut self, block: &Block) -> anyhow::Result<bool> {
        let reader = self.reader();
        let expected = self.positions[reader];
        if block.number < expected {
            return Ok(false);
        }
        ensure!(
            block.number == expected && block.epoch == self.epoch,
            "reader {reader} gave block {} of pass {}, expected was {expected} of pass {}",
            block.number,
            block.epoch,
            self.epoch
        );
        self.positions[reader] += 1;
        self.ended[reader] = block.ends_epoch;
        self.turn += 1;
        Ok(true)
    }

    /// Starts the next pass.
    pub fn next_pass(&mut self) {
        self.epoch += 1;
        self.turn = 0;
        self.ended.fill(false);
    }
}
