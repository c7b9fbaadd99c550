//! The dictionary of a feature server: scores of contracts by ad, slot and bucket of predicted click probability.
//!
//! Platforms with a feature server look scores up instead of computing them. A dictionary holds what the policy scores at one state
//! (the start of the day, or the counts at a time) and is exported anew every `ttl_s`. What that costs against the policy itself
//! is measured on a held-out day before anything is written: a dictionary that would earn less than serving the planned play
//! probabilities, that holds a score that is not finite or that covers too little of the traffic is refused.
//!
//! May import: `score`, `policy`, `plan`, `env`, `log`.

mod bucket;
mod guard;
mod table;

pub use bucket::{BUCKETS, bucket_of, pctr_of};
pub use guard::{Guard, Held, Refusal};
pub use table::{Key, LiveEntry, Row, entries, live, probe, write};
