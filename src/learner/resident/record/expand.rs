//! From a record to a row of the pool, as the device does it.

use std::ops::Range;

use bytemuck::cast_slice;

use crate::env::{ContractMoment, Course, FEATURES, General};

use super::super::super::batch::ahead;
use super::super::super::dims::Dims;
use super::super::layout::{ABSENT, Layout};
use super::{AuctionRecord, CourseRecord, OfferRecord, Record, RequestRecord, StepRecord, TRAFFIC, TermsRecord};

impl Record {
    /// The row of the pool that a record stands for, into zeros.
    pub fn expand(&self, record: &[f32], layout: &Layout, out: &mut [f32]) {
        out[layout.boost.clone()].fill(ABSENT);
        out[layout.auction_boost.clone()].fill(ABSENT);
        let from = Parts::of(self, record);
        for (t, step) in from.steps.iter().enumerate().filter(|(_, step)| step.volume_ratio > 0.0) {
            let general = General::from(*step);
            from.contracts(t, &general, layout, out);
            if t < self.dims.steps {
                out[layout.ends.start + t] = step.ends;
                out[layout.auction_rewards.start + t] = step.auction_reward;
                from.bidders(t, &general, layout, out);
                from.requests(t, &general, layout, out);
            }
        }
    }
}

/// A record, cut.
struct Parts<'a> {
    of: &'a Record,
    spring: f32,
    steps: &'a [StepRecord],
    terms: &'a [TermsRecord],
    courses: &'a [CourseRecord],
    bidders: &'a [f32],
    kinds: &'a [f32],
    offers: &'a [OfferRecord],
    auctions: &'a [AuctionRecord],
    requests: &'a [RequestRecord],
}

impl<'a> Parts<'a> {
    fn of(of: &'a Record, record: &'a [f32]) -> Self {
        Self {
            of,
            spring: record[of.spring.start],
            steps: cast_slice(&record[of.steps.clone()]),
            terms: cast_slice(&record[of.terms.clone()]),
            courses: cast_slice(&record[of.courses.clone()]),
            bidders: &record[of.bidders.clone()],
            kinds: &record[of.kinds.clone()],
            offers: cast_slice(&record[of.offers.clone()]),
            auctions: cast_slice(&record[of.auctions.clone()]),
            requests: cast_slice(&record[of.shown.clone()]),
        }
    }

    fn contract(&self, t: usize, j: usize) -> (&TermsRecord, &CourseRecord) {
        (&self.terms[j], &self.courses[t * self.of.dims.contracts + j])
    }

    fn moment(general: &General, (terms, course): (&TermsRecord, &CourseRecord)) -> ContractMoment {
        ContractMoment::new(general, &(*terms).into(), &(*course).into())
    }

    /// What the critic sees of each contract at step `t`, or behind the last.
    fn contracts(&self, t: usize, general: &General, layout: &Layout, out: &mut [f32]) {
        let Dims { steps, contracts: n, .. } = self.of.dims;
        let mut squares = 0.0;
        for j in (0..n).filter(|j| self.terms[*j].there > 0.0) {
            let (terms, course) = self.contract(t, j);
            let (features, ids, potentials, row) = if t == steps {
                (&layout.last, &layout.last_ids, &layout.last_potential, j)
            } else {
                (&layout.states, &layout.state_ids, &layout.potential, t * n + j)
            };
            let to = &mut out[features.start + row * FEATURES..][..FEATURES];
            Self::moment(general, (terms, course)).write(course.delivered, to);
            if self.of.ads {
                out[ids.start + row] = terms.ad;
            }
            let (potential, scale) = terms.potential(course, course.delivered, self.of.requests as f64);
            out[potentials.start + row] = potential;
            if t < steps {
                out[layout.rewards.start + row] = course.reward;
                squares += scale * scale;
                if !self.of.by_total && potential > 0.0 && scale > 0.0 {
                    out[layout.inverse_scale.start + row] = 1.0 / scale;
                }
            }
        }
        if self.of.by_total && squares > 0.0 {
            out[layout.inverse_scale.start + t] = 1.0 / squares.sqrt();
        }
    }

