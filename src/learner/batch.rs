//! Converts compact segments to training rows: each segment is replayed with the environment's own code ([`replay`]), and a
//! [`Witness`] records the replay; here the rows that the networks take ([`SegmentRows`]).

use crate::env::{
    Choice, ContractMoment, DayModel, Delay, Episode, FEATURES, Incoming, Moment, Replay, Segment, Terms, Weights,
};
use crate::formulas::host as formulas;
use crate::formulas::shared::{ahead, may_bid};
use crate::log::Auction;
use crate::policy::learned::{unit_owed, write_row};
use crate::policy::{PolicySpec, lift};
use crate::settings::{Policy, ScoreMode, Settings};

use super::dims::Dims;

/// A contract that the requests of a step may show. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bidder {
    /// Index into the day's contracts.
    pub contract: u32,
    /// Sum added to the network's output.
    pub lift: f32,
    /// Number of impressions by which the row after the display is ahead.
    pub ahead: f32,
    /// Factor on the critic's output for that row.
    pub after_potential: f32,
}

/// A request of a step: a choice between the contracts and auction ads that it may show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contest {
    pub step: usize,
    /// Range of its [`Offer`]s: first index and end.
    pub offers: (usize, usize),
    /// Range of its [`AuctionOffer`]s: first index and end.
    pub auctions: (usize, usize),
    /// Index of what was shown, counted over the offers, then over the auction ads; `None` if nothing.
    pub shown: Option<usize>,
    /// Probability of the action, if the step's return is corrected for it.
    pub behaviour: Option<f32>,
}

/// Result of showing a contract on a request. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Row among the step's [`Bidder`]s.
    pub slot: usize,
    /// Relative reward of showing it.
    pub gain: f32,
    /// Part of the next impression that is observed as owed.
    pub unit: f32,
    /// Worth of the predicted click.
    pub click: f32,
    pub boost: f32,
}

/// Result of showing an auction ad on a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AuctionOffer {
    pub worth: f32,
    pub gain: f32,
    pub boost: f32,
}

/// A segment as rows. `T` steps, `N` contracts, `K` eligible, `A` auctions. A row of `states` or `after` whose potential is 0 is
/// never read, and zero.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentRows {
    pub day: usize,
    pub len: usize,
    /// `[T, N, FEATURES]` at true counts, and the ad of each row.
    pub states: Vec<f32>,
    pub state_ads: Vec<u32>,
    /// `[N, FEATURES]` after the last step.
    pub last: Vec<f32>,
    pub last_ads: Vec<u32>,
    /// `[T, K (+ A), features]`: the actor's rows, at observed counts, and the ids for the actor's tables.
    pub actor: Vec<f32>,
    pub actor_ids: Vec<u32>,
    /// `[T, K, FEATURES]` with [`Bidder::ahead`] more delivered.
    pub after: Vec<f32>,
    pub after_ads: Vec<u32>,
    /// `[T, N]`: factor on the critic's output, and the scale of its loss; 0 = nothing to learn.
    pub potential: Vec<f32>,
    pub scale: Vec<f32>,
    /// `[N]`; all 0 if the episode ended.
    pub last_potential: Vec<f32>,
    /// `[T, K]`.
    pub bidders: Vec<Option<Bidder>>,
    pub contests: Vec<Contest>,
    pub offers: Vec<Offer>,
    pub auctions: Vec<AuctionOffer>,
    /// `[T, N]`: relative reward of each contract's displays in the step.
    pub rewards: Vec<f32>,
    /// `[T]`: relative reward of the auction ads shown; 0 if each was the best.
    pub auction_rewards: Vec<f32>,
}

/// Returns the unit of the loss of a contract with `owed` and `left` impressions, in the money of its `penalty` averted and `click`
/// worth per impression.
pub fn loss_scale((penalty, click): (f64, f64), (owed, left): (f32, f32), per_step: f64) -> f64 {
    formulas::loss_scale(penalty, click, f64::from(owed.max(0.0)), f64::from(left.max(0.0)), per_step)
}

