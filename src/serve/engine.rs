//! What the routes do, without HTTP; also which times of requests are refused.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde::Deserialize;

use crate::export;
use crate::log::day::Day;
use crate::log::error::BadValue;
use crate::log::schema::TrackRow;
use crate::score::json::{JsonDecision, JsonId, JsonRequest};
use crate::score::{Decision, Errand, Exposure, Finished, Heard, Scorer};

use super::error::ApiError;
use super::journal::{Journal, Shown};
use super::metrics::{Metrics, Omitted};

/// The most requests, and exposures, of one body.
const MOST_REQUESTS: usize = 256;
const MOST_EXPOSURES: usize = 10_000;

/// How far the time of a request may lie ahead of this machine's.
const AHEAD_MS: u64 = 60_000;

/// A scorer that several threads share.
pub struct Engine {
    day: Day,
    scorer: Mutex<Scorer>,
    errands: Mutex<Option<Sender<Errand>>>,
    journal: Option<Journal>,
    pub metrics: Metrics,
}

#[derive(Deserialize)]
struct JsonExposure {
    request_id: JsonId,
    ad_id: JsonId,
    ts_ms: u64,
}

/// The time now, Unix milliseconds.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Engine {
    pub fn new(day: Day, scorer: Scorer, errands: Sender<Errand>, journal: Option<Journal>) -> Self {
        Self {
            day,
            scorer: Mutex::new(scorer),
            errands: Mutex::new(Some(errands)),
            journal,
            metrics: Metrics::default(),
        }
    }

    /// The scorer. A thread that panicked holding it has left whole counters: each is written once.
    pub fn scorer(&self) -> MutexGuard<'_, Scorer> {
        self.scorer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a body of one request or of an array of them, all or none; the answer has the same form.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub fn score(&self, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let array = body.trim_ascii_start().first() == Some(&b'[');
        let rows = parse(body, array)?;
        let mut out = Vec::with_capacity(64 + 1024 * rows.len());
        let mut decision = Decision::default();
        let (mut scorer, mut errand) = (self.scorer(), None);
        for (i, (row, _)) in rows.iter().enumerate() {
            let checked = self.check_time(row).and_then(|()| scorer.check(row));
            checked.map_err(|bad| ApiError::bad(&bad, array.then_some(i)))?;
        }
        for (i, (row, id)) in rows.iter().enumerate() {
            scorer.decide(row, &mut decision).map_err(|bad| ApiError::bad(&bad, array.then_some(i)))?;
            self.metrics.decided(&decision);
            errand = errand.or_else(|| scorer.take_errand());
            if array {
                out.push(if i == 0 { b'[' } else { b',' });
            }
            serde_json::to_writer(&mut out, &JsonDecision::new(&decision, *id)).expect("plain values serialise");
        }
        drop(scorer);
        if array {
            out.extend_from_slice(if rows.is_empty() { b"[]" } else { b"]" });
        }
        self.send(errand);
        if let Some(journal) = &self.journal {
            rows.into_iter().for_each(|(row, _)| journal.request(row));
        }
        Ok(out)
    }

    /// Refuses a request of a later time than now: it would move the day on for all requests after it. A day that is replayed has other
    /// times.
    fn check_time(&self, row: &TrackRow) -> Result<(), BadValue> {
        let now = now_ms();
        if self.day.contains(now) && row.ts_ms > now + AHEAD_MS {
            let ahead = (row.ts_ms - now) / 1000;
            let rule = format!("lies {ahead} s ahead of this server's clock, {} at most", AHEAD_MS / 1000);
            return Err(BadValue::new("ts_ms", &row.ts_ms.to_string(), "in_the_future", rule));
        }
        Ok(())
    }

    /// Takes in exposures; returns how many were news, and how many are of another day.
    ///
    /// # Errors
    /// A body that is no array of exposures.
    pub fn expose(&self, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let exposures: Vec<JsonExposure> = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
        if exposures.len() > MOST_EXPOSURES {
            let why = format!("{} exposures, at most {MOST_EXPOSURES} at once", exposures.len());
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why, "body"));
        }
        let arrival_ms = now_ms();
        let (mut news, mut other_day) = (0, 0);
        for JsonExposure { request_id, ad_id, ts_ms } in exposures {
            let (request_id, ad_id) = (request_id.value(), ad_id.value());
            let exposure = Exposure { request_id, ad_id, ts_ms };
            let (heard, claim) = {
                let mut scorer = self.scorer();
                let claim = scorer.claimed(request_id);
                (scorer.confirm(exposure), claim)
            };
            news += u64::from(heard == Heard::News);
            other_day += u64::from(heard == Heard::OtherDay);
            // It was shown, whether or not the request is remembered. Whoever reads the journal leaves repeats out.
            if matches!(heard, Heard::News | Heard::Unknown)
                && let Some(journal) = &self.journal
            {
                journal.exposure(Shown { exposure, arrival_ms, claim });
            }
        }
        self.metrics.exposed(news);
        Ok(format!("{{\"accepted\":{news},\"other_day\":{other_day}}}").into_bytes())
    }

    /// The dictionary's entry of a key at this moment's state.
    ///
    /// # Errors
    /// A query without an ad, an ad without an entry, or a policy that has no dictionary.
    pub fn dictionary(&self, query: &str) -> Result<Vec<u8>, ApiError> {
        let (mut ad_id, mut slot_id, mut bucket) = (None, None, None);
        // All else is digits, which nobody encodes.
        let query = query.replace("%2A", "*").replace("%2a", "*");
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = || ApiError::new(StatusCode::BAD_REQUEST, format!("`{value}` is not a whole number"), name);
            match name {
                "ad_id" => ad_id = Some(value.parse::<u64>().map_err(|_| bad())?),
                "slot_id" if value == "*" => {}
                "pac_bucket" if value == "*" => {}
                "slot_id" => slot_id = Some(value.parse::<u32>().map_err(|_| bad())?),
                "pac_bucket" => bucket = Some(value.parse::<u32>().map_err(|_| bad())?),
                _ => return Err(ApiError::new(StatusCode::BAD_REQUEST, "use ad_id, slot_id and pac_bucket", name)),
            }
        }
        let ad_id = ad_id.ok_or_else(|| ApiError::new(StatusCode::BAD_REQUEST, "is missing", "ad_id"))?;
        if bucket.is_some_and(|bucket| bucket >= export::BUCKETS) {
            let why = format!("buckets are 0 to {}", export::BUCKETS - 1);
            return Err(ApiError::new(StatusCode::BAD_REQUEST, why, "pac_bucket"));
        }
        let entry = export::live(&mut self.scorer(), ad_id, slot_id, bucket);
        let entry = entry.map_err(|why| ApiError::new(StatusCode::NOT_FOUND, why.to_string(), "policy"))?;
        let entry = entry.ok_or_else(|| {
            let why = "no entry: the ad is unknown, out of flight or at its cap, or does not target this slot";
            ApiError::new(StatusCode::NOT_FOUND, why, "ad_id")
        })?;
        Ok(serde_json::to_vec(&entry).expect("plain values serialise"))
    }

    /// Takes a policy's finished work.
    pub fn finish(&self, done: Finished) {
        self.scorer().finish_errand(done);
        self.metrics.replanned();
    }

    /// Puts a successor in the scorer's place.
    pub fn swap(&self, next: Scorer) {
        // The old one is dropped outside the lock.
        let old = self.scorer().swap(next);
        drop(old);
        self.metrics.swapped();
    }

    /// Ends the threads beside it: nothing is sent to them any more.
    pub fn close(&self) {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(journal) = &self.journal {
            journal.close();
        }
    }

    /// Metrics in the text format of Prometheus.
    pub fn exposition(&self) -> String {
        let scorer = self.scorer();
        let none = Omitted::default();
        let omitted = self.journal.as_ref().map_or(&none, Journal::omitted);
        self.metrics.text(scorer.version(), omitted, scorer.deliveries())
    }

    fn send(&self, errand: Option<Errand>) {
        if let (Some(errand), Some(errands)) =
            (errand, self.errands.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
        {
            // Fails where the replanner has ended: then the last prices stay.
            let _ = errands.send(errand);
        }
    }
}

/// Parses a body to requests, each with its id as it came.
fn parse(body: &[u8], array: bool) -> Result<Vec<(TrackRow, JsonId)>, ApiError> {
    let requests: Vec<JsonRequest> = if array {
        serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?
    } else {
        vec![serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?]
    };
    if requests.len() > MOST_REQUESTS {
        let why = format!("{} requests, at most {MOST_REQUESTS} at once", requests.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why, "body"));
    }
    let check = |(i, request): (usize, JsonRequest)| {
        let id = request.id();
        request.check().map(|row| (row, id)).map_err(|bad| ApiError::bad(&bad, array.then_some(i)))
    };
    requests.into_iter().enumerate().map(check).collect()
}
