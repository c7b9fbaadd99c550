//! From compact segments to the rows that the networks see: each segment is replayed with the environment's own code.

use crate::env::{Choice, ContractMoment, DayModel, Episode, FEATURES, Moment, Replay, Segment, Weights};
use crate::policy::{LearnedPolicy, PolicySpec, lift};
use crate::settings::{ScoreMode, Settings};

use super::dims::Dims;

/// A contract that the requests of a step may show. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bidder {
    /// Index into the day's contracts.
    pub contract: u32,
    /// What is added to the network's output.
    pub lift: f32,
    /// Impressions by which the row after the display is further on.
    pub ahead: f32,
    /// What the critic's output is multiplied by there.
    pub after_potential: f32,
}

/// A request of a step: a contest between the contracts and auction ads that it may show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contest {
    pub step: usize,
    /// Index of the first of its [`Offer`]s, and behind the last.
    pub offers: (usize, usize),
    /// The same of its [`AuctionOffer`]s.
    pub auctions: (usize, usize),
    /// What was shown, counted over the offers, then over the auction ads; `None` if nothing.
    pub shown: Option<usize>,
    /// Probability with which the actor chose it, where the step's return is corrected for it.
    pub behaviour: Option<f32>,
}

/// What showing a contract on a request comes to. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Row among the step's [`Bidder`]s.
    pub slot: usize,
    /// Relative reward of showing it.
    pub gain: f32,
    /// How much of the next impression is observed as owed.
    pub unit: f32,
    /// Worth of the predicted click.
    pub click: f32,
    pub boost: f32,
}

/// What showing an auction ad on a request comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AuctionOffer {
    pub worth: f32,
    pub gain: f32,
    pub boost: f32,
}

/// A segment as rows. `T` steps, `N` contracts, `K` eligible, `A` auctions; unused rows are zero.
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
    /// `[T, K (+ A), FEATURES]` at observed counts, with the ids of the actor's tables.
    pub actor: Vec<f32>,
    pub actor_ids: Vec<u32>,
    /// `[T, K, FEATURES]` with [`Bidder::ahead`] more delivered.
    pub after: Vec<f32>,
    pub after_ads: Vec<u32>,
    /// `[T, N]`: what the critic's output is multiplied by, and the scale of its loss; 0 = nothing to learn.
    pub potential: Vec<f32>,
    pub scale: Vec<f32>,
    /// `[N]`; all 0 where the episode ended.
    pub last_potential: Vec<f32>,
    /// `[T, K]`.
    pub bidders: Vec<Option<Bidder>>,
    pub contests: Vec<Contest>,
    pub offers: Vec<Offer>,
    pub auctions: Vec<AuctionOffer>,
    /// `[T, N]`: relative reward that each contract's displays earned in the step.
    pub rewards: Vec<f32>,
    /// `[T]`: relative reward of the auction ads shown; 0 where the best was.
    pub auction_rewards: Vec<f32>,
}

/// Potential value of contract `j` with `delivered` counted, and the scale of its loss, in money units.
///
/// The potential is what its remaining impressions could earn at most; the scale grows with the root of the demand that
/// remains, as the noise of the return does where a step is a request, and alike in units of a step's requests.
fn potential(replay: &Replay, w: &Weights, per_step: f64, j: usize, delivered: f32) -> (f32, f32) {
    let c = &replay.day.contracts[j];
    if replay.offset() >= c.end {
        return (0.0, 0.0);
    }
    let owed = f64::from((replay.episode.owed[j] - delivered).max(0.0));
    let left = f64::from((replay.episode.left[j] - delivered).max(0.0));
    let (penalty, click) = (w.delivery * c.penalty, w.click * c.mean_click);
    let potential = penalty * owed + click * left;
    let stake = if owed > 0.0 { penalty + click } else { click };
    let scale = stake * per_step * (0.5 + (left / per_step).sqrt());
    ((potential / replay.day.unit) as f32, (scale / replay.day.unit) as f32)
}

/// What segments are rebuilt with.
#[derive(Debug, Clone, Copy)]
pub struct Rebuild<'a> {
    pub days: &'a [DayModel],
    pub spec: &'a PolicySpec,
    pub settings: &'a Settings,
    pub dims: &'a Dims,
}

