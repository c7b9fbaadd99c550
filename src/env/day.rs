//! A logged day: the information known before it begins, and the rows of its log.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use crate::log::{self, Auction, CompiledLog, ContractEntry, Entries, Queue, Request};
use crate::plan::{Forecast, Plan};

use super::incoming::{Incoming, Visit};
use super::known::KnownDay;
use super::vocabulary::Vocabulary;

/// A logged day ready for replay, shared by all replays of the process.
#[derive(Debug)]
pub struct DayModel {
    pub log: Arc<CompiledLog>,
    pub known: Arc<KnownDay>,
    /// Slot and region indices of each request, resolved once to save a look-up per step.
    places: Vec<[u16; 2]>,
}

impl DayModel {
    /// Joins a day's log with its forecast (its `inventory`, else the plan's) and the plan.
    ///
    /// # Errors
    /// If the inventory is malformed.
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

    /// The same day for a policy that predicts deliveries, if it `predicts`.
    #[must_use]
    pub fn seen_by(self, predicts: bool) -> Self {
        if !predicts {
            return self;
        }
        Self { known: Arc::new(Arc::unwrap_or_clone(self.known).predicting()), ..self }
    }

    /// Returns the time of a row, milliseconds from midnight.
    pub fn offset(&self, row: usize) -> u64 {
        self.log.requests().ts_ms(row) - self.known.start_ms
    }

    /// Returns the request at `row` in the form that replay takes.
    pub fn incoming(&self, row: usize) -> Incoming<'_> {
        self.incoming_of(row, &self.log.requests().row(row))
    }

    /// Returns `request`, which is at `row`, in the form that replay takes.
    pub fn incoming_of(&self, row: usize, request: &Request) -> Incoming<'_> {
        self.with_queue(row, request, self.log.entries(request), self.log.auctions(request))
    }

    /// Returns the request at `row`, whose queue is already unpacked, in the form that replay takes.
    pub fn incoming_unpacked<'a>(&self, row: usize, (request, entries, auctions): Queue<'a>) -> Incoming<'a> {
        self.with_queue(row, request, Entries::Plain(entries), Entries::Plain(auctions))
    }

    #[inline]
    fn with_queue<'a>(
        &self,
        row: usize,
        request: &Request,
        entries: Entries<'a, ContractEntry>,
        auctions: Entries<'a, Auction>,
    ) -> Incoming<'a> {
        let &Request { request_id, slot_id, region, gender, age, best, .. } = request;
        let offset = request.ts_ms - self.known.start_ms;
        let visit = Visit { request_id, offset, slot_id, region, gender, age, best, place: self.places[row] };
        Incoming { visit, entries, auctions }
    }
}

impl Deref for DayModel {
    type Target = KnownDay;

    fn deref(&self) -> &KnownDay {
        &self.known
    }
}

/// Changes the known part of the day; a replay in progress keeps the old one.
impl DerefMut for DayModel {
    fn deref_mut(&mut self) -> &mut KnownDay {
        Arc::make_mut(&mut self.known)
    }
}
