//! The dictionary of a feature server: scores of contracts by ad, slot and bucket of predicted click probability.
//!
//! Platforms with a feature server look scores up instead of computing them. A dictionary contains the policy's scores at one
//! state (the start of the day, or the counts at a time) and is exported again every `ttl_s`. Its loss against the policy
//! itself is measured on a held-out day before anything is written. A dictionary is refused if it would earn less than serving
//! the planned play probabilities, if a score is not finite, if it covers too little of the traffic, or if the policy draws on each
//! request: the dictionary would repeat one draw.

mod bucket;
mod guard;
mod table;

pub use bucket::{BUCKETS, bucket_of, pctr_of};
pub use guard::{Guard, Held, Refusal};
pub use table::{Key, LiveEntry, Row, entries, live, probe, write};
