//! What a table holds of each row, the first value of a row, and how it is updated.

use crate::settings::RowOptimizer;
use crate::shm::rows::PARAMETERS;
use crate::shm::{RowShape, RowWriter};

use super::index::mix;
use super::marks;

/// Half the width of the interval that first values are drawn from.
pub(super) const FIRST_SPREAD: f32 = 0.05;
/// Elements at the front of a row whose first value is 0: the weights that reach the heads directly.
pub const DIRECT: usize = 2;
/// Slots of the index per row of the table, in fifths: searches stay short up to the last row.
const SLOTS_IN_FIFTHS: usize = 6;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Floats of a row.
    pub dim: usize,
    pub optimizer: RowOptimizer,
    /// Rows that there is room for.
    pub max_rows: usize,
    /// Seed of the first values.
    pub seed: u64,
    /// Whether each row carries a mark of its last use.
    pub marks: bool,
}

impl TableShape {
    /// Words of a record: row, state, version.
    pub fn words(&self) -> usize {
        self.floats() + 1
    }

    /// Floats of a record: row and state.
    pub fn floats(&self) -> usize {
        self.dim + self.optimizer.state_floats(self.dim)
    }

    /// Words of a record in memory: with its mark, where rows carry one.
    pub fn stored_words(&self) -> usize {
        self.words() + if self.marks { marks::WORDS } else { 0 }
    }

    /// Words of a record in files: without the id of its mark.
    pub fn file_words(&self) -> usize {
        self.words() + if self.marks { marks::FILE_WORDS } else { 0 }
    }

    pub(super) fn memory(&self) -> RowShape {
        let slots = (self.max_rows * SLOTS_IN_FIFTHS).div_ceil(5) + 1;
        RowShape { words: self.stored_words(), records: self.max_rows, slots }
    }

    /// How much of `/dev/shm` such a table takes.
    pub fn footprint(&self) -> u64 {
        RowWriter::footprint(self.memory())
    }

    pub(super) fn parameters(&self) -> [u64; PARAMETERS] {
        let mut parameters = [0; PARAMETERS];
        parameters[..5].copy_from_slice(&[
            self.dim as u64,
            self.optimizer.code().into(),
            self.max_rows as u64,
            self.seed,
            self.marks.into(),
        ]);
        parameters
    }

    pub(super) fn of_parameters(parameters: [u64; PARAMETERS]) -> Option<Self> {
        let [dim, optimizer, max_rows, seed, marks, ..] = parameters;
        let optimizer = RowOptimizer::of_code(u32::try_from(optimizer).ok()?)?;
        Some(Self { dim: dim as usize, optimizer, max_rows: max_rows as usize, seed, marks: marks != 0 })
    }

    /// Writes the first value of an id's row into a record: it follows from seed and id alone.
    pub fn first_value(&self, id: u64, record: &mut [u32]) {
        record.fill(0);
        let mut state = mix(self.seed ^ mix(id));
        for word in &mut record[DIRECT.min(self.dim)..self.dim] {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let unit = (mix(state) >> 40) as f32 / (1u64 << 24) as f32;
            *word = ((2.0 * unit - 1.0) * FIRST_SPREAD).to_bits();
        }
    }

    /// Applies a gradient to a record and counts it.
    pub fn update(&self, record: &mut [u32], gradient: &[f32], rate: f32) {
        let (version, floats) = record.split_last_mut().expect("a version");
        let (row, state) = bytemuck::cast_slice_mut::<u32, f32>(floats).split_at_mut(self.dim);
        *version = version.saturating_add(1);
        self.optimizer.apply(rate, row, state, gradient, *version);
    }
}