    /// Who may bid in step `t`, and what follows a display.
    fn bidders(&self, t: usize, general: &General, layout: &Layout, out: &mut [f32]) {
        let (dims, requests) = (self.of.dims, self.of.requests);
        for slot in 0..dims.eligible {
            let at = t * dims.eligible + slot;
            let bidder = if requests == 1 {
                (self.bidders[at] as usize).checked_sub(1)
            } else {
                let (terms, course) = self.contract(t, slot);
                terms.bids(course).then_some(slot)
            };
            let Some(j) = bidder else { continue };
            let (terms, course) = self.contract(t, j);
            let moment = Self::moment(general, (terms, course));
            let row = t * dims.actor_rows() + slot;
            moment.write(course.observed, &mut out[layout.actor.start + row * FEATURES..][..FEATURES]);
            self.ids(t, row, terms.ad, layout, out);
            let ahead = ahead(requests, terms.left - course.delivered);
            let after = course.delivered + ahead;
            moment.write(after, &mut out[layout.after.start + at * FEATURES..][..FEATURES]);
            if self.of.ads {
                out[layout.after_ids.start + at] = terms.ad;
            }
            let pacing = if self.of.pacing { Course::from(*course).pacing(&(*terms).into()) as f32 } else { 0.0 };
            let mut set = |field: &Range<usize>, value: f32| out[field.start + at] = value;
            set(&layout.shift, terms.start + course.replanned + pacing);
            set(&layout.low, terms.low);
            set(&layout.penalty, terms.high);
            set(&layout.inverse_ahead, 1.0 / ahead);
            set(&layout.after_potential, terms.potential(course, after, requests as f64).0);
            set(&layout.spring, self.spring);
            if requests == 1 {
                set(&layout.contract, j as f32);
            }
        }
    }

    /// What the requests of step `t` may show, and what was shown.
    fn requests(&self, t: usize, general: &General, layout: &Layout, out: &mut [f32]) {
        let Dims { eligible: k, offers: q, auctions: a, score_auctions, .. } = self.of.dims;
        let r = self.of.requests;
        if score_auctions {
            let ads = &self.auctions[t * r * a..][..a];
            for (i, ad) in ads.iter().enumerate().filter(|(_, ad)| ad.boost > 0.0) {
                let row = t * self.of.dims.actor_rows() + k + i;
                general.auction(ad.worth, &mut out[layout.actor.start + row * FEATURES..][..FEATURES]);
                self.ids(t, row, ad.ad, layout, out);
            }
        }
        for request in t * r..(t + 1) * r {
            for o in self.offers[request * q..][..q].iter().filter(|o| o.boost > 0.0) {
                let at = request * k + o.slot as usize;
                out[layout.unit.start + at] = o.unit;
                out[layout.click.start + at] = o.click;
                out[layout.gain.start + at] = o.gain;
                out[layout.boost.start + at] = o.boost;
            }
            for (i, o) in self.auctions[request * a..][..a].iter().enumerate().filter(|(_, o)| o.boost > 0.0) {
                let at = request * a + i;
                out[layout.auction_worth.start + at] = o.worth;
                out[layout.auction_gain.start + at] = o.gain;
                out[layout.auction_boost.start + at] = o.boost;
            }
            let RequestRecord { shown, inverse_behaviour } = self.requests[request];
            if shown > 0.0 {
                out[layout.active.start + request] = 1.0;
                if r == 1 {
                    out[layout.shown.start + request * (k + a) + shown as usize - 1] = 1.0;
                    out[layout.inverse_behaviour.start + request] = inverse_behaviour;
                }
            }
        }
    }

    /// Ids of a row of the actor.
    fn ids(&self, t: usize, row: usize, ad: f32, layout: &Layout, out: &mut [f32]) {
        let tables = self.of.tables();
        let ids = &mut out[layout.actor_ids.start + row * tables..][..tables];
        let ads = usize::from(self.of.ads);
        ids[..ads].fill(ad);
        if self.of.traffic {
            ids[ads..].copy_from_slice(&self.kinds[t * TRAFFIC..][..TRAFFIC]);
        }
    }
}