/// What the parts of a segment are rebuilt with.
struct Builder<'a> {
    spec: &'a PolicySpec,
    dims: &'a Dims,
    weights: Weights,
    per_step: usize,
    tables: usize,
}

impl SegmentRows {
    /// Replays a segment.
    pub fn build(segment: &Segment, with: Rebuild) -> Self {
        let Rebuild { days, spec, settings, dims } = with;
        let day = &days[segment.day as usize];
        let per_step = usize::from(segment.per_step);
        let episode = Episode::draw(day, &settings.episodes, per_step, segment.episode);
        let mut replay = Replay::resume(day, episode, settings.env.feedback_delay_s, segment.start.clone());
        let tables = spec.actor_shape().tables.len();
        let builder = Builder { spec, dims, weights: Weights::from(&settings.reward), per_step, tables };
        let mut rows = Self::empty(segment, dims, tables);
        let mut replans = segment.replans.iter().peekable();
        for (t, group) in segment.rows.chunks(per_step).enumerate() {
            for (i, &row) in group.iter().enumerate() {
                replay.arrive(row as usize);
                if let Some((_, offsets)) = replans.next_if(|(at, _)| *at as usize == t * per_step + i) {
                    replay.state.replanned.copy_from_slice(offsets);
                }
                if i == 0 {
                    rows.step(&builder, &replay, t);
                }
                rows.contest(&builder, &mut replay, t, segment, t * per_step + i);
            }
        }
        if let Some(row) = segment.next {
            replay.arrive(row as usize);
            let moment = Moment::new(&replay, spec.policy.warm_start);
            for j in 0..day.contracts.len() {
                let delivered = replay.state.delivered[j];
                moment.contract(j, delivered, &mut rows.last[j * FEATURES..(j + 1) * FEATURES]);
                rows.last_ads[j] = day.contracts[j].vocabulary;
                rows.last_potential[j] = potential(&replay, &builder.weights, per_step as f64, j, delivered).0;
            }
        }
        rows
    }

    /// Steps and contracts with something to learn.
    pub fn pairs(&self) -> usize {
        self.scale.iter().filter(|scale| **scale > 0.0).count()
    }

    fn empty(segment: &Segment, dims: &Dims, tables: usize) -> Self {
        let Dims { steps, contracts: n, eligible: k, .. } = *dims;
        let actor_rows = dims.actor_rows();
        Self {
            day: segment.day as usize,
            len: segment.len(),
            states: vec![0.0; steps * n * FEATURES],
            state_ads: vec![0; steps * n],
            last: vec![0.0; n * FEATURES],
            last_ads: vec![0; n],
            actor: vec![0.0; steps * actor_rows * FEATURES],
            actor_ids: vec![0; steps * actor_rows * tables],
            after: vec![0.0; steps * k * FEATURES],
            after_ads: vec![0; steps * k],
            potential: vec![0.0; steps * n],
            scale: vec![0.0; steps * n],
            last_potential: vec![0.0; n],
            bidders: vec![None; steps * k],
            contests: Vec::with_capacity(segment.rows.len()),
            offers: Vec::new(),
            auctions: Vec::new(),
            rewards: vec![0.0; steps * n],
            auction_rewards: vec![0.0; steps],
        }
    }

    /// The rows of step `t`, at the arrival of its first request.
    fn step(&mut self, b: &Builder, replay: &Replay, t: usize) {
        let day = replay.day;
        let n = b.dims.contracts;
        let moment = Moment::new(replay, b.spec.policy.warm_start);
        for j in 0..day.contracts.len() {
            let at = t * n + j;
            let delivered = replay.state.delivered[j];
            let of = moment.of(j);
            of.write(delivered, &mut self.states[at * FEATURES..(at + 1) * FEATURES]);
            self.state_ads[at] = day.contracts[j].vocabulary;
            (self.potential[at], self.scale[at]) = potential(replay, &b.weights, b.per_step as f64, j, delivered);
            // Later requests of a step may show what the first may not.
            if b.per_step > 1 && replay.offset() < day.contracts[j].end && delivered < replay.episode.left[j] {
                self.bidder(b, replay, &of, (t, j), j);
            }
        }
        if b.per_step == 1 {
            for (slot, c) in replay.candidates().iter().enumerate() {
                let j = c.contract as usize;
                self.bidder(b, replay, &moment.of(j), (t, slot), j);
            }
        }
        if b.spec.score_mode == ScoreMode::All {
            let mut ids = Vec::new();
            for (i, ad) in replay.auctions().iter().take(b.dims.auctions).enumerate() {
                let at = t * b.dims.actor_rows() + b.dims.eligible + i;
                moment.auction(replay.worth(ad), &mut self.actor[at * FEATURES..(at + 1) * FEATURES]);
                ids.clear();
                b.spec.push_ids(day, replay.row(), b.spec.vocabulary.ad(ad.ad_id), &mut ids);
                self.actor_ids[at * b.tables..(at + 1) * b.tables].copy_from_slice(&ids);
            }
        }
    }

