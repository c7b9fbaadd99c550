//! Information on a day that is available before its first request: contracts, curves, prices and forecast.
//!
//! Replay and serving share it. A logged day ([`super::DayModel`]) adds the rows of its log, a server adds the requests that
//! arrive. Nothing here comes from the day's own traffic.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::log::compiled::Contract;
use crate::log::schema::DAY_MS;
use crate::log::targeting::Targeting;
use crate::plan::forecast::Kind;
use crate::plan::{Forecast, GRID, Graph, Horizon, Hwm, PacingGains, Plan, Sample, Supply, VolumeModel};

use super::vocabulary::Vocabulary;

/// A contract with the plan's information on it. Money is in minor units per impression.
#[derive(Debug, Clone)]
pub struct ContractModel {
    pub ad_id: u64,
    pub owed: f64,
    pub left: f64,
    pub penalty: f64,
    pub click_value: f64,
    /// Mean worth of an impression's predicted clicks.
    pub mean_click: f64,
    /// Largest value of one impression: penalty + mean click worth.
    pub stake: f64,
    /// Forecast requests on which it may be shown, cumulative over the day.
    pub supply: Supply,
    /// The supply weighted by when the training days' prices would have used it: the curve along which delivery is paced.
    pub pace: Supply,
    /// Expected best auction worth on its requests over that of all requests.
    pub market_ratio: f64,
    /// Price from the training days.
    pub price: f64,
    /// Play probability on requests with the contract in their queue: the control table's, else HWM's on the day's forecast.
    pub theta: f64,
    pub rate: f64,
    /// Share of the targeted requests in flight whose queue should contain it.
    pub presence: f64,
    /// Flight, milliseconds from midnight.
    pub start: u64,
    pub end: u64,
    pub targeting: Targeting,
    /// Index in the ad vocabulary.
    pub vocabulary: u32,
}

impl ContractModel {
    /// Returns the share of its demand that should be delivered before `offset` by the forecast supply; `None` without supply.
    pub fn planned_share(&self, offset: u64) -> Option<f64> {
        let total = self.supply.total();
        (total > 0.0).then(|| self.supply.before(offset) / total)
    }
}

/// A day as policies may know it before it begins. Money is in minor units per impression.
#[derive(Debug, Clone)]
pub struct KnownDay {
    /// Local midnight at which the day starts, Unix milliseconds.
    pub start_ms: u64,
    pub contracts: Vec<ContractModel>,
    pub traffic: Supply,
    /// Forecast page views of the day by kind of request.
    pub kinds: BTreeMap<Kind, f64>,
    /// Graph that joins forecast supply and contracts.
    pub graph: Graph,
    /// Contracts in HWM's allocation order.
    pub order: Vec<u32>,
    /// Expected best auction worth by hour.
    pub price_by_hour: Vec<f64>,
    /// The unit of money.
    pub unit: f64,
    /// Expected best auction worth over the traffic from each grid point to the end of the day.
    remaining_price: Vec<f64>,
    /// Sample of the training days' requests, as the market to expect, and the planning horizon that a policy uses with it.
    pub sample: Arc<Sample>,
    pub horizon: Horizon,
    /// Learned deviation of traffic from its forecast, used by policies that forecast the remaining volume.
    pub volume: Option<Arc<VolumeModel>>,
    /// Gains of the pacing controller on whole days.
    pub pacing: PacingGains,
    /// Gains and horizon of a policy that predicts deliveries, where they differ.
    predicting: Option<(PacingGains, Horizon)>,
    pub auction_pctr: f64,
    pub contract_pctr: f64,
    pub vocabulary: Arc<Vocabulary>,
}

impl KnownDay {
    /// Joins the contracts of a day that starts at `start_ms` with its forecast and a plan.
    pub fn new(
        contracts: &[Contract],
        start_ms: u64,
        forecast: &Forecast,
        plan: &Plan,
        vocabulary: Arc<Vocabulary>,
    ) -> Self {
        let traffic = forecast.traffic();
        let graph = plan.graph(forecast, contracts, start_ms);
        let Hwm { theta, order, .. } = Hwm::of(&graph);
        let contract_pctr = match contracts.len() {
            0 => 0.0,
            n => contracts.iter().map(|c| plan.pctr(c)).sum::<f64>() / n as f64,
        };
        let contracts = contracts
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
                    targeting: c.targeting.clone(),
                    vocabulary: vocabulary.ad(c.ad_id),
                }
            })
            .collect();
        let remaining_price = remaining_price(&traffic, &plan.price_by_hour, plan.price_unit);
        let tuned = plan.tuned.unwrap_or_default();
        Self {
            start_ms,
            contracts,
            traffic,
            kinds: forecast.by_kind(),
            graph,
            order,
            price_by_hour: plan.price_by_hour.clone(),
            unit: plan.price_unit,
            remaining_price,
            pacing: tuned.pacing,
            horizon: tuned.receding,
            predicting: plan.tuned_predicting.map(|tuned| (tuned.pacing, tuned.receding)),
            sample: plan.sample.clone(),
            volume: plan.volume.clone(),
            auction_pctr: plan.auction_pctr,
            contract_pctr,
            vocabulary,
        }
    }

    /// The same day for a policy that predicts deliveries.
    #[must_use]
    pub fn predicting(mut self) -> Self {
        if let Some((pacing, horizon)) = self.predicting {
            (self.pacing, self.horizon) = (pacing, horizon);
        }
        self
    }

    /// Returns the expected best auction worth over the traffic still to come.
    pub fn remaining_price(&self, offset: u64) -> f64 {
        let i = (offset as usize * GRID / DAY_MS as usize).min(GRID - 1);
        self.remaining_price[i]
    }
}

fn remaining_price(traffic: &Supply, by_hour: &[f64], unit: f64) -> Vec<f64> {
    let cell = DAY_MS / GRID as u64;
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
