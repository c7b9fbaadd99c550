//! A segment as it is uploaded: the inputs of the networks' rows, with a quarter of their numbers.
//!
//! **Why.** Ten million samples a second cannot be uploaded as rows: a step takes kilobytes, and the logarithms of thirty
//! contracts. The host replays a segment and records counters and points on curves ([`write`]); the device computes the
//! features of each contract and count from them. A record of zeros is an empty segment.

mod write;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::env::{CourseFeatures, GeneralFeatures, TermsFeatures};
use crate::formulas::shared::may_bid;
use crate::policy::PolicySpec;
use crate::settings::{Credit, Settings};

use super::super::dims::Dims;

/// Number of ids of a request, for the actor's traffic tables.
pub const TRAFFIC: usize = 4;

/// A step, or the request after the last one; present if `volume_ratio` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct StepRecord {
    pub volume_ratio: f32,
    pub features: GeneralFeatures,
    /// 1 at the last step.
    pub ends: f32,
    pub auction_reward: f32,
}

/// A contract of the segment's day. Money in units of the mean best auction worth.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct TermsRecord {
    /// 1 if present; days may have fewer contracts than there is room for.
    pub there: f32,
    pub owed: f32,
    pub left: f32,
    pub market_gain: f32,
    pub features: TermsFeatures,
    /// Base logit of the bid, lowest bid and highest bid.
    pub start: f32,
    pub low: f32,
    pub high: f32,
    /// Earnings of an impression: penalty averted, and click worth.
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
    pub controller: f32,
    pub market: f32,
    pub day_market: f32,
    pub replanned: f32,
    pub features: CourseFeatures,
    /// Reward of its displays in the step.
    pub reward: f32,
}

/// A contract that a request may show; present if `boost` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct OfferRecord {
    pub slot: f32,
    pub unit: f32,
    pub click: f32,
    pub gain: f32,
    pub boost: f32,
}

/// An auction ad that a request may show; present if `boost` is above 0.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AuctionRecord {
    pub worth: f32,
    pub gain: f32,
    pub boost: f32,
    pub ad: f32,
}

/// Action on a request: index of the slot plus 1, or 0; and the inverse of its probability, if returns are corrected for it.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RequestRecord {
    pub shown: f32,
    pub inverse_behaviour: f32,
}

const fn numbers<T>() -> usize {
    size_of::<T>() / size_of::<f32>()
}

/// Positions of a record's parts. `T` steps, `N` contracts, `K` bidders, `R` requests in a step, `Q` offers of a request, `A`
/// auction ads.
#[derive(Debug, Clone)]
pub struct Record {
    pub dims: Dims,
    pub requests: usize,
    pub by_total: bool,
    /// Whether bids include the controller's term.
    pub pacing: bool,
    /// Whether both networks have a table of ads, and whether the actor has traffic tables.
    pub ads: bool,
    pub traffic: bool,
    /// Length of a record.
    pub width: usize,
    /// `[1]`: coefficient of the anchor, relative to a request's weight.
    pub spring: Range<usize>,
    /// `[T + 1]` of [`StepRecord`].
    pub steps: Range<usize>,
    /// `[N]` of [`TermsRecord`].
    pub terms: Range<usize>,
    /// `[T + 1, N]` of [`CourseRecord`].
    pub courses: Range<usize>,
    /// `[T, K]`, if a step is one request: index of each bidder's contract plus 1.
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

/// Contribution of a segment to the denominators of the losses.
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
            ads: spec.policy.ad_embedding > 0,
            traffic,
        };
        record.width = width;
        record
    }

    /// Returns the number of the actor's tables.
    pub fn tables(&self) -> usize {
        usize::from(self.ads) + if self.traffic { TRAFFIC } else { 0 }
    }
}

impl TermsRecord {
    /// Whether it bids in a step of many requests ([`may_bid`]).
    fn bids(&self, course: &CourseRecord) -> bool {
        self.there > 0.0 && may_bid(course.features.flight_state, course.delivered, self.left)
    }
}
