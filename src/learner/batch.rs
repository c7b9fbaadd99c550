//! From compact segments to the rows that the networks see: each segment is replayed with the environment's own code.

use crate::env::{Candidate, Choice, DayModel, Episode, FEATURES, Moment, Replay, Segment, Weights};
use crate::policy::{LearnedPolicy, PolicySpec};
use crate::settings::{ScoreMode, Settings};

use super::dims::Dims;

/// What the losses need of a contract that could be shown. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Index into the day's contracts.
    pub contract: u32,
    /// Relative reward of showing it.
    pub gain: f32,
    /// What its critic's output is multiplied by after the display.
    pub after_potential: f32,
    /// How much of the next impression is observed as owed.
    pub unit: f32,
    /// The pacing controller's part of its logit.
    pub pacing: f32,
    /// Worth of the predicted click.
    pub click: f32,
    pub boost: f32,
}

/// What the losses need of an auction ad that could be shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AuctionOffer {
    pub worth: f32,
    pub gain: f32,
    pub boost: f32,
}

/// What was done at a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Step {
    /// Slot of the action: contracts first, then auctions from `Dims::eligible` on; `None` if nothing was shown.
    pub slot: Option<usize>,
    /// Contract shown.
    pub shown: Option<usize>,
    /// Relative reward.
    pub reward: f32,
    /// Probability with which the actor chose it.
    pub behaviour: f32,
}

/// A segment as rows. `T` steps, `N` contracts, `K` eligible, `A` auctions; unused rows are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentRows {
    pub day: usize,
    /// Whether the controller takes part in the bids.
    pub pacing: bool,
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
    /// `[T, K, FEATURES]` with one more delivered.
    pub after: Vec<f32>,
    pub after_ads: Vec<u32>,
    /// `[T, N]`: what the critic's output is multiplied by, and the scale of its loss; 0 = nothing to learn.
    pub potential: Vec<f32>,
    pub scale: Vec<f32>,
    /// `[N]`; all 0 where the episode ended.
    pub last_potential: Vec<f32>,
    /// `[T, K]`.
    pub offers: Vec<Option<Offer>>,
    /// `[T, A]`.
    pub auctions: Vec<Option<AuctionOffer>>,
    /// `[T]`.
    pub steps: Vec<Step>,
}

/// Potential value of contract `j` with `delivered` counted, and the scale of its loss, in money units.
///
/// The potential is what its remaining impressions could earn at most; the scale grows with the root of the demand that
/// remains, as the noise of the return does.
fn potential(replay: &Replay, w: &Weights, j: usize, delivered: f32) -> (f32, f32) {
    let c = &replay.day.contracts[j];
    if replay.offset() >= c.end {
        return (0.0, 0.0);
    }
    let owed = f64::from((replay.episode.owed[j] - delivered).max(0.0));
    let left = f64::from((replay.episode.left[j] - delivered).max(0.0));
    let (penalty, click) = (w.delivery * c.penalty, w.click * c.mean_click);
    let potential = penalty * owed + click * left;
    let stake = if owed > 0.0 { penalty + click } else { click };
    ((potential / replay.day.unit) as f32, (stake * (0.5 + left.sqrt()) / replay.day.unit) as f32)
}

