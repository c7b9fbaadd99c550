//! What a caller of a pass implements: [`Gather`] collects rows in a worker, [`Taker`] takes the batches.

use std::fs::File;

use crate::log::error::Result;
use crate::log::parts::PassState;
use crate::log::queue::QueueRules;
use crate::log::schema::TrackRow;

/// Data that workers keep of the good rows of a batch.
pub trait Gather: Default + Send {
    /// Adds a row whose contract entries all have a control row.
    fn push(&mut self, row: TrackRow, rules: &QueueRules);

    /// Forgets all rows and keeps the memory for the next batch.
    fn clear(&mut self);
}

/// Consumer of the batches of a pass.
pub trait Taker {
    type Gathered: Gather;

    /// Whether it stores savepoints of passes that begin at the first row.
    fn stores(&self) -> bool {
        false
    }

    /// Goes back to the savepoint of an earlier process. Returns the pass as it was, and the file of its ids.
    fn resume(&mut self) -> Option<(PassState, File)> {
        None
    }

    /// Returns whether a savepoint is due after `rows` rows.
    fn is_due(&self, _rows: u64) -> bool {
        false
    }

    /// Stores a savepoint with the ids since the one before.
    fn store(&mut self, _pass: PassState, _ids: &[u64]) {}

    /// Starts a pass; data from an earlier pass must be discarded.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn begin(&mut self) -> Result<()>;

    /// Takes the gathered data of a batch, with a flag for each gathered row: false if its request id occurred in an earlier row.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn take(&mut self, gathered: &mut Self::Gathered, keep: &[bool]) -> Result<Next>;
}

/// Answer of a taker after each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    GoOn,
    /// Start the pass again; [`super::Source::scan`] returns `None`.
    Again,
}
