//! A segment as it is uploaded: what the networks' rows are worked out from, a quarter of their numbers or less.
//!
//! **Why.** Ten million samples a second do not go to a device as rows: that is kilobytes a step, and the logarithms of thirty
//! contracts. The host replays a segment and notes counters and points on curves; what follows from them for one contract at one
//! count ([`ContractMoment`], [`potential`]) is worked out where the pool is. A record that is all zeros is an empty segment.

use std::ops::Range;

use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};

use crate::env::{ContractMoment, Course, FEATURES, General, Moment, Replay, Segment, Terms, Weights};
use crate::policy::{Bids, PolicySpec};
use crate::settings::{Credit, Settings};

use super::super::batch::{Decided, Rebuild, Witness, ahead, auction_offer, offer, potential, replay, slot};
use super::super::dims::Dims;
use super::layout::{ABSENT, Layout};

/// Ids of a request, for the actor's tables of traffic.
pub const TRAFFIC: usize = 4;

/// A step, or the request after the last one; there if `volume_ratio` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct StepRecord {
    pub volume_ratio: f32,
    pub traffic: f32,
    pub price: f32,
    pub volume: f32,
    pub shortage: f32,
    pub pressure: f32,
    pub remaining_price: f32,
    pub auction_worth: f32,
    pub contract_ctr: f32,
    pub auction_ctr: f32,
    /// 1 at the last step.
    pub ends: f32,
    pub auction_reward: f32,
}

/// A contract of the segment's day. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct TermsRecord {
    /// 1; days may have fewer contracts than there is room for.
    pub there: f32,
    pub owed: f32,
    pub left: f32,
    pub market_gain: f32,
    pub cap_slack: f32,
    pub penalty: f32,
    pub worth: f32,
    pub theta: f32,
    pub rate: f32,
    pub price: f32,
    /// Of the bid: where its logit starts, the lowest and the highest.
    pub start: f32,
    pub low: f32,
    pub high: f32,
    /// What an impression earns by the penalty averted and by its click.
    pub averted: f32,
    pub click: f32,
    pub ad: f32,
}

/// A contract at a step.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CourseRecord {
    pub delivered: f32,
    pub observed: f32,
    pub planned: f32,
    pub supply_left: f32,
    pub speed: f32,
    pub flight_state: f32,
    pub flight: f32,
    pub controller: f32,
    pub market: f32,
    pub day_market: f32,
    pub replanned: f32,
    /// What its displays in the step earned.
    pub reward: f32,
}

/// A contract that a request may show; there if `boost` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct OfferRecord {
    pub slot: f32,
    pub unit: f32,
    pub click: f32,
    pub gain: f32,
    pub boost: f32,
}

/// An auction ad that a request may show; there if `boost` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AuctionRecord {
    pub worth: f32,
    pub gain: f32,
    pub boost: f32,
    pub ad: f32,
}

/// What was shown on a request: one more than its slot, or 0; and one over its probability, where returns are corrected for it.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RequestRecord {
    pub shown: f32,
    pub inverse_behaviour: f32,
}

const fn numbers<T>() -> usize {
    size_of::<T>() / size_of::<f32>()
}

/// Where each part of a record lies. `T` steps, `N` contracts, `K` bidders, `R` requests in a step, `Q` offers of a request, `A` auction ads.
#[derive(Debug, Clone)]
pub struct Record {
    pub dims: Dims,
    pub requests: usize,
    pub by_total: bool,
    /// Whether bids go by the controller's term.
    pub pacing: bool,
    /// Whether the critic, and the actor, have a table of ads; whether the actor has tables of traffic.
    pub critic_ads: bool,
    pub actor_ads: bool,
    pub traffic: bool,
    /// Length of a record.
    pub width: usize,
    /// `[1]`: the anchor's pull beside a request's weight.
    pub spring: Range<usize>,
    /// `[T + 1]` of [`StepRecord`].
    pub steps: Range<usize>,
    /// `[N]` of [`TermsRecord`].
    pub terms: Range<usize>,
    /// `[T + 1, N]` of [`CourseRecord`].
    pub courses: Range<usize>,
    /// `[T, K]`, where a step is one request: one more than the contract of each bidder.
    pub bidders: Range<usize>,
    /// `[T, TRAFFIC]`
    pub kinds: Range<usize>,
    /// `[T, R, Q]` of [`OfferRecord`].
    pub offers: Range<usize>,
    /// `[T, R, A]` of [`AuctionRecord`].
    pub auctions: Range<usize>,
    /// `[T, R]` of [`RequestRecord`].
    pub shown: Range<usize>,
}

