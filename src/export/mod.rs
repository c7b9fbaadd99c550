//! The dictionary of a feature server: scores of contracts by ad, slot and bucket of predicted click probability.
//!
//! Platforms with a feature server look scores up instead of computing them. A dictionary contains the policy's scores at one
//! state (the start of the day, or the counts at a time) and is exported again every `ttl_s`. Its loss against the policy
//! itself is measured on a held-out day before anything is written. A dictionary is refused if it would earn less than serving
//! the planned play probabilities, if a score is not finite, if it covers too little of the traffic, or if the policy draws on each
//! request: the dictionary would repeat one draw.
//!
//! | file | what it is |
//! |---|---|
//! | `dictionary` | [`Dictionary`]: made from [`ExportOptions`], and written |
//! | `table` | entries with their keys, and their file; the entry of one key at a server's state |
//! | `guard` | [`Guard`], the results on the held-out day; [`Refusal`] |
//! | `bucket` | buckets of predicted click probability |

mod bucket;
mod dictionary;
mod guard;
mod table;

pub use bucket::{BUCKETS, bucket_of, pctr_of};
pub use dictionary::{Dictionary, ExportError, ExportOptions};
pub use guard::{Guard, Refusal};
pub use table::{Key, LiveEntry, Row, live, probe};