/// A contract with a number of impressions delivered: what is still to be earned with it.
#[derive(Clone, Copy)]
struct Remaining<'a> {
    replay: &'a Replay,
    weights: &'a Weights,
    contract: usize,
    delivered: f32,
}

impl Remaining<'_> {
    /// Returns the earnings of an impression: the penalty averted and the click's worth.
    fn earnings(&self) -> (f64, f64) {
        let c = &self.replay.day.contracts[self.contract];
        (self.weights.delivery * c.penalty, self.weights.click * c.mean_click)
    }

    /// Returns the impressions owed and the impressions left.
    fn impressions(&self) -> (f32, f32) {
        let Episode { owed, left, .. } = &self.replay.episode;
        let remain = |of: f64| (of - f64::from(self.delivered)) as f32;
        (remain(owed[self.contract]), remain(left[self.contract]))
    }

    fn in_units(&self, money: f64) -> f32 {
        (money / self.replay.day.unit) as f32
    }

    fn flight_is_over(&self) -> bool {
        self.replay.offset() >= self.replay.day.contracts[self.contract].end
    }

    /// Returns the potential value in units of the mean best auction worth; 0 after the flight.
    fn potential(&self) -> f32 {
        if self.flight_is_over() {
            return 0.0;
        }
        let ((penalty, click), (owed, left)) = (self.earnings(), self.impressions());
        self.in_units(formulas::potential(penalty, click, owed.max(0.0).into(), left.max(0.0).into()))
    }

    /// Returns the unit of its loss in units of the mean best auction worth; 0 after the flight.
    fn scale(&self, per_step: f64) -> f32 {
        if self.flight_is_over() {
            return 0.0;
        }
        self.in_units(loss_scale(self.earnings(), self.impressions(), per_step))
    }
}

/// Inputs for rebuilding segments.
#[derive(Debug, Clone, Copy)]
pub struct Rebuild<'a> {
    pub days: &'a [DayModel],
    pub spec: &'a PolicySpec,
    pub settings: &'a Settings,
    pub dims: &'a Dims,
}

/// Recorded action on a request.
#[derive(Debug, Clone, Copy)]
pub struct Decided {
    /// Index over the candidates, then over the auction ads; `None` if nothing was shown.
    pub shown: Option<usize>,
    /// Probability of the action, if the step's return is corrected for it.
    pub behaviour: Option<f32>,
}

/// Observer of a segment's replay.
pub trait Witness {
    /// Called when the first request of step `t` has arrived.
    fn step(&mut self, replay: &Replay, t: usize);
    /// Called when a request of step `t` has arrived, before the action.
    fn request(&mut self, replay: &Replay, t: usize, decided: Decided);
    /// Called after the action, with its reward relative to the best auction ad and its contract, if any.
    fn earned(&mut self, t: usize, contract: Option<usize>, reward: f32);
    /// Called when the request after the last step has arrived; not called if the episode ended.
    fn last(&mut self, replay: &Replay);
}

/// Replays a segment. Of a request's auction ads the witness sees those that are part of the choice, [`Dims::auctions`].
pub fn replay(segment: &Segment, with: Rebuild, witness: &mut impl Witness) {
    let Rebuild { days, settings, dims, .. } = with;
    let day = &days[segment.day as usize];
    let per_step = usize::from(segment.per_step);
    let weights = Weights::from(&settings.reward);
    let episode = Episode::draw(day, &settings.episodes, per_step, segment.episode);
    let delay = Delay::of_policy(&settings.policy, &settings.env).in_episode(episode.seed);
    let mut replay = Replay::resume(day, episode, delay, segment.start.clone());
    let arrive = |replay: &mut Replay, row: u32| {
        let incoming = day.incoming(row as usize);
        replay.arrive(Incoming { auctions: incoming.auctions.truncated(dims.auctions), ..incoming });
    };
    let mut replans = segment.replans.iter().peekable();
    for (at, &row) in segment.rows.iter().enumerate() {
        let t = at / per_step;
        arrive(&mut replay, row);
        if let Some((_, offsets)) = replans.next_if(|(changed, _)| *changed as usize == at) {
            replay.state.replan(offsets);
        }
        if at % per_step == 0 {
            witness.step(&replay, t);
        }
        let candidates = replay.candidates().len();
        let ads = candidates + replay.auctions().len();
        // An index beyond the ads of the choice can only come from a damaged segment.
        let shown = Some(usize::from(segment.actions[at])).filter(|shown| *shown < ads);
        witness.request(&replay, t, Decided { shown, behaviour: segment.probabilities.get(at).copied() });
        let (choice, contract) = match shown {
            None => (Choice::Nothing, None),
            Some(i) if i < candidates => (Choice::Contract(i), Some(replay.candidates()[i].contract as usize)),
            Some(i) => (Choice::Auction(i - candidates), None),
        };
        let earned = replay.show(choice).relative(&weights) / day.unit;
        witness.earned(t, contract, earned as f32);
    }
    if let Some(row) = segment.next {
        arrive(&mut replay, row);
        witness.last(&replay);
    }
}

