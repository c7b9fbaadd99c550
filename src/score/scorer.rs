//! One policy that serves one day, request by request: checks and scores. [`super::counting`] decides and counts. Time does not run
//! backwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::env::{Choice, Episode, Incoming, Replay, State, Visit};
use crate::log::corrected::Correction;
use crate::log::day::Day;
use crate::log::error::BadValue;
use crate::log::schema::{AdType, ControlRow, TrackRow};
use crate::log::{Entries, QueueRules, Showable};
use crate::policy::{Decider, Policy};
use crate::values::ValueModel;
use crate::values::model::Predictor;

use super::claims::Claims;
use super::served::{ServedDay, ServedPolicy};

/// How a day is served.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScoreOptions {
    pub rate_seed: u64,
    /// Seconds until the policy observes a delivery.
    pub feedback_delay_s: f64,
    /// Adds to each queue the eligible contracts missing from it.
    pub complete_queues: bool,
    /// Scores every request at the same state: counters, prices and the policy's own state do not move.
    pub stateless: bool,
    /// Whether [`Scorer::confirm`] will be called: choices are remembered then.
    pub exposures: bool,
    /// Seconds within which an exposure has to confirm a choice; one that is not confirmed is taken back, and the policy observes
    /// deliveries when they are confirmed. `None`: what is chosen counts as shown, and exposures correct it.
    pub confirm_within_s: Option<f64>,
}

impl ScoreOptions {
    /// Whether policies observe a choice only when an exposure confirms it.
    pub(super) fn confirms(&self) -> bool {
        self.exposures && self.confirm_within_s.is_some()
    }
}

/// The ad to show on a request, with the scores behind the choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub request_id: u64,
    /// `None`: nothing may be shown.
    pub chosen: Option<(u64, AdType)>,
    /// Ads that may be shown with their scores, in units of eCPM with boosts multiplied on; finite. The highest is chosen.
    pub scores: Vec<(u64, f64)>,
}

/// Scores the requests of a day and keeps the state that scores depend on. Needs no log.
pub struct Scorer {
    pub(super) rules: QueueRules,
    pub(super) day: Day,
    pub(super) replay: Replay,
    pub(super) policy: Box<dyn Policy>,
    pub(super) version: String,
    /// Name of a policy that draws on each request.
    draws: Option<String>,
    pub(super) options: ScoreOptions,
    pub(super) claims: Claims,
    /// Time of the latest request, milliseconds from midnight; time does not run backwards.
    pub(super) now: u64,
    /// Whether the state began in the middle of the day and has seen no request yet.
    pub(super) late: bool,
    /// Whether a request has been decided, or a state with decisions restored.
    pub(super) begun: bool,
    /// Tells work that was handed out before a swap from the new policy's.
    pub(super) generation: u64,
    pub(super) hands_out: bool,
    decider: Decider,
    showable: Showable,
    correction: Correction,
    /// What the policy is told instead of the values of the requests.
    values: Option<Predictor<Arc<ValueModel>>>,
}

/// The largest score in magnitude that is stated: baselines rank contracts without regard to money.
const LARGEST: f64 = 1e30;

impl Scorer {
    /// A scorer at the start of the day.
    ///
    /// # Errors
    /// A policy that cannot begin the day.
    pub fn new(day: &ServedDay, policy: &ServedPolicy, options: ScoreOptions) -> anyhow::Result<Self> {
        let known = Arc::new(day.known(policy));
        let episode = Episode::whole_day(&known, options.rate_seed);
        let state = State::new(vec![0.0; known.contracts.len()]);
        let delay_s = if policy.predicts() { 0.0 } else { options.feedback_delay_s };
        let replay = Replay::serve(known, episode, delay_s, state);
        let version = policy.version.clone();
        let draws = policy.draws().map(ToOwned::to_owned);
        let mut policy = policy.policy();
        policy.begin(&replay);
        policy.hand_out(options.stateless);
        Ok(Self {
            rules: QueueRules::new(day.contracts.clone(), options.complete_queues),
            day: day.day.clone(),
            replay,
            policy,
            version,
            draws,
            options,
            claims: Claims::default(),
            now: 0,
            late: false,
            begun: false,
            generation: 0,
            hands_out: options.stateless,
            decider: Decider::default(),
            showable: Showable::default(),
            correction: Correction::default(),
            values: day.values.clone().map(Predictor::of),
        })
    }

    /// Starts in the middle of the day: impressions delivered since it began, by ad id. Traffic before the first request is taken
    /// to have been as forecast. Ads without a contract are returned.
    pub fn begin_with(&mut self, delivered: &BTreeMap<u64, u64>) -> Vec<u64> {
        let mut unknown = Vec::new();
        for (&ad_id, &count) in delivered {
            match self.rules.contract(ad_id) {
                Some(j) => {
                    self.replay.state.delivered[j as usize] = count as f64;
                    self.replay.state.observed[j as usize] = count as f64;
                }
                None => unknown.push(ad_id),
            }
        }
        self.late = true;
        unknown
    }

    /// The day that is served.
    pub fn day(&self) -> &Day {
        &self.day
    }

    /// What tells the policy that serves from others.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the name of a policy that draws on each request; `None` for one that does not.
    pub fn draws(&self) -> Option<&str> {
        self.draws.as_deref()
    }

