//! Expands records into rows of the pool.
//!
//! One unit for each contract, bidder or request of a step. Features and bids use the host's formulas, in single precision;
//! features that the host computes are copied to their columns. A place is reused after another segment, so every number of it
//! is written.

use std::mem::offset_of;

use burn_cubecl::CubeRuntime;
use cubecl::bytes::Bytes;
use cubecl::prelude::*;

use crate::env::{FEATURES, column, copy_course, copy_general, copy_terms};
use crate::formulas::device::{
    at_least_0, delivered_share, demand_met, demand_over_supply, done, inverse_root, log_level, loss_scale,
    needed_speed, pace_error, pacing, pacing_feature, potential, speed_against_plan, worth,
};
use crate::formulas::shared::{ahead, may_bid};

use super::super::layout::{ABSENT, Layout};
use super::super::record::{
    AuctionRecord, CourseRecord, OfferRecord, Record, RequestRecord, StepRecord, TRAFFIC as KINDS, TermsRecord,
};
use crate::gpu::numbers::{Numbers, whole};

/// Defines the offset of a record's field, in numbers.
macro_rules! fields {
    ($($name:ident = $record:ident.$($field:ident).+),* $(,)?) => {
        $(const $name: usize = offset_of!($record, $($field).+) / size_of::<f32>();)*
    };
}

fields!(
    VOLUME_RATIO = StepRecord.volume_ratio,
    GENERAL = StepRecord.features,
    ENDS = StepRecord.ends,
    AUCTION_REWARD = StepRecord.auction_reward,
    THERE = TermsRecord.there,
    OWED = TermsRecord.owed,
    LEFT = TermsRecord.left,
    MARKET_GAIN = TermsRecord.market_gain,
    CONSTANT = TermsRecord.features,
    START = TermsRecord.start,
    LOW = TermsRecord.low,
    HIGH = TermsRecord.high,
    AVERTED = TermsRecord.averted,
    CLICK = TermsRecord.click,
    AD = TermsRecord.ad,
    DELIVERED = CourseRecord.delivered,
    OBSERVED = CourseRecord.observed,
    PLANNED = CourseRecord.planned,
    SUPPLY_LEFT = CourseRecord.supply_left,
    SPEED = CourseRecord.speed,
    CHANGING = CourseRecord.features,
    FLIGHT_STATE = CourseRecord.features.flight_state,
    CONTROLLER = CourseRecord.controller,
    MARKET = CourseRecord.market,
    DAY_MARKET = CourseRecord.day_market,
    REPLANNED = CourseRecord.replanned,
    REWARD = CourseRecord.reward,
    OFFER_SLOT = OfferRecord.slot,
    OFFER_UNIT = OfferRecord.unit,
    OFFER_CLICK = OfferRecord.click,
    OFFER_GAIN = OfferRecord.gain,
    OFFER_BOOST = OfferRecord.boost,
    AUCTION_WORTH = AuctionRecord.worth,
    AUCTION_GAIN = AuctionRecord.gain,
    AUCTION_BOOST = AuctionRecord.boost,
    AUCTION_AD = AuctionRecord.ad,
    SHOWN = RequestRecord.shown,
    INVERSE_BEHAVIOUR = RequestRecord.inverse_behaviour,
);

/// Defines the columns of features that are computed here.
macro_rules! columns {
    ($($constant:ident = $name:literal),* $(,)?) => {
        $(const $constant: usize = column($name);)*
    };
}

columns!(
    DELIVERED_SHARE = "delivered_share",
    PLANNED_SHARE = "planned_share",
    PACE_ERROR = "pace_error",
    DEMAND_OVER_SUPPLY = "log_remaining_demand_over_supply",
    DEMAND_OVER_SEEN = "log_remaining_demand_over_supply_at_seen_volume",
    INVERSE_ROOT = "inverse_root_remaining",
    NEEDED_SPEED = "log_needed_speed",
    SPEED_AGAINST_PLAN = "log_speed_against_plan",
    DEMAND_MET = "demand_met",
    PACING = "pacing",
    WORTH = "worth",
    MARKET_LEVEL = "log_market_level",
    MARKET_LEVEL_OF_DAY = "log_market_level_of_day",
    IS_AUCTION = "is_auction",
);