/// What a segment adds to the denominators of the losses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub pairs: usize,
    pub requests: usize,
}

impl Record {
    pub fn new(dims: Dims, spec: &PolicySpec, settings: &Settings) -> Self {
        let Dims { steps: t, contracts: n, eligible: k, offers: q, auctions: a, .. } = dims;
        let requests = settings.requests_per_step();
        let traffic = spec.policy.traffic_embedding > 0;
        let mut width = 0;
        let mut part = |len: usize| {
            width += len;
            width - len..width
        };
        let mut record = Self {
            spring: part(1),
            steps: part((t + 1) * numbers::<StepRecord>()),
            terms: part(n * numbers::<TermsRecord>()),
            courses: part((t + 1) * n * numbers::<CourseRecord>()),
            bidders: part(if requests == 1 { t * k } else { 0 }),
            kinds: part(if traffic { t * TRAFFIC } else { 0 }),
            offers: part(t * requests * q * numbers::<OfferRecord>()),
            auctions: part(t * requests * a * numbers::<AuctionRecord>()),
            shown: part(t * requests * numbers::<RequestRecord>()),
            width: 0,
            dims,
            requests,
            by_total: settings.learner.credit == Credit::Total,
            pacing: spec.policy.pacing,
            critic_ads: spec.policy.ad_embedding > 0,
            actor_ads: spec.policy.ad_embedding > 0,
            traffic,
        };
        record.width = width;
        record
    }

    /// Replays a segment into a record of zeros. `bids` are those of its day.
    pub fn write(&self, segment: &Segment, with: Rebuild, bids: &Bids, out: &mut [f32]) -> Counts {
        let mut writer = Writer {
            of: self,
            out,
            bids,
            spec: with.spec,
            weights: Weights::from(&with.settings.reward),
            counts: Counts { pairs: 0, requests: segment.rows.len() },
            bidders: 0,
            request: 0,
        };
        replay(segment, with, &mut writer);
        let Writer { counts, bidders, .. } = writer;
        let spring = with.settings.learner.anchor as f32 * counts.requests as f32 / bidders.max(1) as f32;
        out[self.spring.start] = spring;
        cast_slice_mut::<_, StepRecord>(&mut out[self.steps.clone()])[segment.len() - 1].ends = 1.0;
        counts
    }

