//! Statistics of each contract on the training days: its price, its presence in the queues, and the hours that suit its delivery.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::log::{CompiledLog, draw};

use super::amount::is_amount;
use super::bound::Bound;

/// Hours of the day.
const HOURS: usize = 24;
/// Weight of the common tilt of all contracts against a contract's own, impressions per hour.
const PRIOR_IMPRESSIONS: f64 = 100.0;
/// Weight of the day's mean against a contract's own requests, requests.
const PRIOR_REQUESTS: f64 = 50.0;

/// Statistics of one contract on the training days.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownContract {
    /// Mean dual price, as a share of the penalty (or minor units per impression if the penalty is 0).
    pub price_share: f64,
    /// Share of the targeted requests in flight whose queue contains the contract.
    pub presence: f64,
    /// Mean predicted click probability of its entries.
    pub pctr: f64,
    /// Mean best auction worth on its requests over that of all requests.
    pub market_ratio: f64,
    /// Impressions over requests by local hour when the day's dual prices are bid, relative to the whole day's: above 1
    /// in hours with low auction prices.
    pub tilt: [f64; HOURS],
}

impl KnownContract {
    /// No knowledge: half the penalty, in every queue, all hours equal.
    pub const NOTHING: Self =
        Self { price_share: 0.5, presence: 1.0, pctr: 0.0, market_ratio: 1.0, tilt: [1.0; HOURS] };

    /// Whether every figure is valid.
    pub(super) fn is_sound(&self) -> bool {
        is_amount(self.price_share.abs())
            && [self.presence, self.pctr, self.market_ratio].iter().chain(&self.tilt).all(|&v| is_amount(v))
    }
}

/// Sums over the training days.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    days: f64,
    price_share: f64,
    presence: f64,
    pctr: f64,
    requests: f64,
    /// Sum of the best auction worth on its requests over the day's mean.
    market: f64,
    /// Impressions when dual prices are bid, and the number to expect if all hours were equal.
    shown: [f64; HOURS],
    expected: [f64; HOURS],
}

/// Computes the statistics of every contract of the training days, and their mean for contracts never seen.
pub fn learn(days: &[(&CompiledLog, &Bound)], rate_seed: u64) -> (BTreeMap<u64, KnownContract>, KnownContract) {
    let mut sums = BTreeMap::<u64, Sums>::new();
    for (log, bound) in days {
        for (c, day) in log.contracts().iter().zip(of_day(log, bound, rate_seed)) {
            sums.entry(c.ad_id).or_default().add(&day);
        }
    }
    let mut common = Sums::default();
    for s in sums.values() {
        common.add(s);
    }
    // A tilt by hour has to repeat; a single day cannot show that.
    let habits = days.len() > 1;
    let tilt_of = |shown: f64, expected: f64, prior: f64| {
        if habits { (shown + PRIOR_IMPRESSIONS * prior) / (expected + PRIOR_IMPRESSIONS) } else { 1.0 }
    };
    let common_tilt: [f64; HOURS] = std::array::from_fn(|h| tilt_of(common.shown[h], common.expected[h], 1.0));
    let contracts: BTreeMap<u64, KnownContract> = sums
        .iter()
        .map(|(&id, s)| {
            let known = KnownContract {
                price_share: s.price_share / s.days,
                presence: s.presence / s.days,
                pctr: s.pctr / s.days,
                market_ratio: (s.market + PRIOR_REQUESTS) / (s.requests + PRIOR_REQUESTS),
                tilt: std::array::from_fn(|h| tilt_of(s.shown[h], s.expected[h], common_tilt[h])),
            };
            (id, known)
        })
        .collect();
    if contracts.is_empty() {
        return (contracts, KnownContract::NOTHING);
    }
    let mean = |f: fn(&KnownContract) -> f64| contracts.values().map(f).sum::<f64>() / contracts.len() as f64;
    let unseen = KnownContract {
        price_share: mean(|c| c.price_share),
        presence: mean(|c| c.presence),
        pctr: mean(|c| c.pctr),
        market_ratio: mean(|c| c.market_ratio),
        tilt: common_tilt,
    };
    (contracts, unseen)
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.days += other.days;
        self.price_share += other.price_share;
        self.presence += other.presence;
        self.pctr += other.pctr;
        self.requests += other.requests;
        self.market += other.market;
        for h in 0..HOURS {
            self.shown[h] += other.shown[h];
            self.expected[h] += other.expected[h];
        }
    }
}

/// Returns one day's sums for each of its contracts; the dual prices are served to see in which hours they show it.
fn of_day(log: &CompiledLog, bound: &Bound, rate_seed: u64) -> Vec<Sums> {
    let contracts = log.contracts();
    let mut sums: Vec<Sums> = contracts
        .iter()
        .zip(&bound.prices)
        .map(|(c, &price)| Sums {
            days: 1.0,
            price_share: if c.penalty > 0.0 { (price / c.penalty).clamp(-1.0, 1.0) } else { price },
            presence: if c.targeted > 0 { c.present as f64 / c.targeted as f64 } else { 1.0 },
            pctr: c.mean_pctr,
            ..Sums::default()
        })
        .collect();
    let mean = log.requests().iter().map(|r| r.best).sum::<f64>() / log.requests().len().max(1) as f64;
    let mut shown = vec![0u64; contracts.len()];
    let mut supplied = vec![[0.0; HOURS]; contracts.len()];
    for r in log.requests() {
        let hour = ((r.ts_ms - log.day().start_ms) / 3_600_000).min(HOURS as u64 - 1) as usize;
        let mut best: Option<(f64, usize)> = None;
        for e in log.entries(&r) {
            let j = e.contract as usize;
            let c = &contracts[j];
            if !draw::passes(rate_seed, r.request_id, c.ad_id, c.rate) {
                continue;
            }
            let s = &mut sums[j];
            s.requests += 1.0;
            s.market += if mean > 0.0 { r.best / mean } else { 1.0 };
            supplied[j][hour] += 1.0;
            let value = c.click_value * e.pctr + bound.prices[j];
            if shown[j] < c.left() && value > best.map_or(r.best, |(v, _)| v) {
                best = Some((value, j));
            }
        }
        if let Some((_, j)) = best {
            shown[j] += 1;
            sums[j].shown[hour] += 1.0;
        }
    }
    for (s, supplied) in sums.iter_mut().zip(supplied) {
        let all: f64 = s.shown.iter().sum();
        s.expected = supplied.map(|n| all * n / s.requests.max(1.0));
    }
    sums
}
