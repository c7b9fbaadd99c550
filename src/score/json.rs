//! Requests and decisions as JSON objects: the lines of `score` and the bodies of `serve`.

use serde::{Deserialize, Serialize};

use crate::log::error::BadValue;
use crate::log::schema::{AdType, QueueEntry, TrackRow};
use crate::log::track;

use super::scorer::Decision;

/// A request as it comes; unknown fields are ignored.
#[derive(Debug, Serialize, Deserialize)]
pub struct JsonRequest {
    request_id: u64,
    ts_ms: u64,
    slot_id: u32,
    region: u32,
    gender: u8,
    age: u8,
    #[serde(default)]
    user_id: Option<u64>,
    queue: Vec<JsonEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct JsonEntry {
    ad_id: u64,
    #[serde(rename = "type")]
    ad_type: JsonType,
    ecpm: f64,
    pctr: f64,
    filter: u64,
    #[serde(default)]
    boost: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum JsonType {
    C,
    A,
}

impl From<&TrackRow> for JsonRequest {
    fn from(row: &TrackRow) -> Self {
        let entry = |e: &QueueEntry| JsonEntry {
            ad_id: e.ad_id,
            ad_type: match e.ad_type {
                AdType::Contract => JsonType::C,
                AdType::Auction => JsonType::A,
            },
            ecpm: e.ecpm,
            pctr: e.pctr,
            filter: e.filter,
            boost: Some(e.boost),
        };
        Self {
            request_id: row.request_id,
            ts_ms: row.ts_ms,
            slot_id: row.slot_id,
            region: row.region,
            gender: row.gender,
            age: row.age,
            user_id: row.user_id,
            queue: row.queue.iter().map(entry).collect(),
        }
    }
}

impl JsonRequest {
    /// The request, checked by the rules of `track_log`.
    ///
    /// # Errors
    /// The first value that breaks a rule.
    pub fn check(self) -> Result<TrackRow, BadValue> {
        let entry = |e: JsonEntry| QueueEntry {
            ad_id: e.ad_id,
            ad_type: match e.ad_type {
                JsonType::C => AdType::Contract,
                JsonType::A => AdType::Auction,
            },
            ecpm: e.ecpm,
            pctr: e.pctr,
            filter: e.filter,
            boost: e.boost.unwrap_or(1.0),
        };
        let row = TrackRow {
            request_id: self.request_id,
            ts_ms: self.ts_ms,
            slot_id: self.slot_id,
            region: self.region,
            gender: self.gender,
            age: self.age,
            user_id: self.user_id,
            queue: self.queue.into_iter().map(entry).collect(),
        };
        track::check(&row)?;
        Ok(row)
    }
}

/// Parses a JSON object.
///
/// # Errors
/// Text that is no such object, or the first value that breaks a rule.
pub fn request(text: &[u8]) -> Result<TrackRow, BadValue> {
    let request: JsonRequest = serde_json::from_slice(text).map_err(|e| bad_json(text, &e))?;
    request.check()
}

/// What is wrong with JSON.
pub fn bad_json(text: &[u8], error: &serde_json::Error) -> BadValue {
    BadValue::new("", &String::from_utf8_lossy(text), "bad_json", error.to_string())
}

/// A decision as it goes out.
#[derive(Debug, Serialize)]
pub struct JsonDecision<'a> {
    request_id: u64,
    /// 0: nothing may be shown.
    chosen: u64,
    #[serde(serialize_with = "scores")]
    scores: &'a [(u64, f64)],
}

fn scores<S: serde::Serializer>(scores: &[(u64, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Score {
        ad_id: u64,
        score: f64,
    }
    serializer.collect_seq(scores.iter().map(|&(ad_id, score)| Score { ad_id, score }))
}

impl<'a> From<&'a Decision> for JsonDecision<'a> {
    fn from(decision: &'a Decision) -> Self {
        let chosen = decision.chosen.map_or(0, |(ad_id, _)| ad_id);
        Self { request_id: decision.request_id, chosen, scores: &decision.scores }
    }
}
