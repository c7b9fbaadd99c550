//! Spans of the time ahead, each with its own regression.

use crate::plan::forecast::GRID;

/// Edges of the spans of the time ahead, cells of the grid (quarters of an hour).
pub(super) const EDGES: [usize; SPANS + 1] = [0, 2, 6, 12, 24, GRID];
pub(super) const SPANS: usize = 5;

/// Returns the span of a cell that lies `ahead` cells in the future.
pub(super) fn span_of(ahead: usize) -> usize {
    EDGES[1..].iter().position(|&end| ahead < end).unwrap_or(SPANS - 1)
}
