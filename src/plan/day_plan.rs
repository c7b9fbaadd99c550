//! The day to be served: its announced contracts and forecast, and its plan.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::log::compiled::Contract;
use crate::log::day::{self, Day};
use crate::log::schema::DAY_MS;
use crate::log::{CompiledLog, LogError, control, table};

use super::amount::is_amount;
use super::forecast::{Forecast, GRID};
use super::graph::Graph;
use super::hwm::Hwm;
use super::shale::{Rounds, Shale};
use super::shortage;

/// A day before it begins: its contracts, and the forecast that came with it.
#[derive(Debug, Clone)]
pub struct DayAhead {
    pub name: String,
    pub day: Day,
    pub contracts: Vec<Contract>,
    /// `None` for the plan's.
    pub forecast: Option<Forecast>,
}

impl DayAhead {
    /// Reads `control` and `inventory` of a log directory; its `track_log` is never opened and may be missing.
    ///
    /// Without a `day.toml`, the date is that of the day after `last`.
    ///
    /// # Errors
    /// If the directory or `control` is missing, or a file is malformed.
    pub fn read(dir: &Path, last: &Day) -> Result<Self, LogError> {
        if !dir.is_dir() {
            let reason = "is not a directory; name the log directory of the day to be served".into();
            return Err(LogError::Format { path: dir.to_owned(), reason });
        }
        let path = table::require(dir, "control", control::COLUMNS)?;
        let day = Day::read(dir)?.unwrap_or_else(|| {
            tracing::warn!("{}: no day.toml, taken for the day after the last training day", dir.display());
            let date = day::parse_date(&last.date).map_or_else(|_| last.date.clone(), |n| day::format_date(n + 1));
            Day { date, start_ms: last.end_ms(), length_ms: DAY_MS }
        });
        let contracts = control::read(&path, &day)?.iter().map(Contract::before_the_day).collect();
        let name = dir.canonicalize().ok().and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()));
        Ok(Self {
            name: name.unwrap_or_else(|| dir.display().to_string()),
            day,
            contracts,
            forecast: Forecast::of_directory(dir)?,
        })
    }

    /// Returns the contracts of a logged day, as if it were to be served again.
    pub fn again(log: &CompiledLog) -> Self {
        Self {
            name: log.name().to_owned(),
            day: log.day().clone(),
            contracts: log.contracts().to_vec(),
            forecast: None,
        }
    }
}

/// The plan of the day to be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DayPlan {
    /// Directory that contains the contracts.
    pub log: String,
    pub date: String,
    /// Whether the forecast is the day's own inventory; else it is the training days' estimate.
    pub own_inventory: bool,
    /// Forecast requests of the day.
    pub requests: f64,
    /// By ad id.
    pub contracts: BTreeMap<u64, Allocation>,
}

/// The plan for one contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// Rank in the allocation order, from 0: the scarcest first.
    pub rank: u32,
    /// Impressions owed.
    pub demand: f64,
    /// Forecast page views whose queue contains it: targeted, in flight, times presence and rate.
    pub supply: f64,
    /// Number of times that supply is booked when every contract spreads evenly ([`super::Graph::contention`]).
    pub contention: f64,
    /// Play probability by [`Hwm`].
    pub theta_hwm: f64,
    /// Play probability by [`Shale`] on a request without other contracts.
    pub theta_shale: f64,
    /// Impressions that HWM plans to deliver.
    pub planned: f64,
    /// Impressions that cannot be delivered under the forecast; [`shortage`] explains how contracts share them.
    pub unavoidable_shortage: f64,
    /// Minor units per missing impression.
    pub penalty: f64,
    /// Planned impressions in each of [`GRID`] quarter hours.
    pub curve: Vec<f32>,
}

impl Allocation {
    /// Whether the curve has all quarter hours and valid amounts, which parsing does not guarantee.
    pub(super) fn is_sound(&self) -> bool {
        self.curve.len() == GRID && self.curve.iter().all(|&v| is_amount(v.into()))
    }

    /// Returns the cost of the unavoidable shortage, minor units.
    pub fn unavoidable_cost(&self) -> f64 {
        self.unavoidable_shortage * self.penalty
    }

    /// Returns the end of the quarter hour by which 99 % of the planned impressions are delivered, minutes from midnight;
    /// `None` if nothing is planned.
    pub fn done_by(&self) -> Option<u32> {
        let whole: f64 = self.curve.iter().map(|&n| f64::from(n)).sum();
        let mut sum = 0.0;
        let cell = self.curve.iter().position(|&n| {
            sum += f64::from(n);
            sum >= 0.99 * whole
        });
        cell.filter(|_| whole > 0.0).map(|cell| (cell as u32 + 1) * (24 * 60 / GRID as u32))
    }
}

impl DayPlan {
    /// Plans a day from its forecast; `graph` joins the forecast with the day's contracts.
    pub fn of(ahead: &DayAhead, forecast: &Forecast, graph: &Graph) -> Self {
        let hwm = Hwm::of(graph);
        let shale = Shale::of(graph, &hwm.order, Rounds::default());
        let missing = shortage::unavoidable(graph, &hwm);
        let contention = graph.contention();
        let ranks = hwm.ranks();
        let curves = graph.curves(forecast, &hwm.flow);
        let contracts = graph
            .terms()
            .iter()
            .enumerate()
            .map(|(j, terms)| {
                let allocation = Allocation {
                    rank: ranks[j],
                    demand: terms.demand,
                    supply: terms.supply,
                    contention: contention[j],
                    theta_hwm: hwm.theta[j],
                    theta_shale: shale.theta(j),
                    planned: hwm.planned[j],
                    unavoidable_shortage: missing[j],
                    penalty: terms.penalty,
                    curve: curves[j].to_vec(),
                };
                (terms.ad_id, allocation)
            })
            .collect();
        Self {
            log: ahead.name.clone(),
            date: ahead.day.date.clone(),
            own_inventory: ahead.forecast.is_some(),
            requests: forecast.traffic().total(),
            contracts,
        }
    }

    /// Returns the contracts with an unavoidable shortage, the costliest first.
    pub fn over_booked(&self) -> Vec<(u64, &Allocation)> {
        let mut short: Vec<(u64, &Allocation)> =
            self.contracts.iter().filter(|(_, a)| a.unavoidable_shortage > 0.0).map(|(&id, a)| (id, a)).collect();
        short.sort_by(|(_, a), (_, b)| {
            let by_cost = b.unavoidable_cost().total_cmp(&a.unavoidable_cost());
            by_cost.then(b.unavoidable_shortage.total_cmp(&a.unavoidable_shortage))
        });
        short
    }
}