    /// The row of the pool that a record stands for, into zeros.
    pub fn expand(&self, record: &[f32], layout: &Layout, out: &mut [f32]) {
        let Dims { steps: t, contracts: n, eligible: k, offers: q, auctions: a, .. } = self.dims;
        let r = self.requests;
        let steps: &[StepRecord] = cast_slice(&record[self.steps.clone()]);
        let terms: &[TermsRecord] = cast_slice(&record[self.terms.clone()]);
        let courses: &[CourseRecord] = cast_slice(&record[self.courses.clone()]);
        let offers: &[OfferRecord] = cast_slice(&record[self.offers.clone()]);
        let auctions: &[AuctionRecord] = cast_slice(&record[self.auctions.clone()]);
        let requests: &[RequestRecord] = cast_slice(&record[self.shown.clone()]);
        let (bidders, kinds) = (&record[self.bidders.clone()], &record[self.kinds.clone()]);
        let per_step = r as f64;
        out[layout.boost.clone()].fill(ABSENT);
        out[layout.auction_boost.clone()].fill(ABSENT);
        for (at, step) in steps.iter().enumerate().filter(|(_, step)| step.volume_ratio > 0.0) {
            let (general, last) = (General::from(*step), at == t);
            let mut squares = 0.0;
            for (j, (terms, course)) in
                terms.iter().zip(&courses[at * n..]).enumerate().filter(|(_, (t, _))| t.there > 0.0)
            {
                let moment = ContractMoment::new(&general, &(*terms).into(), &(*course).into());
                let pair = at * n + j;
                let (features, ids, row) = match last {
                    true => (&layout.last, &layout.last_ids, j),
                    false => (&layout.states, &layout.state_ids, pair),
                };
                moment.write(course.delivered, &mut out[features.start + row * FEATURES..][..FEATURES]);
                if self.critic_ads {
                    out[ids.start + row] = terms.ad;
                }
                let (potential, scale) = terms.potential(course, course.delivered, per_step);
                if last {
                    out[layout.last_potential.start + j] = potential;
                    continue;
                }
                out[layout.potential.start + pair] = potential;
                out[layout.rewards.start + pair] = course.reward;
                squares += scale * scale;
                if !self.by_total && potential > 0.0 && scale > 0.0 {
                    out[layout.inverse_scale.start + pair] = 1.0 / scale;
                }
            }
            if last {
                continue;
            }
            if self.by_total && squares > 0.0 {
                out[layout.inverse_scale.start + at] = 1.0 / squares.sqrt();
            }
            out[layout.ends.start + at] = step.ends;
            out[layout.auction_rewards.start + at] = step.auction_reward;
            let tables = self.tables();
            let set_ids = |out: &mut [f32], row: usize, ad: f32| {
                let ids = &mut out[layout.actor_ids.start + row * tables..][..tables];
                let traffic = if self.actor_ads {
                    ids[0] = ad;
                    1
                } else {
                    0
                };
                if self.traffic {
                    ids[traffic..].copy_from_slice(&kinds[at * TRAFFIC..][..TRAFFIC]);
                }
            };
            for slot in 0..k {
                let Some(j) = self.bidder(bidders, &courses[at * n..], terms, at * k + slot, slot) else { continue };
                let (terms, course) = (&terms[j], &courses[at * n + j]);
                let moment = ContractMoment::new(&general, &(*terms).into(), &(*course).into());
                let row = at * self.dims.actor_rows() + slot;
                moment.write(course.observed, &mut out[layout.actor.start + row * FEATURES..][..FEATURES]);
                set_ids(out, row, terms.ad);
                let ahead = ahead(r, terms.left - course.delivered);
                let after = at * k + slot;
                moment.write(course.delivered + ahead, &mut out[layout.after.start + after * FEATURES..][..FEATURES]);
                if self.critic_ads {
                    out[layout.after_ids.start + after] = terms.ad;
                }
                let pacing = if self.pacing { Course::from(*course).pacing(&(*terms).into()) as f32 } else { 0.0 };
                let mut set = |field: &Range<usize>, value: f32| out[field.start + after] = value;
                set(&layout.shift, terms.start + course.replanned + pacing);
                set(&layout.low, terms.low);
                set(&layout.penalty, terms.high);
                set(&layout.inverse_ahead, 1.0 / ahead);
                set(&layout.after_potential, terms.potential(course, course.delivered + ahead, per_step).0);
                set(&layout.spring, record[self.spring.start]);
                if r == 1 {
                    set(&layout.contract, j as f32);
                }
            }
            if self.dims.score_auctions {
                for (i, ad) in auctions[at * r * a..][..a].iter().enumerate().filter(|(_, ad)| ad.boost > 0.0) {
                    let row = at * self.dims.actor_rows() + k + i;
                    general.auction(ad.worth, &mut out[layout.actor.start + row * FEATURES..][..FEATURES]);
                    set_ids(out, row, ad.ad);
                }
            }
            for request in at * r..(at + 1) * r {
                for o in offers[request * q..][..q].iter().filter(|o| o.boost > 0.0) {
                    let at = request * k + o.slot as usize;
                    out[layout.unit.start + at] = o.unit;
                    out[layout.click.start + at] = o.click;
                    out[layout.gain.start + at] = o.gain;
                    out[layout.boost.start + at] = o.boost;
                }
                for (i, o) in auctions[request * a..][..a].iter().enumerate().filter(|(_, o)| o.boost > 0.0) {
                    let at = request * a + i;
                    out[layout.auction_worth.start + at] = o.worth;
                    out[layout.auction_gain.start + at] = o.gain;
                    out[layout.auction_boost.start + at] = o.boost;
                }
                let RequestRecord { shown, inverse_behaviour } = requests[request];
                if shown > 0.0 {
                    out[layout.active.start + request] = 1.0;
                    if r == 1 {
                        out[layout.shown.start + request * (k + a) + shown as usize - 1] = 1.0;
                        out[layout.inverse_behaviour.start + request] = inverse_behaviour;
                    }
                }
            }
        }
    }

    /// Tables of the actor.
    pub fn tables(&self) -> usize {
        usize::from(self.actor_ads) + if self.traffic { TRAFFIC } else { 0 }
    }

