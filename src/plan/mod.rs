//! Knowledge available before the day: forecast supply, the contracts' demands, prices of requests.
//!
//! The plan is made from the training days and the forecast of the day to be served. The main process makes it first, it is
//! stored in the run directory, and every policy file contains it, because serving needs the same knowledge.
//!
//! - [`forecast`]: traffic and supply curves. [`bound`]: dual prices and the hindsight bound.
//! - [`KnownContract`]: statistics of a contract on the training days.
//! - [`transport`]: the dual of the transport problem that the bound and the receding horizon share. [`sample`]: requests of the
//!   training days. [`tuned`]: results of tuning.
//! - [`graph`]: supply and contracts joined; on it [`hwm`] and [`shale`] choose play probabilities, and [`shortage`] finds the
//!   over-booked contracts. [`day_plan`]: all of that for the day to be served.
//! - [`volume`]: the learned deviation of traffic from its forecast.
//! - [`cache`]: finished plans, kept for the next start. [`seen`]: the days used for a plan, by their content.
//! - [`Plan`]: all knowledge from the training days, and the results of tuning.

mod amount;
pub mod bound;
pub mod cache;
pub mod day_plan;
mod experience;
pub mod forecast;
pub mod graph;
pub mod hwm;
pub mod sample;
pub mod seen;
pub mod shale;
pub mod shortage;
pub mod transport;
pub mod tuned;
pub mod volume;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::log::CompiledLog;
use crate::log::compiled::Contract;
use amount::is_amount;
pub use bound::{Bound, hindsight_bound, weighted_bound};
pub use day_plan::{Allocation, DayAhead, DayPlan};
pub use experience::KnownContract;
pub use forecast::{Forecast, GRID, Supply, Time};
pub use graph::Graph;
pub use hwm::Hwm;
pub use sample::Sample;
pub use seen::{Seen, SeenDay, Use};
pub use shale::Shale;
pub use transport::Transport;
pub use tuned::{Horizon, PacingGains, PidGains, Tuned};
pub use volume::{DayVolume, Deviation, VolumeModel};

const FORMAT: u32 = 2;

/// Name of the plan in its directory.
const FILE: &str = "plan.json";

/// Knowledge from the training days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub format: u32,
    /// Mean best auction worth of a request, minor units per impression: the unit of prices everywhere. If
    /// no day has an auction, the mean over the contracts of the larger of penalty and click worth.
    pub price_unit: f64,
    /// Mean best auction worth by local hour, 24 values.
    pub price_by_hour: Vec<f64>,
    /// Mean predicted click probability of the best auction entry.
    pub auction_pctr: f64,
    /// Traffic estimated from the training days; used for days without an inventory of their own.
    pub forecast: Forecast,
    /// Contracts of the training days by ad id.
    pub contracts: BTreeMap<u64, KnownContract>,
    /// Mean over the contracts, for those never seen.
    pub unseen: KnownContract,
    /// Sample of the training days' requests, for policies that look ahead.
    pub sample: Arc<Sample>,
    /// Results of tuning the baselines; `None` before it.
    pub tuned: Option<Tuned>,
    /// Tuned parameters of baselines that predict deliveries instead of waiting for them; `None` if the planned delay is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned_predicting: Option<Tuned>,
    /// Learned deviation of traffic from its forecast; `None` before it is learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Arc<VolumeModel>>,
    /// Values that the plan, and policies with it, were made at: `logged`, `truth`, `posterior`, or `values:` and the name of a model.
    #[serde(default = "logged", skip_serializing_if = "is_logged")]
    pub told: String,
    /// Longest time until a delivery is observed that the plan, and policies with it, were tuned for, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub feedback_delay_s: f64,
    pub days: Vec<PlannedDay>,
    /// Days used for this plan and for policies trained with it; empty in files of older programs.
    #[serde(default)]
    pub seen: Seen,
    /// Day to be served; `None` until [`Plan::serve`].
    #[serde(default)]
    pub served: Option<DayPlan>,
}

/// Values of the log.
fn logged() -> String {
    "logged".to_owned()
}

