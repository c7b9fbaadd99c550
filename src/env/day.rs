//! A day as policies may know it: the log, the forecast and the plan's knowledge, indexed by contract.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::log::{self, CompiledLog};
use crate::plan::sample::Kind;
use crate::plan::{Forecast, GRID, Graph, Horizon, Hwm, PacingGains, Plan, Sample, Supply};

/// Indices of the ids that have an embedding; 0 stands for every other id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    pub ads: BTreeMap<u64, u32>,
    pub slots: BTreeMap<u32, u32>,
    pub regions: BTreeMap<u32, u32>,
}

impl Vocabulary {
    /// The contracts, slots and regions of the training days; with `auctions`, also the auction ads that stand in at
    /// least 100 queues.
    pub fn of_days(logs: &[&CompiledLog], auctions: bool) -> Self {
        let mut vocabulary = Self::default();
        let mut counts = BTreeMap::<u64, u32>::new();
        for log in logs {
            for c in log.contracts() {
                let next = vocabulary.ads.len() as u32 + 1;
                vocabulary.ads.entry(c.ad_id).or_insert(next);
            }
            for r in log.requests() {
                let next = vocabulary.slots.len() as u32 + 1;
                vocabulary.slots.entry(r.slot_id).or_insert(next);
                let next = vocabulary.regions.len() as u32 + 1;
                vocabulary.regions.entry(r.region).or_insert(next);
                if auctions {
                    for a in log.auctions(r) {
                        *counts.entry(a.ad_id).or_default() += 1;
                    }
                }
            }
        }
        for (ad_id, _) in counts.into_iter().filter(|&(_, n)| n >= 100) {
            let next = vocabulary.ads.len() as u32 + 1;
            vocabulary.ads.entry(ad_id).or_insert(next);
        }
        vocabulary
    }

    pub fn ad(&self, id: u64) -> u32 {
        self.ads.get(&id).copied().unwrap_or(0)
    }
}

/// A contract with what the plan knows of it. Money is in minor units per impression.
#[derive(Debug, Clone)]
pub struct ContractModel {
    pub ad_id: u64,
    pub owed: f64,
    pub left: f64,
    pub penalty: f64,
    pub click_value: f64,
    /// Mean worth of an impression's predicted clicks.
    pub mean_click: f64,
    /// What one impression can be worth: penalty + mean click worth.
    pub stake: f64,
    /// Forecast requests that it may use, cumulative over the day.
    pub supply: Supply,
    /// The supply weighed by when the training days' prices would have used it: the curve that delivery is paced along.
    pub pace: Supply,
    /// Expected best auction worth on its requests over that of all requests.
    pub market_ratio: f64,
    /// The training days' price.
    pub price: f64,
    /// Play probability on requests in whose queue it stands: the control table's, else HWM's on the day's forecast.
    pub theta: f64,
    pub rate: f64,
    /// Share of the targeted requests in flight in whose queue it should stand.
    pub presence: f64,
    /// Flight, milliseconds from midnight.
    pub start: u64,
    pub end: u64,
    /// Index in the ad vocabulary.
    pub vocabulary: u32,
}

impl ContractModel {
    /// The share of its demand that should be delivered before `offset`, by the forecast supply; `None` without supply.
    pub fn planned_share(&self, offset: u64) -> Option<f64> {
        let total = self.supply.total();
        (total > 0.0).then(|| self.supply.before(offset) / total)
    }
}

/// A logged day ready for replay. Shared by all replays of the process.
#[derive(Debug)]
pub struct DayModel {
    pub log: Arc<CompiledLog>,
    pub contracts: Vec<ContractModel>,
    pub traffic: Supply,
    /// Forecast page views of the day by kind of request.
    pub kinds: BTreeMap<Kind, f64>,
    /// Forecast supply and contracts joined.
    pub graph: Graph,
    /// Contracts in HWM's allocation order.
    pub order: Vec<u32>,
    /// Expected best auction worth by hour, minor units per impression.
    pub price_by_hour: Vec<f64>,
    /// The unit of money, minor units per impression.
    pub unit: f64,
    /// Expected best auction worth over the traffic from each grid point on.
    remaining_price: Vec<f64>,
    /// What the training days let expect of the requests to come, and how a policy looks ahead with it.
    pub sample: Arc<Sample>,
    pub horizon: Horizon,
    /// Gains of the pacing controller on whole days.
    pub pacing: PacingGains,
    pub auction_pctr: f64,
    pub contract_pctr: f64,
    pub vocabulary: Arc<Vocabulary>,
    /// Slot and region indices of each request would cost a look-up a step; they are resolved once.
    pub slot_index: Vec<u16>,
    pub region_index: Vec<u16>,
}