/// Witness that builds the rows.
struct Builder<'a> {
    rows: SegmentRows,
    common: Common<'a>,
    terms: Vec<Terms>,
    /// Of each contract, at the current step; `None` until one of its rows needs it.
    moments: Vec<Option<ContractMoment>>,
    /// Memory for the ids of a row.
    ids: Vec<u32>,
}

/// What all steps of a segment have in common.
#[derive(Clone, Copy)]
struct Common<'a> {
    spec: &'a PolicySpec,
    dims: &'a Dims,
    weights: Weights,
    per_step: usize,
    tables: usize,
}

impl SegmentRows {
    /// Replays a segment.
    pub fn build(segment: &Segment, with: Rebuild) -> Self {
        let Rebuild { spec, settings, dims, .. } = with;
        let per_step = usize::from(segment.per_step);
        let tables = spec.actor_shape().tables.len();
        let rows = Self::empty(segment, dims, spec.features(), tables);
        let weights = Weights::from(&settings.reward);
        let common = Common { spec, dims, weights, per_step, tables };
        let mut builder = Builder { rows, common, terms: vec![], moments: vec![], ids: vec![] };
        replay(segment, with, &mut builder);
        builder.rows
    }

    /// Returns row `at` of [`states`](Self::states).
    pub fn state(&self, at: usize) -> &[f32] {
        &self.states[at * FEATURES..(at + 1) * FEATURES]
    }

    /// Returns row `at` of [`after`](Self::after).
    pub fn after(&self, at: usize) -> &[f32] {
        &self.after[at * FEATURES..(at + 1) * FEATURES]
    }

    /// Returns row `at` of [`last`](Self::last).
    pub fn last(&self, at: usize) -> &[f32] {
        &self.last[at * FEATURES..(at + 1) * FEATURES]
    }

    /// Returns row `at` of [`actor`](Self::actor), of `width` features.
    pub fn actor(&self, at: usize, width: usize) -> &[f32] {
        &self.actor[at * width..(at + 1) * width]
    }

    /// Returns the rows of [`actor`](Self::actor) that are used: those of bidders, and those of auction ads if they are scored.
    pub fn actor_rows_present(&self, dims: &Dims) -> impl Iterator<Item = usize> {
        let (rows, k) = (dims.actor_rows(), dims.eligible);
        let present = move |at: &usize| match at % rows {
            slot if slot < k => self.bidders[at / rows * k + slot].is_some(),
            _ => true,
        };
        (0..self.len * rows).filter(present)
    }

    /// Returns the number of pairs of step and contract with something to learn.
    pub fn pairs(&self) -> usize {
        self.scale.iter().filter(|scale| **scale > 0.0).count()
    }