    /// The contract that bids in a slot of a step, whose `courses` these are.
    fn bidder(
        &self,
        bidders: &[f32],
        courses: &[CourseRecord],
        terms: &[TermsRecord],
        at: usize,
        slot: usize,
    ) -> Option<usize> {
        if self.requests == 1 {
            return (bidders[at] as usize).checked_sub(1);
        }
        let (terms, course) = (&terms[slot], &courses[slot]);
        (terms.there > 0.0 && course.flight_state < 1.0 && course.delivered < terms.left).then_some(slot)
    }
}

impl TermsRecord {
    /// [`potential`] with `delivered` counted; 0 once the flight is over.
    fn potential(&self, course: &CourseRecord, delivered: f32, per_step: f64) -> (f32, f32) {
        if course.flight_state > 0.0 {
            return (0.0, 0.0);
        }
        let money = (f64::from(self.averted), f64::from(self.click));
        let (potential, scale) = potential(money, (self.owed - delivered, self.left - delivered), per_step);
        (potential as f32, scale as f32)
    }
}

impl From<StepRecord> for General {
    fn from(step: StepRecord) -> Self {
        Self {
            volume_ratio: step.volume_ratio.into(),
            traffic: step.traffic,
            price: step.price,
            volume: step.volume,
            shortage: step.shortage,
            pressure: step.pressure,
            remaining_price: step.remaining_price,
            auction_worth: step.auction_worth,
            contract_ctr: step.contract_ctr,
            auction_ctr: step.auction_ctr,
        }
    }
}

impl From<TermsRecord> for Terms {
    fn from(terms: TermsRecord) -> Self {
        Self {
            owed: terms.owed.into(),
            market_gain: terms.market_gain.into(),
            cap_slack: terms.cap_slack,
            penalty: terms.penalty,
            worth: terms.worth,
            theta: terms.theta,
            rate: terms.rate,
            price: terms.price,
        }
    }
}

impl From<CourseRecord> for Course {
    fn from(course: CourseRecord) -> Self {
        Self {
            planned: course.planned.into(),
            supply_left: course.supply_left.into(),
            speed: course.speed.into(),
            flight_state: course.flight_state,
            flight: course.flight.into(),
            controller: course.controller.into(),
            market: course.market.into(),
            day_market: course.day_market.into(),
            replanned: course.replanned,
        }
    }
}

/// Notes what a replay goes through.
struct Writer<'a> {
    of: &'a Record,
    out: &'a mut [f32],
    bids: &'a Bids,
    spec: &'a PolicySpec,
    weights: Weights,
    counts: Counts,
    bidders: usize,
    /// Requests so far.
    request: usize,
}

impl Writer<'_> {
    fn part<T: Pod>(&mut self, part: &Range<usize>) -> &mut [T] {
        cast_slice_mut(&mut self.out[part.clone()])
    }

    fn terms(&mut self, replay: &Replay) {
        let (day, episode) = (replay.day, &replay.episode);
        let Weights { click, delivery, .. } = self.weights;
        let (of, bids) = (self.of, self.bids);
        let all = Terms::all(day, episode, self.spec.policy.warm_start);
        for (j, (terms, to)) in all.iter().zip(self.part::<TermsRecord>(&of.terms)).enumerate() {
            let c = &day.contracts[j];
            let (start, low, high) = bids.terms(j);
            *to = TermsRecord {
                there: 1.0,
                owed: episode.owed[j],
                left: episode.left[j],
                market_gain: terms.market_gain as f32,
                cap_slack: terms.cap_slack,
                penalty: terms.penalty,
                worth: terms.worth,
                theta: terms.theta,
                rate: terms.rate,
                price: terms.price,
                start: (start + f64::from(episode.start_error[j])) as f32,
                low: (low / day.unit) as f32,
                high: (high / day.unit) as f32,
                averted: (delivery * c.penalty / day.unit) as f32,
                click: (click * c.mean_click / day.unit) as f32,
                ad: c.vocabulary as f32,
            };
        }
    }

    /// Step `t`, or the request after the last one.
    fn moment(&mut self, replay: &Replay, t: usize) {
        if t == 0 {
            self.terms(replay);
        }
        let moment = Moment::new(replay);
        let (of, contracts) = (self.of, replay.day.contracts.len());
        let g = *moment.general();
        self.part::<StepRecord>(&of.steps)[t] = StepRecord {
            volume_ratio: g.volume_ratio as f32,
            traffic: g.traffic,
            price: g.price,
            volume: g.volume,
            shortage: g.shortage,
            pressure: g.pressure,
            remaining_price: g.remaining_price,
            auction_worth: g.auction_worth,
            contract_ctr: g.contract_ctr,
            auction_ctr: g.auction_ctr,
            ends: 0.0,
            auction_reward: 0.0,
        };
        let to = &mut self.part::<CourseRecord>(&of.courses)[t * of.dims.contracts..][..contracts];
        for (j, to) in to.iter_mut().enumerate() {
            let course = moment.course(j);
            *to = CourseRecord {
                delivered: replay.state.delivered[j],
                observed: replay.state.observed[j],
                planned: course.planned as f32,
                supply_left: course.supply_left as f32,
                speed: course.speed as f32,
                flight_state: course.flight_state,
                flight: course.flight as f32,
                controller: course.controller as f32,
                market: course.market as f32,
                day_market: course.day_market as f32,
                replanned: course.replanned,
                reward: 0.0,
            };
        }
    }
}

