//! The day that is to be served: what its directory announces, and what is planned for it.

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
    /// `None`: the plan's.
    pub forecast: Option<Forecast>,
}

impl DayAhead {
    /// Reads `control` and `inventory` of a log directory; its `track_log` is never opened and need not be there.
    ///
    /// Without a `day.toml` it is taken for the day after `last`.
    ///
    /// # Errors
    /// No directory, no `control`, or a malformed file.
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

    /// The contracts of a logged day, as if it were to be served again.
    pub fn again(log: &CompiledLog) -> Self {
        Self {
            name: log.name().to_owned(),
            day: log.day().clone(),
            contracts: log.contracts().to_vec(),
            forecast: None,
        }
    }
}

/// The plan of the day that is to be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedDay {
    /// Directory that names the contracts.
    pub log: String,
    pub date: String,
    /// Whether the forecast is the day's own inventory; else it is the training days' estimate.
    pub own_inventory: bool,
    /// Forecast requests of the day.
    pub requests: f64,
    /// By ad id.
    pub contracts: BTreeMap<u64, Allocation>,
}

/// What is planned for one contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// Place in the allocation order, from 0: the scarcest first.
    pub rank: u32,
    /// Impressions owed.
    pub demand: f64,
    /// Forecast page views in whose queue it stands: targeted, in flight, times presence and rate.
    pub supply: f64,
    /// How often that supply is booked when every contract spreads evenly ([`super::Graph::contention`]).
    pub contention: f64,
    /// Play probability by [`Hwm`].
    pub theta_hwm: f64,
    /// Play probability by [`Shale`] on a request that nobody else wants.
    pub theta_shale: f64,
    /// Impressions that HWM plans to deliver.
    pub planned: f64,
    /// Impressions that nobody can deliver under the forecast; see [`shortage`] for how it is shared.
    pub unavoidable_shortage: f64,
    /// Minor units per missing impression.
    pub penalty: f64,
    /// Planned impressions in each of [`GRID`] quarter hours.
    pub curve: Vec<f32>,
}

impl Allocation {
    /// Whether the curve is one: of all quarter hours, and of amounts, which text need not hold.
    pub(super) fn is_sound(&self) -> bool {
        self.curve.len() == GRID && self.curve.iter().all(|&v| is_amount(v.into()))
    }

    /// What the unavoidable shortage costs, minor units.
    pub fn unavoidable_cost(&self) -> f64 {
        self.unavoidable_shortage * self.penalty
    }

    /// The end of the quarter hour by which 99 % of the planned impressions are delivered, minutes from midnight; `None` where
    /// nothing is planned.
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

impl ServedDay {
    /// Plans a day ahead by its forecast; `graph` joins that with its contracts.
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

    /// Contracts with an unavoidable shortage, the costliest first.
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
