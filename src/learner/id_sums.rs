//! Sums of rows by the id that they have in an embedding table. The gradient by an embedding is a product with the sum of its id's
//! rows: one product for each id that occurs, instead of one for each row.

use std::ops::Range;

/// Sums of rows by id.
pub struct IdSums {
    /// Ids that occur, ascending.
    pub ids: Vec<u32>,
    /// `[ids, width]`
    pub sums: Vec<f32>,
    width: usize,
    /// For each row, the place of its id.
    places: Vec<usize>,
}

impl IdSums {
    /// Returns sums of rows with these ids and `width` columns, all zero.
    pub fn new(of_rows: impl Iterator<Item = u32> + Clone, width: usize) -> Self {
        let mut ids: Vec<u32> = of_rows.clone().collect();
        ids.sort_unstable();
        ids.dedup();
        let places = of_rows.map(|id| ids.partition_point(|other| *other < id)).collect();
        Self { sums: vec![0.0; ids.len() * width], ids, width, places }
    }

    /// Adds some columns of the rows.
    ///
    /// # Shapes
    /// - rows: `[rows, columns]`
    pub fn add(&mut self, columns: Range<usize>, rows: &[f32]) {
        for (place, row) in self.places.iter().zip(rows.chunks_exact(columns.len())) {
            let sums = &mut self.sums[place * self.width..][columns.clone()];
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }
}