impl Witness for Writer<'_> {
    fn step(&mut self, replay: &Replay, t: usize) {
        self.moment(replay, t);
        let (of, k) = (self.of, self.of.dims.eligible);
        let terms: &[TermsRecord] = cast_slice(&self.out[of.terms.clone()]);
        let courses: &[CourseRecord] = cast_slice(&self.out[of.courses.clone()]);
        let courses = &courses[t * of.dims.contracts..];
        // What flies and has something to earn.
        let learns =
            |(t, c): &(&TermsRecord, &CourseRecord)| c.flight_state < 1.0 && t.potential(c, c.delivered, 1.0).1 > 0.0;
        self.counts.pairs += terms.iter().zip(courses).filter(learns).count();
        if of.requests == 1 {
            for (to, c) in self.part::<f32>(&of.bidders)[t * k..].iter_mut().zip(replay.candidates()) {
                *to = (c.contract + 1) as f32;
            }
            self.bidders += replay.candidates().len();
        } else {
            let bids = (0..k).filter(|slot| of.bidder(&[], courses, terms, 0, *slot).is_some());
            self.bidders += bids.count();
        }
        if of.traffic {
            let (day, row) = (replay.day, replay.row());
            let request = replay.request();
            let ids = [day.slot_index[row], day.region_index[row], request.gender.into(), request.age.into()];
            self.part::<f32>(&of.kinds)[t * TRAFFIC..][..TRAFFIC].copy_from_slice(&ids.map(f32::from));
        }
    }

    fn request(&mut self, replay: &Replay, _: usize, decided: Decided) {
        let (of, weights, request) = (self.of, self.weights, self.request);
        let Dims { eligible: k, offers: q, auctions: a, .. } = of.dims;
        self.request += 1;
        let candidates = replay.candidates().len();
        for (i, to) in self.part::<OfferRecord>(&of.offers)[request * q..][..candidates].iter_mut().enumerate() {
            let o = offer(replay, &weights, of.requests, i);
            *to = OfferRecord { slot: o.slot as f32, unit: o.unit, click: o.click, gain: o.gain, boost: o.boost };
        }
        let (scored, vocabulary) = (of.dims.score_auctions, &self.spec.vocabulary);
        let ads = cast_slice_mut::<_, AuctionRecord>(&mut self.out[of.auctions.clone()])[request * a..][..a].iter_mut();
        for (to, ad) in ads.zip(replay.auctions()) {
            let o = auction_offer(replay, &weights, ad);
            let ad = if scored { vocabulary.ad(ad.ad_id) as f32 } else { 0.0 };
            *to = AuctionRecord { worth: o.worth, gain: o.gain, boost: o.boost, ad };
        }
        let Some(shown) = decided.shown else { return };
        let shown = if shown < candidates { slot(replay, of.requests, shown) } else { k + shown - candidates };
        let inverse = decided.behaviour.map_or(0.0, |p| 1.0 / p.max(1e-6));
        self.part::<RequestRecord>(&of.shown)[request] =
            RequestRecord { shown: (shown + 1) as f32, inverse_behaviour: inverse };
    }

    fn earned(&mut self, t: usize, contract: Option<usize>, reward: f32) {
        let of = self.of;
        match contract {
            Some(j) => self.part::<CourseRecord>(&of.courses)[t * of.dims.contracts + j].reward += reward,
            None => self.part::<StepRecord>(&of.steps)[t].auction_reward += reward,
        }
    }

    fn last(&mut self, replay: &Replay) {
        self.moment(replay, self.of.dims.steps);
    }
}
