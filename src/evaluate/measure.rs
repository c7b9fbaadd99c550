//! Measurements of a policy's day beyond its sums: delivery against the planned curves, and the contribution of each hour.
//!
//! Every policy of a day is compared with the same curves, those of the comparison's plan. A contract's
//! planned curve is its cumulative forecast supply as a share of the whole: delivered / owed would follow it if
//! a fixed share of its requests were shown.

use serde::{Deserialize, Serialize};

use crate::env::DayModel;
use crate::log::schema::DAY_MS;
use crate::plan::bound;
use crate::plan::{Bound, GRID};
use crate::policy::Shown;

use super::bootstrap::Block;

const HOUR_MS: u64 = 3_600_000;
const QUARTER_MS: u64 = DAY_MS / GRID as u64;
const HOURS: usize = (DAY_MS / HOUR_MS) as usize;

/// Delivery of one contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContractDelivery {
    pub ad_id: u64,
    /// Impressions owed at the start of the log, and shown.
    pub owed: u64,
    pub delivered: u64,
    /// Delivered over owed; `null` if nothing was owed.
    pub rate: Option<f64>,
    /// Mean over the quarter hours of the flight of |delivered / owed - planned share|, at their ends; `null` if nothing
    /// was owed or no supply was forecast.
    pub curve_deviation: Option<f64>,
    /// Mean over the quarter hours of the flight but the first of |change of delivery from the one before - planned
    /// change|, as a share of the mean planned delivery of a quarter hour; 0 = as smooth as the plan.
    pub roughness: Option<f64>,
}

/// Delivery over all contracts of a day: means weighted by the impressions owed.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub curve_deviation: Option<f64>,
    pub roughness: Option<f64>,
    pub contracts: Vec<ContractDelivery>,
}

/// A contract's flight in quarter hours, and its planned delivery curve.
struct Curve {
    ad_id: u64,
    owed: u64,
    /// First quarter hour of the flight, and the one after its last.
    flight: std::ops::Range<usize>,
    /// Planned share before each quarter hour and after the last; `None` if no supply was forecast.
    planned: Option<Vec<f64>>,
}

/// A contract's own term of the bound, and its distribution over the hours.
struct Terms {
    penalty: f64,
    owed: f64,
    price: f64,
    /// Shares of the hours, summing to 1.
    hours: [f64; HOURS],
}

impl Terms {
    /// Returns the contract's addition to `J + S` when each of its `delivered` impressions has been credited with the price.
    fn earned(&self, delivered: f64) -> f64 {
        self.penalty * delivered.min(self.owed) - self.price * delivered
    }
}

/// The auction's prices over a day, in units of eCPM: the mean of the best auction ad by quarter hour.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Market {
    /// Prices that the plan expected; constant within an hour.
    pub expected: Vec<f64>,
    /// Actual prices; `null` if no request arrived.
    pub seen: Vec<Option<f64>>,
}

impl Market {
    fn of(day: &DayModel) -> Self {
        let mut seen = [Mean::default(); GRID];
        for r in day.log.requests() {
            seen[quarter(r.ts_ms - day.start_ms)].add(1000.0 * r.best);
        }
        let expected = (0..GRID).map(|q| 1000.0 * day.price_by_hour[q * HOURS / GRID]);
        Self { expected: expected.collect(), seen: seen.iter().map(Mean::value).collect() }
    }
}

/// Mean of the added values.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

fn quarter(offset: u64) -> usize {
    ((offset / QUARTER_MS) as usize).min(GRID - 1)
}

/// Reference of a day's measurements, the same for every policy.
pub struct DayMeasure {
    market: Market,
    /// `UB + S` by hour; `None` for hours without a request.
    hours: Vec<Option<f64>>,
    terms: Vec<Terms>,
    curves: Vec<Curve>,
}

