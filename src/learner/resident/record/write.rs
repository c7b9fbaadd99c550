//! Writes a replay to a record.

use std::ops::Range;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::env::{Moment, Replay, Segment, Terms, Visit, Weights};
use crate::policy::{Bids, PolicySpec};

use super::super::super::batch::{Decided, Rebuild, Witness, auction_offer, loss_scale, offer, replay, slot};
use super::super::super::dims::Dims;
use super::{
    AuctionRecord, Counts, CourseRecord, OfferRecord, Record, RequestRecord, StepRecord, TRAFFIC, TermsRecord,
};

impl Record {
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
        let spring = with.settings.anchor() as f32 * counts.requests as f32 / bidders.max(1) as f32;
        out[self.spring.start] = spring;
        cast_slice_mut::<_, StepRecord>(&mut out[self.steps.clone()])[segment.len() - 1].ends = 1.0;
        counts
    }
}

/// Witness that writes a record.
struct Writer<'a> {
    of: &'a Record,
    out: &'a mut [f32],
    bids: &'a Bids,
    spec: &'a PolicySpec,
    weights: Weights,
    counts: Counts,
    bidders: usize,
    /// Number of requests so far.
    request: usize,
}

impl Writer<'_> {
    fn part<T: Pod>(&mut self, part: &Range<usize>) -> &mut [T] {
        cast_slice_mut(&mut self.out[part.clone()])
    }

    fn terms(&mut self, replay: &Replay) {
        let (day, episode) = (&*replay.day, &replay.episode);
        let Weights { click, delivery, .. } = self.weights;
        let (of, bids) = (self.of, self.bids);
        let all = Terms::all(day, episode, self.spec.policy.warm_start);
        for (j, (terms, to)) in all.iter().zip(self.part::<TermsRecord>(&of.terms)).enumerate() {
            let c = &day.contracts[j];
            let (start, low, high) = bids.terms(j);
            *to = TermsRecord {
                there: 1.0,
                owed: episode.owed[j] as f32,
                left: episode.left[j] as f32,
                market_gain: terms.market_gain as f32,
                features: terms.features,
                start: (start + f64::from(episode.start_error[j])) as f32,
                low: (low / day.unit) as f32,
                high: (high / day.unit) as f32,
                averted: (delivery * c.penalty / day.unit) as f32,
                click: (click * c.mean_click / day.unit) as f32,
                ad: c.vocabulary as f32,
            };
        }
    }

    /// Writes step `t`, or the request after the last one.
    fn moment(&mut self, replay: &Replay, t: usize) {
        if t == 0 {
            self.terms(replay);
        }
        let moment = Moment::new(replay);
        let (of, contracts) = (self.of, replay.day.contracts.len());
        let g = *moment.general();
        self.part::<StepRecord>(&of.steps)[t] =
            StepRecord { volume_ratio: g.volume_ratio as f32, features: g.features, ends: 0.0, auction_reward: 0.0 };
        let to = &mut self.part::<CourseRecord>(&of.courses)[t * of.dims.contracts..][..contracts];
        for (j, to) in to.iter_mut().enumerate() {
            let course = moment.course(j);
            *to = CourseRecord {
                delivered: replay.state.delivered[j] as f32,
                observed: replay.state.observed[j] as f32,
                planned: course.planned as f32,
                supply_left: course.supply_left as f32,
                speed: course.speed as f32,
                controller: course.controller as f32,
                market: course.market as f32,
                day_market: course.day_market as f32,
                replanned: course.replanned,
                features: course.features,
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
        let learns = |(terms, course): &(&TermsRecord, &CourseRecord)| {
            let remain = (terms.owed - course.delivered, terms.left - course.delivered);
            let scale = loss_scale((terms.averted.into(), terms.click.into()), remain, 1.0);
            course.features.flight_state < 1.0 && scale > 0.0
        };
        self.counts.pairs += terms.iter().zip(courses).filter(learns).count();
        if of.requests == 1 {
            for (to, c) in self.part::<f32>(&of.bidders)[t * k..].iter_mut().zip(replay.candidates()) {
                *to = (c.contract + 1) as f32;
            }
            self.bidders += replay.candidates().len();
        } else {
            self.bidders += terms.iter().zip(courses).filter(|(terms, course)| terms.bids(course)).count();
        }
        if of.traffic {
            let &Visit { place: [slot, region], gender, age, .. } = replay.visit();
            let ids = [slot, region, gender.into(), age.into()];
            self.part::<f32>(&of.kinds)[t * TRAFFIC..][..TRAFFIC].copy_from_slice(&ids.map(f32::from));
        }
    }

    fn request(&mut self, replay: &Replay, _: usize, decided: Decided) {
        let (of, weights, request) = (self.of, self.weights, self.request);
        let Dims { eligible: k, offers: q, auctions: a, .. } = of.dims;
        self.request += 1;
        let candidates = replay.candidates().len();
        let policy = &self.spec.policy;
        for (i, to) in self.part::<OfferRecord>(&of.offers)[request * q..][..candidates].iter_mut().enumerate() {
            let o = offer(replay, policy, &weights, of.requests, i);
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