const STEP: usize = size_of::<StepRecord>() / size_of::<f32>();
const TERMS: usize = size_of::<TermsRecord>() / size_of::<f32>();
const COURSE: usize = size_of::<CourseRecord>() / size_of::<f32>();
const OFFER: usize = size_of::<OfferRecord>() / size_of::<f32>();
const AUCTION: usize = size_of::<AuctionRecord>() / size_of::<f32>();
const REQUEST: usize = size_of::<RequestRecord>() / size_of::<f32>();
/// Sizes: `T` steps in a segment, `N` contracts, `K` bidders, `R` requests in a step, `Q` offers of a request, `A` auction
/// ads, `F` tables of the actor.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    segments: usize,
    steps: usize,
    contracts: usize,
    bidders: usize,
    requests: usize,
    offers: usize,
    auctions: usize,
    tables: usize,
}

/// Start indices of a record's parts, and its length.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct From {
    width: usize,
    spring: usize,
    steps: usize,
    terms: usize,
    courses: usize,
    bidders: usize,
    kinds: usize,
    offers: usize,
    auctions: usize,
    shown: usize,
}

/// Start indices of a row's fields, and its length.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct To {
    width: usize,
    states: usize,
    after: usize,
    last: usize,
    actor: usize,
    state_ids: usize,
    after_ids: usize,
    last_ids: usize,
    actor_ids: usize,
    potential: usize,
    after_potential: usize,
    last_potential: usize,
    inverse_scale: usize,
    rewards: usize,
    auction_rewards: usize,
    ends: usize,
    contract: usize,
    shift: usize,
    low: usize,
    penalty: usize,
    ahead: usize,
    spring: usize,
    unit: usize,
    click: usize,
    gain: usize,
    boost: usize,
    auction_worth: usize,
    auction_gain: usize,
    auction_boost: usize,
    active: usize,
    shown: usize,
    inverse_behaviour: usize,
}

/// Options of a run's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct With {
    ads: bool,
    traffic: bool,
    pacing: bool,
    by_total: bool,
    score_auctions: bool,
}

/// Returns the pacing controller's term.
#[cube]
fn pacing_term(records: &Array<f32>, terms: usize, course: usize) -> f32 {
    pacing(records[course + CONTROLLER], records[terms + MARKET_GAIN], records[course + DAY_MARKET])
}

#[cube]
fn zeros(pool: &mut Array<f32>, at: usize, #[comptime] len: usize) {
    for i in 0..len {
        pool[at + i] = 0.0f32;
    }
}

/// Writes the features of a contract with `delivered` counted, in the columns of [`FEATURE_NAMES`](crate::env::FEATURE_NAMES).
#[cube]
fn features(
    records: &Array<f32>,
    pool: &mut Array<f32>,
    to: usize,
    step: usize,
    terms: usize,
    course: usize,
    delivered: f32,
) {
    let owed = records[terms + OWED];
    let planned = records[course + PLANNED];
    let supply_left = records[course + SUPPLY_LEFT];
    let remaining = at_least_0(owed - delivered);
    let done = done(delivered, owed);
    let one = f32::new(1.0);
    pool[to + DELIVERED_SHARE] = delivered_share(done);
    pool[to + PLANNED_SHARE] = planned;
    pool[to + PACE_ERROR] = pace_error(done, planned);
    pool[to + DEMAND_OVER_SUPPLY] = demand_over_supply(remaining, supply_left);
    pool[to + DEMAND_OVER_SEEN] = demand_over_supply(remaining, supply_left * records[step + VOLUME_RATIO]);
    pool[to + INVERSE_ROOT] = inverse_root(remaining);
    pool[to + NEEDED_SPEED] = needed_speed(done, planned);
    pool[to + SPEED_AGAINST_PLAN] = speed_against_plan(records[course + SPEED]);
    pool[to + DEMAND_MET] = demand_met(delivered, owed);
    pool[to + PACING] = pacing_feature(pacing_term(records, terms, course));
    pool[to + MARKET_LEVEL] = log_level(records[course + MARKET], one);
    pool[to + MARKET_LEVEL_OF_DAY] = log_level(records[course + DAY_MARKET], one);
    pool[to + IS_AUCTION] = 0.0f32;
    copy_general(records, step + GENERAL, pool, to);
    copy_terms(records, terms + CONSTANT, pool, to);
    copy_course(records, course + CHANGING, pool, to);
}