    /// Fills slot `slot` of step `t` with contract `j`.
    fn bidder(&mut self, b: &Builder, replay: &Replay, of: &ContractMoment, (t, slot): (usize, usize), j: usize) {
        let day = replay.day;
        let (delivered, observed) = (replay.state.delivered[j], replay.state.observed[j]);
        let state_at = (t * b.dims.contracts + j) * FEATURES;
        let actor_row = t * b.dims.actor_rows() + slot;
        let actor = &mut self.actor[actor_row * FEATURES..(actor_row + 1) * FEATURES];
        if observed == delivered {
            actor.copy_from_slice(&self.states[state_at..state_at + FEATURES]);
        } else {
            of.write(observed, actor);
        }
        let mut ids = Vec::new();
        b.spec.push_ids(day, replay.row(), day.contracts[j].vocabulary, &mut ids);
        self.actor_ids[actor_row * b.tables..(actor_row + 1) * b.tables].copy_from_slice(&ids);
        let left = replay.episode.left[j] - delivered;
        let ahead = (b.per_step as f32).min(left.max(1.0));
        let at = t * b.dims.eligible + slot;
        of.write(delivered + ahead, &mut self.after[at * FEATURES..(at + 1) * FEATURES]);
        self.after_ads[at] = day.contracts[j].vocabulary;
        self.bidders[at] = Some(Bidder {
            contract: j as u32,
            lift: lift(&b.spec.policy, &day.pacing, replay, j) as f32,
            ahead,
            after_potential: potential(replay, &b.weights, b.per_step as f64, j, delivered + ahead).0,
        });
    }

    /// The choice on the current request, and what was done.
    fn contest(&mut self, b: &Builder, replay: &mut Replay, t: usize, segment: &Segment, at: usize) {
        let unit = replay.day.unit;
        let from = (self.offers.len(), self.auctions.len());
        for (i, c) in replay.candidates().iter().enumerate() {
            let j = c.contract as usize;
            self.offers.push(Offer {
                slot: if b.per_step == 1 { i } else { j },
                gain: (replay.gain(i).relative(&b.weights) / unit) as f32,
                unit: LearnedPolicy::unit_owed(replay, &replay.state, j) as f32,
                click: (c.click / unit) as f32,
                boost: c.boost as f32,
            });
        }
        for ad in replay.auctions().iter().take(b.dims.auctions) {
            let worth = replay.worth(ad);
            self.auctions.push(AuctionOffer {
                worth: (worth / unit) as f32,
                gain: (b.weights.auction * (worth - replay.best()) / unit) as f32,
                boost: ad.boost as f32,
            });
        }
        let candidates = replay.candidates().len();
        let shown = candidates + replay.auctions().len().min(b.dims.auctions);
        // Only what no actor wrote names a candidate that is not there.
        let action = Some(segment.actions[at]).filter(|&a| usize::from(a) < shown).unwrap_or(Segment::NOTHING);
        let (choice, contract) = match action {
            Segment::NOTHING => (Choice::Nothing, None),
            a if usize::from(a) < candidates => {
                (Choice::Contract(a.into()), Some(replay.candidates()[usize::from(a)].contract as usize))
            }
            a => (Choice::Auction(usize::from(a) - candidates), None),
        };
        let reward = (replay.show(choice).relative(&b.weights) / unit) as f32;
        match contract {
            Some(j) => self.rewards[t * b.dims.contracts + j] += reward,
            None => self.auction_rewards[t] += reward,
        }
        self.contests.push(Contest {
            step: t,
            offers: (from.0, self.offers.len()),
            auctions: (from.1, self.auctions.len()),
            shown: (action != Segment::NOTHING).then_some(usize::from(action)),
            behaviour: segment.probabilities.get(at).copied(),
        });
    }
}