fn is_logged(told: &str) -> bool {
    told == logged()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// A training day behind the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedDay {
    pub log: String,
    /// Empty in files of older programs.
    #[serde(default)]
    pub date: String,
    /// [`CompiledLog::content`].
    #[serde(default)]
    pub content: Option<String>,
    pub requests: u64,
    /// Mean best auction worth, minor units per impression.
    pub mean_best: f64,
    /// Minor units.
    pub upper_bound: f64,
    /// Minor units.
    pub stake: f64,
    /// Dual price of each contract, minor units per impression, by ad id.
    pub prices: BTreeMap<u64, f64>,
}

impl Plan {
    /// Plans from the training days; prices are those of each day's hindsight bound.
    ///
    /// # Errors
    /// If there is no training day.
    pub fn from_days(logs: &[&CompiledLog], rate_seed: u64) -> anyhow::Result<Self> {
        if logs.is_empty() {
            bail!("a plan needs at least one training day");
        }
        let mut days = Vec::new();
        let mut seen = Seen::default();
        logs.iter().for_each(|log| seen.add(log, Use::Train));
        let mut hour_sum = [0.0; 24];
        let mut hour_n = [0u64; 24];
        let (mut pctr_sum, mut pctr_n) = (0.0, 0u64);
        let bounds: Vec<Bound> = logs.iter().map(|log| hindsight_bound(log, rate_seed)).collect();
        for (log, bound) in logs.iter().zip(&bounds) {
            let mut day_sum = 0.0;
            for r in log.requests() {
                let hour = ((r.ts_ms - log.day().start_ms) / 3_600_000).min(23) as usize;
                hour_sum[hour] += r.best;
                hour_n[hour] += 1;
                day_sum += r.best;
                if let Some(first) = log.auctions(&r).first() {
                    pctr_sum += first.pctr;
                    pctr_n += 1;
                }
            }
            days.push(PlannedDay {
                log: log.name().to_owned(),
                date: log.day().date.clone(),
                content: log.content(),
                requests: log.requests().len() as u64,
                mean_best: day_sum / log.requests().len() as f64,
                upper_bound: bound.upper,
                stake: bound.stake,
                prices: log.contracts().iter().map(|c| c.ad_id).zip(bound.prices.iter().copied()).collect(),
            });
        }
        let known: Vec<(&CompiledLog, &Bound)> = logs.iter().copied().zip(&bounds).collect();
        let (contracts, unseen) = experience::learn(&known, rate_seed);
        let requests: u64 = hour_n.iter().sum();
        let total: f64 = hour_sum.iter().sum();
        let price_unit = if total > 0.0 { total / requests as f64 } else { contract_unit(logs) };
        let price_by_hour = (0..24)
            .map(|h| {
                // An hour with few requests is shrunk to the whole day's mean, with the weight of 50 requests.
                (hour_sum[h] + 50.0 * price_unit) / (hour_n[h] as f64 + 50.0)
            })
            .collect();
        Ok(Self {
            format: FORMAT,
            price_unit,
            price_by_hour,
            auction_pctr: if pctr_n > 0 { pctr_sum / pctr_n as f64 } else { 0.0 },
            forecast: Forecast::from_logs(logs),
            contracts,
            unseen,
            sample: Arc::new(Sample::of_days(logs)),
            tuned: None,
            tuned_predicting: None,
            volume: None,
            told: logged(),
            feedback_delay_s: 0.0,
            days,
            seen,
            served: None,
        })
    }

    /// Plans the day to be served.
    pub fn serve(&mut self, ahead: &DayAhead) {
        let forecast = ahead.forecast.as_ref().unwrap_or(&self.forecast);
        let graph = self.graph(forecast, &ahead.contracts, ahead.day.start_ms);
        self.served = Some(DayPlan::of(ahead, forecast, &graph));
    }

    /// Returns the supply-demand graph of a day's contracts, with the training days' presence.
    pub fn graph(&self, forecast: &Forecast, contracts: &[Contract], day_start_ms: u64) -> Graph {
        Graph::new(forecast, contracts, day_start_ms, |c| self.known(c.ad_id).presence)
    }

    /// Returns the sample of the planned days without a training day's own requests, because planning from them would be too
    /// easy. The day is found by its content, else by its date (a window of a planned day), else by its name. Another day
    /// leaves the whole sample.
    pub fn sample_without(&self, log: &CompiledLog) -> Sample {
        let content = log.content();
        let find = |is_it: &dyn Fn(&PlannedDay) -> bool| self.days.iter().position(is_it);
        let own = find(&|day| day.content.is_some() && day.content == content)
            .or_else(|| find(&|day| day.date == log.day().date))
            .or_else(|| find(&|day| day.content.is_none() && day.log == log.name()));
        own.map_or_else(|| (*self.sample).clone(), |day| self.sample.without(day))
    }

