//! The step engine: takes in a request, shows an ad and updates the counters.

use std::sync::Arc;

use crate::log::schema::DAY_MS;
use crate::log::{Auction, draw};
use crate::settings::Reward;

use super::day::DayModel;
use super::episode::Episode;
use super::incoming::{Incoming, Visit};
use super::known::KnownDay;
use super::state::State;

/// A contract that may be shown on the current request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Index into the day's contracts.
    pub contract: u32,
    pub pctr: f64,
    /// Worth of the predicted click, minor units.
    pub click: f64,
    pub ecpm: f64,
    pub boost: f64,
}

/// Ad shown on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Index into [`Replay::candidates`].
    Contract(usize),
    /// Index into [`Replay::auctions`].
    Auction(usize),
    /// Nothing may be shown.
    Nothing,
}

/// Weights of the reward's parts; all are 1 in J.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub auction: f64,
    pub click: f64,
    pub delivery: f64,
}

impl Weights {
    pub const J: Self = Self { auction: 1.0, click: 1.0, delivery: 1.0 };
}

impl From<&Reward> for Weights {
    fn from(reward: &Reward) -> Self {
        Self { auction: reward.auction, click: reward.contract_ctr, delivery: reward.contract_delivery }
    }
}

/// Earnings of one display, minor units.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Display {
    pub auction: f64,
    pub click: f64,
    /// Penalty averted.
    pub delivery: f64,
    /// Best auction worth that could have been shown.
    pub best: f64,
}

impl Display {
    /// Returns the absolute dense reward; its sum over a day minus `S` is J.
    pub fn absolute(&self, w: &Weights) -> f64 {
        w.auction * self.auction + w.click * self.click + w.delivery * self.delivery
    }

    /// Returns the relative dense reward; its sum over a day is `J + S - sum_i b_i`.
    pub fn relative(&self, w: &Weights) -> f64 {
        self.absolute(w) - w.auction * self.best
    }
}

/// One replay of one day, or a day that is being served.
#[derive(Debug)]
pub struct Replay {
    pub day: Arc<KnownDay>,
    pub episode: Episode,
    pub state: State,
    delay: u64,
    visit: Visit,
    factor: f64,
    candidates: Vec<Candidate>,
    auctions: Vec<Auction>,
}

impl Replay {
    /// Starts a replay at the episode's start. Rows before it count as traffic only, and their deliveries are drawn
    /// around the plan with `spread`.
    ///
    /// `delay_s` is the feedback delay in seconds. `rows` iterates over the episode's rows and is left at the first one to
    /// be decided.
    pub fn start(
        day: &DayModel,
        episode: Episode,
        delay_s: f64,
        spread: f64,
        rows: &mut std::iter::Peekable<impl Iterator<Item = usize>>,
    ) -> Self {
        let state = State::new(episode.draw_delivered(day, spread));
        let mut replay = Self::resume(day, episode, delay_s, state);
        let mut requests = day.log.requests().iter();
        while let Some(row) = rows.next_if(|&row| day.offset(row) < replay.episode.start) {
            let Incoming { visit, entries, .. } = day.incoming_of(row, &requests.row(row));
            let best = visit.best * replay.episode.price_factor(visit.region, visit.offset);
            let weight = replay.state.arrive(day, &replay.episode, visit.offset, replay.delay, best);
            for e in entries {
                replay.state.meet(day, e.contract as usize, visit.offset, weight, best);
            }
        }
        replay
    }

    /// Resumes a replay from a recorded state.
    pub fn resume(day: &DayModel, episode: Episode, delay_s: f64, state: State) -> Self {
        Self::serve(day.known.clone(), episode, delay_s, state)
    }

    /// Serves a day from a state on; its requests need no log.
    pub fn serve(day: Arc<KnownDay>, episode: Episode, delay_s: f64, state: State) -> Self {
        Self {
            day,
            episode,
            state,
            delay: (delay_s * 1000.0) as u64,
            visit: Visit::default(),
            factor: 1.0,
            candidates: Vec::new(),
            auctions: Vec::new(),
        }
    }