impl DayModel {
    /// Joins a day's log with its forecast (its `inventory`, else the plan's) and the plan.
    ///
    /// # Errors
    /// A malformed inventory.
    pub fn new(dir: &Path, log: CompiledLog, plan: &Plan, vocabulary: Arc<Vocabulary>) -> Result<Self, log::LogError> {
        let own = Forecast::of_directory(dir)?;
        Ok(Self::with_forecast(log, own.as_ref().unwrap_or(&plan.forecast), plan, vocabulary))
    }

    /// Joins a day's log with a given forecast.
    pub fn with_forecast(
        log: impl Into<Arc<CompiledLog>>,
        forecast: &Forecast,
        plan: &Plan,
        vocabulary: Arc<Vocabulary>,
    ) -> Self {
        let log = log.into();
        let start_ms = log.day().start_ms;
        let traffic = forecast.traffic();
        let graph = plan.graph(forecast, log.contracts(), start_ms);
        let Hwm { theta, order, .. } = Hwm::of(&graph);
        let contracts: Vec<ContractModel> = log
            .contracts()
            .iter()
            .zip(theta)
            .map(|(c, theta)| {
                let known = plan.known(c.ad_id);
                let supply = forecast.supply(c, start_ms, known.presence);
                let owed = c.owed() as f64;
                let mean_click = c.click_value * plan.pctr(c);
                ContractModel {
                    ad_id: c.ad_id,
                    owed,
                    left: c.left() as f64,
                    penalty: c.penalty,
                    click_value: c.click_value,
                    mean_click,
                    stake: c.penalty + mean_click,
                    price: plan.static_price(c.ad_id, c.penalty),
                    theta,
                    pace: supply.tilted(&known.tilt),
                    market_ratio: known.market_ratio,
                    supply,
                    rate: c.rate,
                    presence: known.presence,
                    start: c.start_ms.saturating_sub(start_ms),
                    end: c.end_ms.saturating_sub(start_ms),
                    vocabulary: vocabulary.ad(c.ad_id),
                }
            })
            .collect();
        let contract_pctr = match log.contracts().len() {
            0 => 0.0,
            n => log.contracts().iter().map(|c| plan.pctr(c)).sum::<f64>() / n as f64,
        };
        let index = |i: Option<&u32>| i.map_or(0, |&i| u16::try_from(i).unwrap_or(0));
        let slot_index = log.requests().iter().map(|r| index(vocabulary.slots.get(&r.slot_id))).collect();
        let region_index = log.requests().iter().map(|r| index(vocabulary.regions.get(&r.region))).collect();
        let remaining_price = remaining_price(&traffic, &plan.price_by_hour, plan.price_unit);
        Self {
            log,
            contracts,
            traffic,
            kinds: forecast.by_kind(),
            graph,
            order,
            price_by_hour: plan.price_by_hour.clone(),
            unit: plan.price_unit,
            remaining_price,
            pacing: plan.tuned.unwrap_or_default().pacing,
            horizon: plan.tuned.unwrap_or_default().receding,
            sample: plan.sample.clone(),
            auction_pctr: plan.auction_pctr,
            contract_pctr,
            vocabulary,
            slot_index,
            region_index,
        }
    }

    /// Milliseconds from midnight of a row.
    pub fn offset(&self, row: usize) -> u64 {
        self.log.requests()[row].ts_ms - self.log.day().start_ms
    }

    /// Expected best auction worth over the traffic still to come.
    pub fn remaining_price(&self, offset: u64) -> f64 {
        let i = (offset as usize * GRID / crate::log::schema::DAY_MS as usize).min(GRID - 1);
        self.remaining_price[i]
    }
}

fn remaining_price(traffic: &Supply, by_hour: &[f64], unit: f64) -> Vec<f64> {
    let cell = crate::log::schema::DAY_MS / GRID as u64;
    let (mut money, mut requests) = (0.0, 0.0);
    let mut prices = vec![unit; GRID];
    for i in (0..GRID).rev() {
        let n = traffic.before((i as u64 + 1) * cell) - traffic.before(i as u64 * cell);
        money += n * by_hour[i * 24 / GRID];
        requests += n;
        if requests > 0.0 {
            prices[i] = money / requests;
        }
    }
    prices
}