    /// Returns the statistics of a contract, or the mean if it is new.
    pub fn known(&self, ad_id: u64) -> KnownContract {
        self.contracts.get(&ad_id).copied().unwrap_or(self.unseen)
    }

    /// Returns the expected click probability of a contract: the training days', else the control table's.
    pub fn pctr(&self, contract: &Contract) -> f64 {
        self.contracts.get(&contract.ad_id).map(|known| known.pctr).or(contract.pctr).unwrap_or(self.unseen.pctr)
    }

    /// Returns the training days' price of a contract, minor units per impression.
    pub fn static_price(&self, ad_id: u64, penalty: f64) -> f64 {
        let share = self.known(ad_id).price_share;
        if penalty > 0.0 { share * penalty } else { share }
    }

    /// Returns a plan without knowledge, for policies that need no plan.
    pub fn empty() -> Self {
        Self {
            format: FORMAT,
            price_unit: 1.0,
            price_by_hour: vec![1.0; 24],
            auction_pctr: 0.0,
            forecast: Forecast { nodes: vec![], curves: vec![] },
            contracts: BTreeMap::new(),
            unseen: KnownContract::NOTHING,
            sample: Arc::default(),
            tuned: None,
            tuned_predicting: None,
            volume: None,
            told: logged(),
            feedback_delay_s: 0.0,
            days: vec![],
            seen: Seen::default(),
            served: None,
        }
    }

    /// Returns the plan's unit of money alone, for policies that must not know its training days.
    pub fn unit_only(self) -> Self {
        Self { price_unit: self.price_unit, price_by_hour: vec![self.price_unit; 24], ..Self::empty() }
    }

    /// Reads a plan: a file, or that of a directory: a run, or its `plan`.
    ///
    /// # Errors
    /// If the file is unreadable, is not a plan, or has another format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let within = [FILE.into(), Path::new("plan").join(FILE)].map(|file: PathBuf| path.join(file));
        let path = within.iter().find(|file| file.is_file()).map_or(path, PathBuf::as_path);
        let text = crate::files::read(path, crate::files::MOST)
            .with_context(|| format!("cannot read the plan {}", path.display()))?;
        let plan: Self =
            serde_json::from_slice(&text).with_context(|| format!("{} is not a plan file", path.display()))?;
        plan.check().with_context(|| format!("{} cannot be used", path.display()))?;
        Ok(plan)
    }

    /// Checks what parsing cannot.
    ///
    /// # Errors
    /// If the format differs, a length is wrong, or a number is not finite.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.format != FORMAT {
            bail!("plan format {}, this program reads {FORMAT}; make the plan again", self.format);
        }
        if self.price_by_hour.len() != 24
            || !self.price_by_hour.iter().all(|&v| is_amount(v))
            || !(is_amount(self.price_unit) && self.price_unit > 0.0)
        {
            bail!("the plan's prices are malformed; make the plan again");
        }
        if !is_amount(self.auction_pctr) || !self.contracts.values().chain([&self.unseen]).all(KnownContract::is_sound)
        {
            bail!("what the plan knows of contracts is malformed; make the plan again");
        }
        if ![self.tuned, self.tuned_predicting].iter().flatten().all(Tuned::is_sound) {
            bail!("the plan's tuned parameters are malformed; make the plan again");
        }
        if !self.volume.iter().all(|volume| volume.is_sound()) {
            bail!("what the plan knows of the volume to come is malformed; make the plan again");
        }
        if !self.served.iter().flat_map(|day| day.contracts.values()).all(Allocation::is_sound) {
            bail!("the plan's day curves are malformed; make the plan again");
        }
        self.forecast.check()?;
        self.sample.check()
    }

    /// Writes the plan as JSON.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.to_json()).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain values serialise")
    }
}

/// Returns a money unit for days without auctions.
fn contract_unit(logs: &[&CompiledLog]) -> f64 {
    let worths: Vec<f64> = logs
        .iter()
        .flat_map(|l| l.contracts())
        .map(|c| c.penalty.max(c.mean_click_worth()))
        .filter(|w| *w > 0.0)
        .collect();
    if worths.is_empty() { 1.0 } else { worths.iter().sum::<f64>() / worths.len() as f64 }
}