    fn empty(segment: &Segment, dims: &Dims, width: usize, tables: usize) -> Self {
        let Dims { steps, contracts: n, eligible: k, .. } = *dims;
        let actor_rows = dims.actor_rows();
        Self {
            day: segment.day as usize,
            len: segment.len(),
            states: vec![0.0; steps * n * FEATURES],
            state_ads: vec![0; steps * n],
            last: vec![0.0; n * FEATURES],
            last_ads: vec![0; n],
            actor: vec![0.0; steps * actor_rows * width],
            actor_ids: vec![0; steps * actor_rows * tables],
            after: vec![0.0; steps * k * FEATURES],
            after_ads: vec![0; steps * k],
            potential: vec![0.0; steps * n],
            scale: vec![0.0; steps * n],
            last_potential: vec![0.0; n],
            bidders: vec![None; steps * k],
            contests: Vec::with_capacity(segment.rows.len()),
            offers: Vec::new(),
            auctions: Vec::with_capacity(segment.rows.len() * dims.auctions),
            rewards: vec![0.0; steps * n],
            auction_rewards: vec![0.0; steps],
        }
    }
}

impl Common<'_> {
    fn remaining<'a>(&'a self, replay: &'a Replay, contract: usize, delivered: f32) -> Remaining<'a> {
        Remaining { replay, weights: &self.weights, contract, delivered }
    }

    /// Writes the ids for the actor's tables of a row of the current request; `ids` is memory.
    fn write_ids(&self, replay: &Replay, ad: u32, row: usize, ids: &mut Vec<u32>, actor_ids: &mut [u32]) {
        ids.clear();
        self.spec.push_ids(replay.visit(), ad, ids);
        actor_ids[row * self.tables..(row + 1) * self.tables].copy_from_slice(ids);
    }
}

impl SegmentRows {
    /// Fills row `slot` among the bidders of step `t` with contract `j`; `ids` is memory.
    fn fill(
        &mut self,
        common: &Common,
        replay: &Replay,
        moment: &ContractMoment,
        (t, slot): (usize, usize),
        j: usize,
        ids: &mut Vec<u32>,
    ) {
        let Common { spec, dims, per_step, .. } = *common;
        let (delivered, observed) = (replay.state.delivered[j] as f32, replay.state.observed[j] as f32);
        let state = t * dims.contracts + j;
        let actor_row = t * dims.actor_rows() + slot;
        let width = spec.features();
        let actor = &mut self.actor[actor_row * width..(actor_row + 1) * width];
        // A state's row without potential was not written.
        if width == FEATURES && observed == delivered && self.potential[state] != 0.0 {
            actor.copy_from_slice(&self.states[state * FEATURES..(state + 1) * FEATURES]);
        } else {
            write_row(&spec.policy, replay, moment, j, actor);
        }
        let ad = replay.day.contracts[j].vocabulary;
        common.write_ids(replay, ad, actor_row, ids, &mut self.actor_ids);
        let ahead = ahead(per_step as f32, (replay.episode.left[j] - replay.state.delivered[j]) as f32);
        let at = t * dims.eligible + slot;
        let after_potential = common.remaining(replay, j, delivered + ahead).potential();
        if after_potential != 0.0 {
            moment.write(delivered + ahead, &mut self.after[at * FEATURES..(at + 1) * FEATURES]);
        }
        self.after_ads[at] = ad;
        let lift = lift(&spec.policy, replay, j, moment.pacing) as f32;
        self.bidders[at] = Some(Bidder { contract: j as u32, lift, ahead, after_potential });
    }
}

/// Returns the row of a candidate of the current request among its step's bidders: its index among the candidates if a step is
/// one request, else its contract.
pub fn slot(replay: &Replay, per_step: usize, candidate: usize) -> usize {
    if per_step == 1 { candidate } else { replay.candidates()[candidate].contract as usize }
}

/// Returns the result of showing a candidate of the current request.
pub fn offer(replay: &Replay, policy: &Policy, w: &Weights, per_step: usize, candidate: usize) -> Offer {
    let unit = replay.day.unit;
    let c = &replay.candidates()[candidate];
    let j = c.contract as usize;
    Offer {
        slot: slot(replay, per_step, candidate),
        gain: (replay.gain(candidate).relative(w) / unit) as f32,
        unit: unit_owed(policy, replay, j) as f32,
        click: (c.click / unit) as f32,
        boost: c.boost as f32,
    }
}