/// Returns the factor on the critic's output, and the scale of its loss; 0 after the flight.
#[cube]
fn stake(records: &Array<f32>, terms: usize, course: usize, delivered: f32, per_step: f32) -> (f32, f32) {
    let owed = at_least_0(records[terms + OWED] - delivered);
    let left = at_least_0(records[terms + LEFT] - delivered);
    let (averted, click) = (records[terms + AVERTED], records[terms + CLICK]);
    let mut worth = potential(averted, click, owed, left);
    let mut scale = loss_scale(averted, click, owed, left, per_step);
    if records[course + FLIGHT_STATE] > 0.0 {
        worth = 0.0f32;
        scale = 0.0f32;
    }
    (worth, scale)
}

/// Writes the states and the rows after each segment: one unit for each contract at each step and after the last.
#[cube(launch_unchecked)]
fn contracts_kernel(
    records: &Array<f32>,
    places: &Array<u32>,
    pool: &mut Array<f32>,
    of: Sizes,
    from: From,
    to: To,
    #[comptime] with: With,
) {
    if ABSOLUTE_POS >= of.segments * (of.steps + 1) * of.contracts {
        terminate!();
    }
    let j = ABSOLUTE_POS % of.contracts;
    let step_of = ABSOLUTE_POS / of.contracts;
    let (segment, t) = (step_of / (of.steps + 1), step_of % (of.steps + 1));
    let (record, row) = (segment * from.width, places[segment] as usize * to.width);
    let step = record + from.steps + t * STEP;
    let terms = record + from.terms + j * TERMS;
    let course = record + from.courses + (t * of.contracts + j) * COURSE;
    let pair = t * of.contracts + j;
    let mut features_to = row + to.states + pair * FEATURES;
    let mut id_to = row + to.state_ids + pair;
    let mut potential_to = row + to.potential + pair;
    if t == of.steps {
        features_to = row + to.last + j * FEATURES;
        id_to = row + to.last_ids + j;
        potential_to = row + to.last_potential + j;
    }
    let mut worth = 0.0f32;
    let mut inverse_scale = 0.0f32;
    let mut reward = 0.0f32;
    let mut ad = 0.0f32;
    if records[step + VOLUME_RATIO] > 0.0 && records[terms + THERE] > 0.0 {
        let delivered = records[course + DELIVERED];
        features(records, pool, features_to, step, terms, course, delivered);
        let (potential, scale) = stake(records, terms, course, delivered, f32::cast_from(of.requests));
        worth = potential;
        if potential > 0.0 && scale > 0.0 {
            inverse_scale = 1.0f32 / scale;
        }
        reward = records[course + REWARD];
        ad = records[terms + AD];
    } else {
        zeros(pool, features_to, FEATURES);
    }
    pool[potential_to] = worth;
    if comptime!(with.ads) {
        pool[id_to] = ad;
    }
    if t < of.steps {
        pool[row + to.rewards + pair] = reward;
        if comptime!(!with.by_total) {
            pool[row + to.inverse_scale + pair] = inverse_scale;
        }
    }
}

/// Writes the ids of a row of the actor.
#[cube]
#[allow(clippy::too_many_arguments, reason = "arrays are arguments of a launch")]
fn ids(
    records: &Array<f32>,
    pool: &mut Array<f32>,
    to: usize,
    kinds: usize,
    ad: f32,
    there: bool,
    #[comptime] with: With,
) {
    let mut traffic = to;
    if comptime!(with.ads) {
        pool[to] = ad;
        traffic += 1;
    }
    if comptime!(with.traffic) {
        for i in 0..KINDS {
            let mut id = 0.0f32;
            if there {
                id = records[kinds + i];
            }
            pool[traffic + i] = id;
        }
    }
}

