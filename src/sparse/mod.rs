//! Embedding rows by the hundred million: the host table, the device cache over it, and how rows learn.
//!
//! An id is 64 bits and has one row: `dim` floats, the optimiser's state beside them, and a version that counts the row's updates.
//! The host table is in shared memory, one copy per machine, or several equal ones; a row that nobody has asked for yet has a first value that
//! follows from seed and id, so whoever needs an absent row can compute it. A batch asks for its unique ids once and expands
//! by the inverse. A device holds a part of the rows: what it has updated stays there and is what the next batch reads; only
//! what is missing comes from the host, and only what was changed goes back.
//!
//! | file | what it is |
//! |---|---|
//! | [`optimiser`] | how a row moves along its gradient |
//! | [`index`] | id to record, by linear probing |
//! | [`table`] | [`HostTable`], the rows of a machine, with its one writer; [`TableView`] of other ranks |
//! | [`admission`] | [`Admission`], which ids get a row and whose row gives way for it |
//! | [`marks`], [`oldest`], [`sightings`] | when a row was used last; which one that is the longest ago; how often ids without a row were seen |
//! | `twins` | tables that hold the same rows |
//! | `beats` | signs of life of whoever works on a whole table |
//! | `shape`, `rollback` | what a row is at first and how it is updated; a table's return to a snapshot |
//! | [`changes`], `copying`, `snapshot` | which rows have changed since the newest snapshot; the copies of its rows |
//! | [`lookup`] | [`Lookup`], the unique ids of a batch and where each of its ids stands among them |
//! | [`cache`] | [`Cache`], the rows that devices hold: prefetch, pins, eviction with write-back; [`cache::copies`], a rank's copies of a table that another writes |
//! | [`file`](mod@file), [`order`], [`merge`] | the binary sparse-parameter file; the order of its rows; several files made one |
//! | [`mapped`] | [`MappedRows`], the rows of a file that is mapped and not loaded |

pub mod admission;
mod beats;
pub mod cache;
pub mod changes;
mod copying;
pub mod file;
pub mod index;
pub mod lookup;
pub mod mapped;
pub mod marks;
pub mod merge;
pub mod oldest;
pub mod optimiser;
pub mod order;
mod rollback;
mod shape;
pub mod sightings;
mod snapshot;
pub mod table;
mod twins;

pub use admission::Admission;
pub use cache::{Cache, CacheError, Counters, Ticket};
pub use lookup::Lookup;
pub use mapped::MappedRows;
pub use table::{HostTable, TableError, TableShape, TableView};