impl SegmentRows {
    /// Replays a segment.
    pub fn build(days: &[DayModel], segment: &Segment, spec: &PolicySpec, settings: &Settings, dims: &Dims) -> Self {
        let day = &days[segment.day as usize];
        let w = Weights::from(&settings.reward);
        let warm = spec.policy.warm_start;
        let episode = Episode::draw(day, &settings.episodes, segment.episode);
        let mut replay = Replay::resume(day, episode, settings.env.feedback_delay_s, segment.start.clone());
        let Dims { steps, contracts: n, eligible: k, auctions: a, .. } = *dims;
        let actor_rows = dims.actor_rows();
        let tables = spec.actor_shape().tables.len();
        let mut rows = Self {
            day: segment.day as usize,
            pacing: spec.policy.pacing,
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
            offers: vec![None; steps * k],
            auctions: vec![None; steps * a],
            steps: vec![Step::default(); steps],
        };
        let mut ids = Vec::new();
        for (t, &row) in segment.rows.iter().enumerate() {
            replay.arrive(row as usize);
            let moment = Moment::new(&replay, warm);
            for j in 0..day.contracts.len() {
                let at = t * n + j;
                let delivered = replay.state.delivered[j];
                let out = &mut rows.states[at * FEATURES..(at + 1) * FEATURES];
                moment.contract(j, delivered, out);
                rows.state_ads[at] = day.contracts[j].vocabulary;
                (rows.potential[at], rows.scale[at]) = potential(&replay, &w, j, delivered);
            }
            for (slot, c) in replay.candidates().iter().enumerate() {
                rows.offer(&replay, &moment, &w, (t, slot), c, dims);
                let at = t * actor_rows + slot;
                ids.clear();
                spec.push_ids(day, row as usize, day.contracts[c.contract as usize].vocabulary, &mut ids);
                rows.actor_ids[at * tables..(at + 1) * tables].copy_from_slice(&ids);
            }
            for (i, ad) in replay.auctions().iter().take(a).enumerate() {
                let worth = replay.worth(ad);
                rows.auctions[t * a + i] = Some(AuctionOffer {
                    worth: (worth / day.unit) as f32,
                    gain: (w.auction * (worth - replay.best()) / day.unit) as f32,
                    boost: ad.boost as f32,
                });
                if spec.score_mode == ScoreMode::All {
                    let at = t * actor_rows + k + i;
                    moment.auction(worth, &mut rows.actor[at * FEATURES..(at + 1) * FEATURES]);
                    ids.clear();
                    spec.push_ids(day, row as usize, spec.vocabulary.ad(ad.ad_id), &mut ids);
                    rows.actor_ids[at * tables..(at + 1) * tables].copy_from_slice(&ids);
                }
            }
            rows.steps[t] = step(&mut replay, segment, t, &w, k);
        }
        if let Some(row) = segment.next {
            replay.arrive(row as usize);
            let moment = Moment::new(&replay, warm);
            for j in 0..day.contracts.len() {
                let delivered = replay.state.delivered[j];
                let out = &mut rows.last[j * FEATURES..(j + 1) * FEATURES];
                moment.contract(j, delivered, out);
                rows.last_ads[j] = day.contracts[j].vocabulary;
                rows.last_potential[j] = potential(&replay, &w, j, delivered).0;
            }
        }
        rows
    }

    /// Fills slot `slot` of step `t` with contract candidate `c`.
    fn offer(
        &mut self,
        replay: &Replay,
        moment: &Moment,
        w: &Weights,
        (t, slot): (usize, usize),
        c: &Candidate,
        dims: &Dims,
    ) {
        let day = replay.day;
        let j = c.contract as usize;
        let (delivered, observed) = (replay.state.delivered[j], replay.state.observed[j]);
        let state_at = (t * dims.contracts + j) * FEATURES;
        let actor_at = (t * dims.actor_rows() + slot) * FEATURES;
        let actor = &mut self.actor[actor_at..actor_at + FEATURES];
        if observed == delivered {
            actor.copy_from_slice(&self.states[state_at..state_at + FEATURES]);
        } else {
            moment.contract(j, observed, actor);
        }
        let at = t * dims.eligible + slot;
        let after = &mut self.after[at * FEATURES..(at + 1) * FEATURES];
        moment.contract(j, delivered + 1.0, after);
        self.after_ads[at] = day.contracts[j].vocabulary;
        self.offers[at] = Some(Offer {
            contract: c.contract,
            gain: (replay.gain(slot).relative(w) / day.unit) as f32,
            after_potential: potential(replay, w, j, delivered + 1.0).0,
            unit: LearnedPolicy::unit_owed(replay, &replay.state, j) as f32,
            pacing: if self.pacing {
                replay.state.pacing(day, &replay.episode, j, replay.offset()) as f32
            } else {
                0.0
            },
            click: (c.click / day.unit) as f32,
            boost: c.boost as f32,
        });
    }
}

/// Repeats the recorded action of step `t`.
fn step(replay: &mut Replay, segment: &Segment, t: usize, w: &Weights, eligible: usize) -> Step {
    let action = segment.actions[t];
    let candidates = replay.candidates().len();
    let (choice, slot) = match action {
        Segment::NOTHING => (Choice::Nothing, None),
        a if (a as usize) < candidates => (Choice::Contract(a as usize), Some(a as usize)),
        a => (Choice::Auction(a as usize - candidates), Some(eligible + a as usize - candidates)),
    };
    let shown = match choice {
        Choice::Contract(i) => Some(replay.candidates()[i].contract as usize),
        _ => None,
    };
    let reward = (replay.show(choice).relative(w) / replay.day.unit) as f32;
    Step { slot, shown, reward, behaviour: segment.probabilities[t] }
}