impl DayMeasure {
    /// Computes the day's curves and distributes its bound over the hours; the parts sum to `UB + S`.
    ///
    /// The value of a request at the bound's prices counts in its hour; a contract's own term is distributed over the requests
    /// that may show it (evenly over the hours if there are none). A policy is credited in the same way: an impression of a
    /// contract counts its click and its price in its hour, and the rest of the contract's part of `J + S` is distributed as
    /// above. So no hour earns more than its bound, and delivering sooner or later than the bound does costs only the displaced
    /// auction ads.
    pub fn new(day: &DayModel, at: &Bound, rate_seed: u64) -> Self {
        let hour_of = |row: usize| ((day.offset(row) / HOUR_MS) as usize).min(HOURS - 1);
        let mut hours: Vec<Option<f64>> = vec![None; HOURS];
        let mut takes = vec![[0u64; HOURS]; day.contracts.len()];
        bound::visit(&day.log, rate_seed, 0..day.log.requests().len(), |row, best, passed| {
            let hour = hour_of(row);
            *hours[hour].get_or_insert(0.0) += bound::value(best, passed, &at.prices);
            passed.iter().for_each(|&(contract, _)| takes[contract as usize][hour] += 1);
        });
        let with_requests = hours.iter().flatten().count() as f64;
        let mut terms = Vec::with_capacity(at.prices.len());
        for (j, (&price, c)) in at.prices.iter().zip(&day.contracts).enumerate() {
            let all: u64 = takes[j].iter().sum();
            let mut spread = [0.0; HOURS];
            if all > 0 {
                spread = takes[j].map(|n| n as f64 / all as f64);
            } else {
                let open = spread.iter_mut().zip(&hours).filter(|(_, hour)| hour.is_some());
                open.for_each(|(share, _)| *share = 1.0 / with_requests);
            }
            let rent = bound::rent(&day.log.contracts()[j], price);
            for (hour, share) in hours.iter_mut().zip(spread) {
                hour.iter_mut().for_each(|bound| *bound += share * rent);
            }
            terms.push(Terms { penalty: c.penalty, owed: c.owed, price, hours: spread });
        }
        let curves = day
            .contracts
            .iter()
            .map(|c| {
                let total = c.supply.total();
                let share = |q: usize| c.supply.before(q as u64 * QUARTER_MS) / total;
                let first = (c.start / QUARTER_MS) as usize;
                let end = (c.end.min(DAY_MS).div_ceil(QUARTER_MS) as usize).min(GRID);
                Curve {
                    ad_id: c.ad_id,
                    owed: c.owed as u64,
                    flight: first.min(end)..end,
                    planned: (total > 0.0).then(|| (0..=GRID).map(share).collect()),
                }
            })
            .collect();
        Self { market: Market::of(day), hours, terms, curves }
    }

    /// Returns the planned share of each contract's delivery before every quarter hour and after the last; empty if no supply
    /// was forecast.
    pub fn planned(&self) -> Vec<Vec<f64>> {
        self.curves.iter().map(|curve| curve.planned.clone().unwrap_or_default()).collect()
    }

    /// Returns the auction's prices over the day.
    pub fn market(&self) -> &Market {
        &self.market
    }

    /// Creates a meter for one replay of the day.
    pub fn meter(&self) -> Meter<'_> {
        Meter {
            measure: self,
            credited: vec![0.0; HOURS],
            shown: vec![[0; GRID]; self.curves.len()],
            bids: [Mean::default(); GRID],
        }
    }
}

/// Records the decisions of one replay.
pub struct Meter<'a> {
    measure: &'a DayMeasure,
    /// Worth of the ads shown plus the price of each contract impression, by hour.
    credited: Vec<f64>,
    /// Impressions of each contract by quarter hour.
    shown: Vec<[u32; GRID]>,
    /// Bids of the contracts that won, by quarter hour, in units of eCPM.
    bids: [Mean; GRID],
}

/// Bids above this mean "before anything else" and are no prices, eCPM.
const LARGEST_BID: f64 = 1e9;