    /// Takes in a request and finds the contracts that may be shown on it.
    pub fn arrive(&mut self, incoming: Incoming) {
        let Incoming { visit, entries, auctions } = incoming;
        self.auctions.clear();
        auctions.append_to(&mut self.auctions);
        self.visit = visit;
        let Visit { request_id, region, offset, .. } = visit;
        self.factor = self.episode.price_factor(region, offset);
        let best = visit.best * self.factor;
        let weight = self.state.arrive(&self.day, &self.episode, offset, self.delay, best);
        self.candidates.clear();
        for e in entries {
            let j = e.contract as usize;
            let c = &self.day.contracts[j];
            self.state.meet(&self.day, j, offset, weight, best);
            if self.state.delivered[j] < self.episode.left[j]
                && draw::passes(self.episode.rate_seed, request_id, c.ad_id, c.rate)
            {
                self.candidates.push(Candidate {
                    contract: e.contract,
                    pctr: e.pctr,
                    click: c.click_value * e.pctr,
                    ecpm: e.ecpm,
                    boost: e.boost,
                });
            }
        }
    }

    /// Returns the contracts that may be shown on the current request.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Returns the auction ads that may be shown on the current request, best score first, at logged prices.
    pub fn auctions(&self) -> &[Auction] {
        &self.auctions
    }

    /// Returns the worth of an auction ad under this episode's prices, minor units per impression.
    pub fn worth(&self, auction: &Auction) -> f64 {
        auction.worth() * self.factor
    }

    /// Returns the best auction worth of the current request; 0 if none.
    pub fn best(&self) -> f64 {
        self.visit.best * self.factor
    }

    /// Returns the current request.
    pub fn visit(&self) -> &Visit {
        &self.visit
    }

    /// Returns the time of the current request, milliseconds from midnight, within the day.
    pub fn offset(&self) -> u64 {
        self.visit.offset.min(DAY_MS - 1)
    }

    /// Returns the offset before which deliveries are observed by now. Observed counts compare with the plan up to it.
    pub fn observed_until(&self) -> u64 {
        self.offset().saturating_sub(self.delay)
    }

    /// Returns the feedback delay, milliseconds.
    pub fn delay_ms(&self) -> u64 {
        self.delay
    }

    /// Returns the earnings of showing contract candidate `i` now.
    pub fn gain(&self, i: usize) -> Display {
        let c = &self.candidates[i];
        let j = c.contract as usize;
        let unit = (self.episode.owed[j] - self.state.delivered[j]).clamp(0.0, 1.0);
        Display { auction: 0.0, click: c.click, delivery: self.day.contracts[j].penalty * unit, best: self.best() }
    }

    /// Sets the time without a request, for computations of a policy before the first one arrives.
    pub fn set_time(&mut self, offset: u64) {
        self.visit = Visit { offset, ..Visit::default() };
        self.candidates.clear();
        self.auctions.clear();
    }

    /// Claims an ad whose display is confirmed later ([`State::confirm`]): it counts for the cap, and policies do not observe
    /// it yet.
    pub fn claim(&mut self, choice: Choice) {
        if let Choice::Contract(i) = choice {
            self.state.delivered[self.candidates[i].contract as usize] += 1.0;
        }
    }

    /// Shows one ad and updates the counters.
    pub fn show(&mut self, choice: Choice) -> Display {
        match choice {
            Choice::Contract(i) => {
                let display = self.gain(i);
                let c = self.candidates[i];
                self.state.show(Some(c.contract as usize), self.visit.offset, self.delay, c.pctr, 0.0);
                display
            }
            Choice::Auction(i) => {
                let auction = &self.auctions()[i];
                let worth = self.worth(auction);
                self.state.show(None, self.visit.offset, self.delay, auction.pctr, worth);
                Display { auction: worth, best: self.best(), ..Display::default() }
            }
            Choice::Nothing => Display { best: self.best(), ..Display::default() },
        }
    }
}