/// Writes the bidders of a step and the rows after a display: one unit for each slot.
#[cube(launch_unchecked)]
fn bidders_kernel(
    records: &Array<f32>,
    places: &Array<u32>,
    pool: &mut Array<f32>,
    of: Sizes,
    from: From,
    to: To,
    #[comptime] with: With,
) {
    if ABSOLUTE_POS >= of.segments * of.steps * of.bidders {
        terminate!();
    }
    let slot = ABSOLUTE_POS % of.bidders;
    let step_of = ABSOLUTE_POS / of.bidders;
    let (segment, t) = (step_of / of.steps, step_of % of.steps);
    let (record, row) = (segment * from.width, places[segment] as usize * to.width);
    let step = record + from.steps + t * STEP;
    let at = t * of.bidders + slot;
    // Index of the contract plus 1; 0 if none bids.
    let mut bidder = 0usize;
    if of.requests == 1 {
        bidder = usize::cast_from(records[record + from.bidders + at]);
    } else {
        let terms = record + from.terms + slot * TERMS;
        let course = record + from.courses + (t * of.contracts + slot) * COURSE;
        let there = records[step + VOLUME_RATIO] > 0.0 && records[terms + THERE] > 0.0;
        if there && may_bid(records[course + FLIGHT_STATE], records[course + DELIVERED], records[terms + LEFT]) {
            bidder = slot + 1;
        }
    }
    let mut width = of.bidders;
    if comptime!(with.score_auctions) {
        width += of.auctions;
    }
    let actor_row = t * width + slot;
    let actor_to = row + to.actor + actor_row * FEATURES;
    let after_to = row + to.after + at * FEATURES;
    let mut contract = 0.0f32;
    let mut shift = 0.0f32;
    let mut low = 0.0f32;
    let mut high = 0.0f32;
    let mut steps_ahead = f32::new(1.0);
    let mut after_potential = 0.0f32;
    let mut spring = 0.0f32;
    let mut ad = 0.0f32;
    if bidder > 0 {
        let j = bidder - 1;
        let terms = record + from.terms + j * TERMS;
        let course = record + from.courses + (t * of.contracts + j) * COURSE;
        let delivered = records[course + DELIVERED];
        let ahead = ahead(f32::cast_from(of.requests), records[terms + LEFT] - delivered);
        features(records, pool, actor_to, step, terms, course, records[course + OBSERVED]);
        features(records, pool, after_to, step, terms, course, delivered + ahead);
        contract = f32::cast_from(j);
        shift = records[terms + START] + records[course + REPLANNED];
        if comptime!(with.pacing) {
            shift += pacing_term(records, terms, course);
        }
        low = records[terms + LOW];
        high = records[terms + HIGH];
        steps_ahead = ahead;
        let (potential, _scale) = stake(records, terms, course, delivered + ahead, f32::cast_from(of.requests));
        after_potential = potential;
        spring = records[record + from.spring];
        ad = records[terms + AD];
    } else {
        zeros(pool, actor_to, FEATURES);
        zeros(pool, after_to, FEATURES);
    }
    let kinds = record + from.kinds + t * KINDS;
    ids(records, pool, row + to.actor_ids + actor_row * of.tables, kinds, ad, bidder > 0, with);
    if comptime!(with.ads) {
        pool[row + to.after_ids + at] = ad;
    }
    if of.requests == 1 {
        pool[row + to.contract + at] = contract;
    }
    pool[row + to.shift + at] = shift;
    pool[row + to.low + at] = low;
    pool[row + to.penalty + at] = high;
    pool[row + to.ahead + at] = steps_ahead;
    pool[row + to.after_potential + at] = after_potential;
    pool[row + to.spring + at] = spring;
}

