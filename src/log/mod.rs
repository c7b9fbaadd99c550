//! Log directories: a platform's records of one day, and the compiled form that is replayed.
//!
//! Everything above this folder sees a day only as a [`CompiledLog`]: one memory-mapped file, shared by every process, that
//! holds the requests with the entries that may be shown by the log's own static rules (filter, control row, flight,
//! targeting). The text files are read once and checked row by row; bad rows are set aside with the reason.
//!
//! | files | contents |
//! |---|---|
//! | [`schema`], [`track`], [`control`], [`inventory`], [`exposure`], [`day`], [`targeting`] | the rows of each table, and how their cells are parsed |
//! | [`table`], [`scan`], [`quarantine`], [`error`] | tables in any format; one pass over a track log on all cores; bad rows; errors |
//! | [`compile`], [`options`], [`inputs`], [`digest`], [`parts`], [`keep`] | making a compiled log: its options, its inputs and their hashes, savepoints, where it is stored |
//! | [`compiled`], [`block`], [`records`], [`requests`], [`map`], [`queue_buffer`], [`row_index`] | the compiled log's layout, and reading it; requests in memory; rows by their id |
//! | [`queue`], [`draw`] | which entries of a queue may be shown |
//! | [`raw`], [`corrected`], [`sample`] | days that are altered: by stresses, at other values, smaller |
//! | [`check`], [`wander`], [`buckets`] | reports on a log; quantiles in bounded memory |
//! | [`import`], [`write`](mod@write), [`write_parquet`] | importers of public logs; writing log directories |

mod block;
mod buckets;
pub mod check;
mod compile;
pub mod compiled;
pub mod control;
pub mod corrected;
pub mod day;
mod digest;
pub mod draw;
pub mod error;
pub mod exposure;
pub mod import;
pub mod inputs;
pub mod inventory;
pub mod keep;
pub mod map;
pub mod options;
mod parts;
mod quarantine;
pub mod queue;
mod queue_buffer;
pub mod raw;
mod records;
pub mod requests;
pub mod row_index;
pub mod sample;
mod scan;
pub mod schema;
pub mod table;
pub mod targeting;
pub mod track;
mod viewer;
pub mod wander;
pub mod write;
pub mod write_parquet;

pub use block::{Entries, EntriesIter};
pub use compile::open;
pub use compiled::CompiledLog;
pub use error::LogError;
pub use options::CompileOptions;
pub use queue::{QueueRules, Showable};
pub use queue_buffer::{Queue, QueueBuffer};
pub use raw::RawDay;
pub use records::{Auction, BLOCK, ContractEntry, Request};
pub use scan::Progress;