impl Meter<'_> {
    pub fn see(&mut self, shown: &Shown) {
        let price = shown.contract.map_or(0.0, |j| self.measure.terms[j].price);
        self.credited[((shown.offset / HOUR_MS) as usize).min(HOURS - 1)] += shown.worth + price;
        if let Some(j) = shown.contract {
            let at = quarter(shown.offset);
            self.shown[j][at] += 1;
            let bid = shown.ranking.map(|ranking| 1000.0 * ranking.bid).filter(|bid| bid.abs() < LARGEST_BID);
            bid.into_iter().for_each(|bid| self.bids[at].add(bid));
        }
    }

    /// Returns the mean winning bid of contracts by quarter hour, in units of eCPM; `None` if none was shown or no bid is a price.
    pub fn bids(&self) -> Vec<Option<f64>> {
        self.bids.iter().map(Mean::value).collect()
    }

    /// Returns the contribution of each hour with requests to `J + S` and to `UB + S`.
    pub fn blocks(&self) -> Vec<Block> {
        let mut earned = self.credited.clone();
        for (terms, shown) in self.measure.terms.iter().zip(&self.shown) {
            let rest = terms.earned(shown.iter().map(|&n| f64::from(n)).sum());
            earned.iter_mut().zip(terms.hours).for_each(|(hour, share)| *hour += share * rest);
        }
        let hours = self.measure.hours.iter().zip(earned);
        hours.filter_map(|(bound, earned)| Some(Block { earned, bound: (*bound)? })).collect()
    }

    /// Returns the impressions of each contract by quarter hour.
    pub fn quarters(&self) -> Vec<Vec<u32>> {
        self.shown.iter().map(|shown| shown.to_vec()).collect()
    }

    pub fn delivery(&self) -> Delivery {
        let contracts: Vec<ContractDelivery> =
            self.measure.curves.iter().zip(&self.shown).map(|(curve, shown)| curve.judge(shown)).collect();
        let mean = |f: fn(&ContractDelivery) -> Option<f64>| {
            let known = contracts.iter().filter_map(|c| Some((c.owed as f64, f(c)?)));
            let (weight, sum) = known.fold((0.0, 0.0), |(w, s), (owed, v)| (w + owed, s + owed * v));
            (weight > 0.0).then(|| sum / weight)
        };
        Delivery { curve_deviation: mean(|c| c.curve_deviation), roughness: mean(|c| c.roughness), contracts }
    }
}

impl Curve {
    fn judge(&self, shown: &[u32; GRID]) -> ContractDelivery {
        let delivered: u64 = shown.iter().map(|&n| u64::from(n)).sum();
        let owed = self.owed as f64;
        let known = self.planned.as_ref().filter(|_| self.owed > 0 && !self.flight.is_empty());
        let deviation = known.map(|planned| {
            let mut so_far = 0.0;
            let mut sum = 0.0;
            for (q, &n) in shown.iter().enumerate().take(self.flight.end) {
                so_far += f64::from(n);
                if self.flight.contains(&q) {
                    sum += (so_far / owed - planned[q + 1]).abs();
                }
            }
            sum / self.flight.len() as f64
        });
        let roughness = known.filter(|_| self.flight.len() > 1).map(|planned| {
            // In shares of the owed impressions; the whole plan over the quarter hours of the flight is 1.
            let share = |q: usize| f64::from(shown[q]) / owed;
            let plan = |q: usize| planned[q + 1] - planned[q];
            let change = |q: usize| ((share(q) - share(q - 1)) - (plan(q) - plan(q - 1))).abs();
            let steps = self.flight.len() - 1;
            let mean_change = self.flight.clone().skip(1).map(change).sum::<f64>() / steps as f64;
            mean_change * self.flight.len() as f64
        });
        ContractDelivery {
            ad_id: self.ad_id,
            owed: self.owed,
            delivered,
            rate: (self.owed > 0).then(|| delivered as f64 / owed),
            curve_deviation: deviation,
            roughness,
        }
    }
}
