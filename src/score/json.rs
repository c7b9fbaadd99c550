//! Requests and decisions as JSON objects: the lines of `score` and the bodies of `serve`.

use serde::{Deserialize, Serialize};

use crate::log::error::BadValue;
use crate::log::schema::{AdType, QueueEntry, TrackRow};
use crate::log::track;

use super::scorer::Decision;

/// A request as it comes; unknown fields are ignored.
#[derive(Debug, Serialize, Deserialize)]
pub struct JsonRequest {
    request_id: JsonId,
    ts_ms: u64,
    slot_id: u32,
    region: u32,
    gender: u8,
    age: u8,
    #[serde(default)]
    user_id: Option<JsonId>,
    queue: Vec<JsonEntry>,
}

/// An id: a number, or a string of its digits. Programs whose numbers are doubles, such as JavaScript, keep ids above 2^53 whole in strings alone.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(into = "JsonIdForm")]
pub enum JsonId {
    Number(u64),
    Text(u64),
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonIdForm {
    Number(u64),
    Text(String),
}

impl From<JsonId> for JsonIdForm {
    fn from(id: JsonId) -> Self {
        match id {
            JsonId::Number(id) => Self::Number(id),
            JsonId::Text(id) => Self::Text(id.to_string()),
        }
    }
}

impl JsonId {
    pub fn value(self) -> u64 {
        match self {
            Self::Number(id) | Self::Text(id) => id,
        }
    }

    /// Returns `id` in the form of this one.
    fn like(self, id: u64) -> Self {
        match self {
            Self::Number(_) => Self::Number(id),
            Self::Text(_) => Self::Text(id),
        }
    }
}

impl<'de> Deserialize<'de> for JsonId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = JsonId;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(
                    f,
                    "an id: a whole number from 0 to {}, or its digits as a string, without a leading 0; hash ids that are texts",
                    u64::MAX
                )
            }

            fn visit_u64<E>(self, id: u64) -> Result<JsonId, E> {
                Ok(JsonId::Number(id))
            }

            // What Python gives.
            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<JsonId, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Signed(id), &self);
                id.try_into().map(JsonId::Number).map_err(|_| wrong())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<JsonId, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                // The answer has the id as it came, which a number forgets for "007".
                let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
                text.parse().ok().filter(|_| digits).map(JsonId::Text).ok_or_else(wrong)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct JsonEntry {
    ad_id: JsonId,
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
            ad_id: JsonId::Number(e.ad_id),
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
            request_id: JsonId::Number(row.request_id),
            ts_ms: row.ts_ms,
            slot_id: row.slot_id,
            region: row.region,
            gender: row.gender,
            age: row.age,
            user_id: row.user_id.map(JsonId::Number),
            queue: row.queue.iter().map(entry).collect(),
        }
    }
}

impl JsonRequest {
    /// Returns the id of the request as it came.
    pub fn id(&self) -> JsonId {
        self.request_id
    }

    /// The request, checked by the rules of `track_log`.
    ///
    /// # Errors
    /// The first value that breaks a rule.
    pub fn check(self) -> Result<TrackRow, BadValue> {
        let entry = |e: JsonEntry| QueueEntry {
            ad_id: e.ad_id.value(),
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
            request_id: self.request_id.value(),
            ts_ms: self.ts_ms,
            slot_id: self.slot_id,
            region: self.region,
            gender: self.gender,
            age: self.age,
            user_id: self.user_id.map(JsonId::value),
            queue: self.queue.into_iter().map(entry).collect(),
        };
        track::check(&row)?;
        Ok(row)
    }
}

/// Parses a JSON object; returns the request, and its id as it came.
///
/// # Errors
/// Text that is no such object, or the first value that breaks a rule.
pub fn request(text: &[u8]) -> Result<(TrackRow, JsonId), BadValue> {
    let request: JsonRequest = serde_json::from_slice(text).map_err(|e| bad_json(text, &e))?;
    let id = request.id();
    Ok((request.check()?, id))
}

/// What is wrong with JSON.
pub fn bad_json(text: &[u8], error: &serde_json::Error) -> BadValue {
    BadValue::new("", &String::from_utf8_lossy(text), "bad_json", error.to_string())
}

/// A decision as it goes out. All ids have the form in which that of the request came.
#[derive(Debug, Serialize)]
pub struct JsonDecision<'a> {
    request_id: JsonId,
    /// 0: nothing may be shown.
    chosen: JsonId,
    scores: JsonScores<'a>,
}

/// The scores of a decision's candidates.
#[derive(Debug)]
struct JsonScores<'a> {
    form: JsonId,
    scores: &'a [(u64, f64)],
}

impl Serialize for JsonScores<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Score {
            ad_id: JsonId,
            score: f64,
        }
        serializer.collect_seq(self.scores.iter().map(|&(ad_id, score)| Score { ad_id: self.form.like(ad_id), score }))
    }
}

impl<'a> JsonDecision<'a> {
    /// Writes `decision` with ids in the form of `form`.
    pub fn new(decision: &'a Decision, form: JsonId) -> Self {
        let chosen = decision.chosen.map_or(0, |(ad_id, _)| ad_id);
        let scores = JsonScores { form, scores: &decision.scores };
        Self { request_id: form.like(decision.request_id), chosen: form.like(chosen), scores }
    }
}