/// Writes the contract offers of each request: one unit for each slot.
#[cube(launch_unchecked)]
fn offers_kernel(records: &Array<f32>, places: &Array<u32>, pool: &mut Array<f32>, of: Sizes, from: From, to: To) {
    let slots = of.steps * of.requests * of.bidders;
    if ABSOLUTE_POS >= of.segments * slots {
        terminate!();
    }
    let segment = ABSOLUTE_POS / slots;
    let at = ABSOLUTE_POS - segment * slots;
    let (request, slot) = (at / of.bidders, at % of.bidders);
    let row = places[segment] as usize * to.width;
    let offers = segment * from.width + from.offers + request * of.offers * OFFER;
    let mut unit = 0.0f32;
    let mut click = 0.0f32;
    let mut gain = 0.0f32;
    let mut boost = f32::new(ABSENT);
    for i in 0..of.offers {
        let offer = offers + i * OFFER;
        if records[offer + OFFER_BOOST] > 0.0 && usize::cast_from(records[offer + OFFER_SLOT]) == slot {
            unit = records[offer + OFFER_UNIT];
            click = records[offer + OFFER_CLICK];
            gain = records[offer + OFFER_GAIN];
            boost = records[offer + OFFER_BOOST];
        }
    }
    pool[row + to.unit + at] = unit;
    pool[row + to.click + at] = click;
    pool[row + to.gain + at] = gain;
    pool[row + to.boost + at] = boost;
}

/// Writes auction ads, actions, and the values of steps: one unit for each request.
#[cube(launch_unchecked)]
#[allow(clippy::collapsible_if, reason = "one is decided when the kernel is compiled")]
fn requests_kernel(
    records: &Array<f32>,
    places: &Array<u32>,
    pool: &mut Array<f32>,
    of: Sizes,
    from: From,
    to: To,
    #[comptime] with: With,
) {
    let requests = of.steps * of.requests;
    if ABSOLUTE_POS >= of.segments * requests {
        terminate!();
    }
    let segment = ABSOLUTE_POS / requests;
    let request = ABSOLUTE_POS - segment * requests;
    let t = request / of.requests;
    let first = t * of.requests == request;
    let (record, row) = (segment * from.width, places[segment] as usize * to.width);
    let step = record + from.steps + t * STEP;
    for i in 0..of.auctions {
        let at = request * of.auctions + i;
        let auction = record + from.auctions + at * AUCTION;
        let there = records[auction + AUCTION_BOOST] > 0.0;
        let mut boost = f32::new(ABSENT);
        if there {
            boost = records[auction + AUCTION_BOOST];
        }
        pool[row + to.auction_worth + at] = records[auction + AUCTION_WORTH];
        pool[row + to.auction_gain + at] = records[auction + AUCTION_GAIN];
        pool[row + to.auction_boost + at] = boost;
        if comptime!(with.score_auctions) {
            if first {
                let actor_row = t * (of.bidders + of.auctions) + of.bidders + i;
                let features = row + to.actor + actor_row * FEATURES;
                zeros(pool, features, FEATURES);
                if there {
                    copy_general(records, step + GENERAL, pool, features);
                    pool[features + WORTH] = worth(records[auction + AUCTION_WORTH]);
                    pool[features + IS_AUCTION] = f32::new(1.0);
                }
                let kinds = record + from.kinds + t * KINDS;
                let to = row + to.actor_ids + actor_row * of.tables;
                ids(records, pool, to, kinds, records[auction + AUCTION_AD], there, with);
            }
        }
    }
    let shown = record + from.shown + request * REQUEST;
    // Index of the slot plus 1; 0 if nothing was shown.
    let slot = usize::cast_from(records[shown + SHOWN]);
    let mut active = 0.0f32;
    if slot > 0 {
        active = f32::new(1.0);
    }
    pool[row + to.active + request] = active;
    if of.requests == 1 {
        let slots = of.bidders + of.auctions;
        for i in 0..slots {
            pool[row + to.shown + request * slots + i] = 0.0f32;
        }
        if slot > 0 {
            pool[row + to.shown + request * slots + slot - 1] = f32::new(1.0);
        }
        pool[row + to.inverse_behaviour + request] = records[shown + INVERSE_BEHAVIOUR];
    }
    if first {
        pool[row + to.ends + t] = records[step + ENDS];
        pool[row + to.auction_rewards + t] = records[step + AUCTION_REWARD];
        if comptime!(with.by_total) {
            let mut squares = 0.0f32;
            for j in 0..of.contracts {
                let terms = record + from.terms + j * TERMS;
                let course = record + from.courses + (t * of.contracts + j) * COURSE;
                let delivered = records[course + DELIVERED];
                let (_potential, scale) = stake(records, terms, course, delivered, f32::cast_from(of.requests));
                squares += scale * scale;
            }
            let mut inverse = 0.0f32;
            if squares > 0.0 && records[step + VOLUME_RATIO] > 0.0 {
                inverse = 1.0f32 / squares.sqrt();
            }
            pool[row + to.inverse_scale + t] = inverse;
        }
    }
}