    /// Contracts with their true and observed deliveries since the day began.
    pub fn deliveries(&self) -> impl Iterator<Item = (u64, f64, f64)> + '_ {
        let state = &self.replay.state;
        let counts = state.delivered.iter().zip(&state.observed);
        self.replay.day.contracts.iter().zip(counts).map(|(c, (&delivered, &observed))| (c.ad_id, delivered, observed))
    }

    /// The engine's view of the current request.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Checks that a request can be decided.
    ///
    /// # Errors
    /// A time outside the day, or a contract without a control row.
    pub fn check(&self, request: &TrackRow) -> Result<(), BadValue> {
        let Day { date, start_ms, .. } = &self.day;
        if !self.day.contains(request.ts_ms) {
            let rule = format!(
                "lies outside {date} (Unix milliseconds {start_ms}..{}); --day FILE names another day",
                self.day.end_ms()
            );
            return Err(BadValue::new("ts_ms", &request.ts_ms.to_string(), "outside_day", rule));
        }
        self.rules.check(request)
    }

    /// Scores a request at this moment's state, which does not move.
    ///
    /// # Errors
    /// As [`Scorer::check`].
    pub fn probe(&mut self, request: &TrackRow, out: &mut Decision) -> Result<(), BadValue> {
        self.check(request)?;
        let offset = (request.ts_ms - self.day.start_ms).max(self.now);
        self.score_frozen(request, offset, out);
        Ok(())
    }

    pub(super) fn score_frozen(&mut self, request: &TrackRow, offset: u64, out: &mut Decision) {
        let (state, saved) = (self.replay.state.clone(), self.policy.save());
        self.score(request, offset, out);
        let mut moved = std::mem::replace(&mut self.replay.state, state);
        if self.hands_out {
            // Prices that came back meanwhile are told of once.
            self.replay.state.adopt_plan(&mut moved);
        }
        self.policy.load(&self.replay, &saved).expect("a policy reads what it wrote");
    }

    pub(super) fn score(&mut self, request: &TrackRow, offset: u64, out: &mut Decision) -> Choice {
        self.rules.sort(request, &mut self.showable);
        if let Some(values) = &mut self.values {
            let start = self.day.start_ms;
            self.correction.correct(request, &self.rules, &mut self.showable, |request, queue, out| {
                values.correct(request, start, queue, out);
            });
        }
        let &TrackRow { request_id, slot_id, region, gender, age, .. } = request;
        let Showable { entries, auctions, best, .. } = &self.showable;
        let place = self.replay.day.vocabulary.place(slot_id, region);
        let visit = Visit { request_id, offset, slot_id, region, gender, age, best: *best, place };
        self.replay.arrive(Incoming { visit, entries: Entries::Plain(entries), auctions: Entries::Plain(auctions) });
        let choice = self.decider.decide(&mut self.replay, &mut *self.policy);
        self.state_decision(choice, out);
        choice
    }

    /// The score of a contract on the last request in units of eCPM, finite or not; `None` where it could not be shown.
    pub fn raw_score(&self, ad_id: u64) -> Option<f64> {
        let j = self.rules.contract(ad_id)?;
        let at = self.replay.candidates().iter().position(|c| c.contract == j)?;
        Some(1000.0 * self.decider.contracts[at])
    }

    /// The contracts of the day.
    pub fn contracts(&self) -> &[ControlRow] {
        self.rules.contracts()
    }

    /// Time of the latest request, Unix milliseconds; at first the day's midnight.
    pub fn time_ms(&self) -> u64 {
        self.day.start_ms + self.now
    }

    /// Works out what the policy needs before the next request: it is not slower than others then.
    pub fn prepare(&mut self) {
        self.warm(self.now);
    }

    /// Lets the policy work out what it needs before a first request at `offset`: the first request after this is not slower than
    /// others.
    pub fn warm(&mut self, offset: u64) {
        if self.begun {
            return;
        }
        self.begin_late(offset);
        self.begun = true;
        self.replay.set_time(offset);
        if let Some(offsets) = self.policy.replan(&self.replay) {
            self.replay.state.replan(offsets);
        }
        self.policy.score(&self.replay, &mut [], &mut []);
    }

    pub(super) fn begin_late(&mut self, offset: u64) {
        if std::mem::take(&mut self.late) {
            let Replay { day, episode, state, .. } = &mut self.replay;
            state.expect_traffic(day, episode, offset);
            self.policy.begin(&self.replay);
            self.policy.hand_out(self.hands_out);
        }
    }

    fn state_decision(&self, choice: Choice, out: &mut Decision) {
        let replay = &self.replay;
        let boosted = self.policy.boosted();
        let stated = |score: f64, boost: f64| {
            let score = 1000.0 * if boosted { score * boost } else { score };
            score.clamp(-LARGEST, LARGEST)
        };
        out.request_id = replay.visit().request_id;
        out.scores.clear();
        for (c, &score) in replay.candidates().iter().zip(&self.decider.contracts) {
            out.scores.push((replay.day.contracts[c.contract as usize].ad_id, stated(score, c.boost)));
        }
        let scored = self.decider.auctions.len();
        let mut least = f64::INFINITY;
        for (i, a) in replay.auctions().iter().enumerate() {
            // The policy scores the first; the others score less than these.
            let score = match self.decider.auctions.get(i) {
                Some(&score) => stated(score, a.boost),
                None => stated(replay.worth(a), a.boost).min(least),
            };
            if i < scored {
                least = least.min(score);
            }
            out.scores.push((a.ad_id, score));
        }
        out.chosen = match choice {
            Choice::Contract(i) => {
                let contract = replay.candidates()[i].contract as usize;
                Some((replay.day.contracts[contract].ad_id, AdType::Contract))
            }
            Choice::Auction(i) => Some((replay.auctions()[i].ad_id, AdType::Auction)),
            Choice::Nothing => None,
        };
    }
}
