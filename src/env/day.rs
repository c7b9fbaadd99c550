//! A logged day: what is known of it before it begins, and the rows of its log.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::log::{self, CompiledLog, Request};
use crate::plan::{Forecast, Plan};

use super::incoming::{Incoming, Visit};
use super::known::KnownDay;

/// Indices of the ids that have an embedding; 0 stands for every other id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    pub ads: BTreeMap<u64, u32>,
    pub slots: BTreeMap<u32, u32>,
    pub regions: BTreeMap<u32, u32>,
}

impl Vocabulary {
    /// The contracts, slots and regions of the training days; with `auctions`, also the auction ads that stand in at
    /// least 100 queues.
    pub fn of_days(logs: &[&CompiledLog], auctions: bool) -> Self {
        let mut vocabulary = Self::default();
        let mut counts = BTreeMap::<u64, u32>::new();
        for log in logs {
            for c in log.contracts() {
                let next = vocabulary.ads.len() as u32 + 1;
                vocabulary.ads.entry(c.ad_id).or_insert(next);
            }
            for r in log.requests() {
                let next = vocabulary.slots.len() as u32 + 1;
                vocabulary.slots.entry(r.slot_id).or_insert(next);
                let next = vocabulary.regions.len() as u32 + 1;
                vocabulary.regions.entry(r.region).or_insert(next);
                if auctions {
                    for a in log.auctions(r) {
                        *counts.entry(a.ad_id).or_default() += 1;
                    }
                }
            }
        }
        for (ad_id, _) in counts.into_iter().filter(|&(_, n)| n >= 100) {
            let next = vocabulary.ads.len() as u32 + 1;
            vocabulary.ads.entry(ad_id).or_insert(next);
        }
        vocabulary
    }

    pub fn ad(&self, id: u64) -> u32 {
        self.ads.get(&id).copied().unwrap_or(0)
    }

    /// Indices of a request's slot and region.
    pub fn place(&self, slot_id: u32, region: u32) -> [u16; 2] {
        let index = |i: Option<&u32>| i.map_or(0, |&i| u16::try_from(i).unwrap_or(0));
        [index(self.slots.get(&slot_id)), index(self.regions.get(&region))]
    }
}

/// A logged day ready for replay. Shared by all replays of the process.
#[derive(Debug)]
pub struct DayModel {
    pub log: Arc<CompiledLog>,
    pub known: Arc<KnownDay>,
    /// Slot and region indices of each request would cost a look-up a step; they are resolved once.
    places: Vec<[u16; 2]>,
}

impl DayModel {
    /// Joins a day's log with its forecast (its `inventory`, else the plan's) and the plan.
    ///
    /// # Errors
    /// A malformed inventory.
    pub fn new(dir: &Path, log: CompiledLog, plan: &Plan, vocabulary: Arc<Vocabulary>) -> Result<Self, log::LogError> {
        let own = Forecast::of_directory(dir)?;
        Ok(Self::with_forecast(log, own.as_ref().unwrap_or(&plan.forecast), plan, vocabulary))
    }

    /// Joins a day's log with a given forecast.
    pub fn with_forecast(
        log: impl Into<Arc<CompiledLog>>,
        forecast: &Forecast,
        plan: &Plan,
        vocabulary: Arc<Vocabulary>,
    ) -> Self {
        let log = log.into();
        let places = log.requests().iter().map(|r| vocabulary.place(r.slot_id, r.region)).collect();
        let known = KnownDay::new(log.contracts(), log.day().start_ms, forecast, plan, vocabulary);
        Self { log, known: Arc::new(known), places }
    }

    /// Milliseconds from midnight of a row.
    pub fn offset(&self, row: usize) -> u64 {
        self.log.requests()[row].ts_ms - self.known.start_ms
    }

    /// The request at `row` as replay takes it.
    pub fn incoming(&self, row: usize) -> Incoming<'_> {
        let request = &self.log.requests()[row];
        let &Request { request_id, slot_id, region, gender, age, best, .. } = request;
        let offset = request.ts_ms - self.known.start_ms;
        let visit = Visit { request_id, offset, slot_id, region, gender, age, best, place: self.places[row] };
        Incoming { visit, entries: self.log.entries(request), auctions: self.log.auctions(request) }
    }
}

impl Deref for DayModel {
    type Target = KnownDay;

    fn deref(&self) -> &KnownDay {
        &self.known
    }
}

/// Changes what is known; a replay under way keeps what it began with.
impl DerefMut for DayModel {
    fn deref_mut(&mut self) -> &mut KnownDay {
        Arc::make_mut(&mut self.known)
    }
}