/// Expands records at their places in the pool, which no other code accesses meanwhile.
pub fn write<R: CubeRuntime>(
    pool: &Numbers<R>,
    records: Vec<f32>,
    places: &[usize],
    (record, layout): (&Record, &Layout),
) {
    assert!(places.iter().all(|place| (place + 1) * layout.width <= pool.len), "a place beyond the pool");
    assert_eq!(records.len(), places.len() * record.width, "a place for each record");
    let (client, dims, segments) = (&pool.client, record.dims, places.len());
    let places = pool.upload(&whole(places));
    let len = records.len();
    let records = pool.with(client.create(Bytes::from_elems(records)), len);
    let with = With {
        ads: record.ads,
        traffic: record.traffic,
        pacing: record.pacing,
        by_total: record.by_total,
        score_auctions: dims.score_auctions,
    };
    let of = || {
        SizesLaunch::new(
            segments,
            dims.steps,
            dims.contracts,
            dims.eligible,
            record.requests,
            dims.offers,
            dims.auctions,
            record.tables(),
        )
    };
    let from = || {
        FromLaunch::new(
            record.width,
            record.spring.start,
            record.steps.start,
            record.terms.start,
            record.courses.start,
            record.bidders.start,
            record.kinds.start,
            record.offers.start,
            record.auctions.start,
            record.shown.start,
        )
    };
    let to = || {
        ToLaunch::new(
            layout.width,
            layout.states.start,
            layout.after.start,
            layout.last.start,
            layout.actor.start,
            layout.state_ids.start,
            layout.after_ids.start,
            layout.last_ids.start,
            layout.actor_ids.start,
            layout.potential.start,
            layout.after_potential.start,
            layout.last_potential.start,
            layout.inverse_scale.start,
            layout.rewards.start,
            layout.auction_rewards.start,
            layout.ends.start,
            layout.contract.start,
            layout.shift.start,
            layout.low.start,
            layout.penalty.start,
            layout.ahead.start,
            layout.spring.start,
            layout.unit.start,
            layout.click.start,
            layout.gain.start,
            layout.boost.start,
            layout.auction_worth.start,
            layout.auction_gain.start,
            layout.auction_boost.start,
            layout.active.start,
            layout.shown.start,
            layout.inverse_behaviour.start,
        )
    };
    let (records, places, rows) = (|| records.arg(), || places.arg(), || pool.arg());
    let steps = segments * dims.steps;
    // SAFETY: records and rows are as long as their layouts describe, units beyond them end, and every place is within the pool.
    unsafe {
        let (count, dim) = pool.units((steps + segments) * dims.contracts);
        contracts_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            records(),
            places(),
            rows(),
            of(),
            from(),
            to(),
            with,
        );
        let (count, dim) = pool.units(steps * dims.eligible);
        bidders_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            records(),
            places(),
            rows(),
            of(),
            from(),
            to(),
            with,
        );
        let (count, dim) = pool.units(steps * record.requests * dims.eligible);
        offers_kernel::launch_unchecked::<R>(client, count, dim, records(), places(), rows(), of(), from(), to());
        let (count, dim) = pool.units(steps * record.requests);
        requests_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            records(),
            places(),
            rows(),
            of(),
            from(),
            to(),
            with,
        );
    }
}