/// Returns the result of showing an auction ad on the current request.
pub fn auction_offer(replay: &Replay, w: &Weights, ad: &Auction) -> AuctionOffer {
    let (unit, worth) = (replay.day.unit, replay.worth(ad));
    AuctionOffer {
        worth: (worth / unit) as f32,
        gain: (w.auction * (worth - replay.best()) / unit) as f32,
        boost: ad.boost as f32,
    }
}

impl Witness for Builder<'_> {
    fn step(&mut self, replay: &Replay, t: usize) {
        let Self { rows, common, terms, moments, ids } = self;
        let Common { spec, dims, per_step, .. } = *common;
        let day = &*replay.day;
        let moment = Moment::new(replay);
        if t == 0 {
            *terms = Terms::all(day, &replay.episode, spec.policy.warm_start);
        }
        moments.clear();
        for (j, terms) in terms.iter().enumerate() {
            let at = t * dims.contracts + j;
            let delivered = replay.state.delivered[j] as f32;
            let remaining = common.remaining(replay, j, delivered);
            let potential = remaining.potential();
            rows.state_ads[at] = day.contracts[j].vocabulary;
            rows.potential[at] = potential;
            rows.scale[at] = remaining.scale(per_step as f64);
            // Later requests of a step may show a contract that the first may not.
            let bids = per_step > 1 && may_bid(moment.flight_state(j), delivered, replay.episode.left[j] as f32);
            moments.push((potential != 0.0 || bids).then(|| moment.of(j, terms)));
            let Some(contract_moment) = &moments[j] else { continue };
            if potential != 0.0 {
                contract_moment.write(delivered, &mut rows.states[at * FEATURES..(at + 1) * FEATURES]);
            }
            if bids {
                rows.fill(common, replay, contract_moment, (t, j), j, ids);
            }
        }
        if per_step == 1 {
            for (slot, c) in replay.candidates().iter().enumerate() {
                let j = c.contract as usize;
                let contract_moment = moments[j].get_or_insert_with(|| moment.of(j, &terms[j]));
                rows.fill(common, replay, contract_moment, (t, slot), j, ids);
            }
        }
        if spec.score_mode == ScoreMode::All {
            for (i, ad) in replay.auctions().iter().enumerate() {
                let at = t * dims.actor_rows() + dims.eligible + i;
                let from = at * spec.features();
                moment.auction(replay.worth(ad), &mut rows.actor[from..from + FEATURES]);
                common.write_ids(replay, spec.vocabulary.ad(ad.ad_id), at, ids, &mut rows.actor_ids);
            }
        }
    }

    fn request(&mut self, replay: &Replay, t: usize, decided: Decided) {
        let Self { rows, common: Common { spec, weights, per_step, .. }, .. } = self;
        let from = (rows.offers.len(), rows.auctions.len());
        let offers = 0..replay.candidates().len();
        rows.offers.extend(offers.map(|i| offer(replay, &spec.policy, weights, *per_step, i)));
        rows.auctions.extend(replay.auctions().iter().map(|ad| auction_offer(replay, weights, ad)));
        rows.contests.push(Contest {
            step: t,
            offers: (from.0, rows.offers.len()),
            auctions: (from.1, rows.auctions.len()),
            shown: decided.shown,
            behaviour: decided.behaviour,
        });
    }

    fn earned(&mut self, t: usize, contract: Option<usize>, reward: f32) {
        match contract {
            Some(j) => self.rows.rewards[t * self.common.dims.contracts + j] += reward,
            None => self.rows.auction_rewards[t] += reward,
        }
    }

    fn last(&mut self, replay: &Replay) {
        let (rows, day) = (&mut self.rows, &*replay.day);
        let moment = Moment::new(replay);
        for (j, terms) in self.terms.iter().enumerate() {
            let delivered = replay.state.delivered[j] as f32;
            moment.of(j, terms).write(delivered, &mut rows.last[j * FEATURES..(j + 1) * FEATURES]);
            rows.last_ads[j] = day.contracts[j].vocabulary;
            rows.last_potential[j] = self.common.remaining(replay, j, delivered).potential();
        }
    }
}
