//! Result of a comparison on a day: a row for each policy, the bound, and the policies' prior knowledge of the day.

use serde::{Deserialize, Serialize};

use crate::plan::Use;

use super::bootstrap::Block;
use super::measure::{ContractDelivery, Market};

/// Kind of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Baseline,
    /// Chosen on the validation days of its run.
    Trained,
    /// Planner and controller without learned parts.
    Untrained,
    /// The policy before its run's first update.
    Start,
    /// The policy after its run's last update.
    Last,
    /// Knows the process that the day was drawn from.
    Informed,
    /// Knows the future.
    Oracle,
}

/// A policy that was trained or chosen on the day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The policy's name, or `baselines`: the plan that they were tuned with.
    pub policy: String,
    pub used: Use,
    /// Name of the day at that time.
    pub log: String,
}

/// A policy to which the day is partly new.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unknown {
    /// The policy's name, or `baselines`.
    pub policy: String,
    /// Number of the day's contracts that owe impressions, and of those among them that no training day had.
    pub contracts: usize,
    pub unknown_contracts: usize,
    /// Share of the unknown ones in the owed impressions.
    pub owed_share: f64,
    /// Share of the requests whose slot or region no training day had.
    pub traffic_share: f64,
}

/// One policy on one day. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    pub name: String,
    pub kind: Kind,
    /// Row with the same policy: the start of its run, if no update beat it on the validation days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<String>,
    pub j: f64,
    pub share: Option<f64>,
    pub gap: Option<f64>,
    pub shortage_rate: f64,
    pub auction_revenue: f64,
    /// Minor units per 1,000 impressions.
    pub mean_auction_ecpm: f64,
    pub mean_contract_ctr: f64,
    pub contract_impressions: u64,
    pub auction_impressions: u64,
    pub unfilled: u64,
    /// 95 % block-bootstrap interval of the share over the hours of the day.
    pub share_interval: Option<[f64; 2]>,
    /// Means over the contracts, weighted by the impressions owed.
    pub curve_deviation: Option<f64>,
    pub roughness: Option<f64>,
    pub contracts: Vec<ContractDelivery>,
    /// Blocks that the interval is computed from.
    #[serde(skip)]
    pub blocks: Vec<Block>,
    /// Impressions of each contract by quarter hour.
    #[serde(skip)]
    pub quarters: Vec<Vec<u32>>,
    /// Mean bid of the contracts that won, by quarter hour, in units of eCPM.
    #[serde(skip)]
    pub bids: Vec<Option<f64>>,
}

/// The bound of a day.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BoundReport {
    /// Lowest upper bound found on any policy's J.
    pub ub: f64,
    /// J of serving with the prices that prove it.
    pub primal: f64,
    /// `S = sum penalty * owed`.
    pub stake: f64,
}

#[cfg(test)]
impl DayReport {
    /// A day on which each policy earns its share of the bound in every one of `hours`.
    pub fn sample(hours: usize, shares: &[(&str, Kind, f64)]) -> Self {
        let policy = |&(name, kind, share): &(&str, Kind, f64)| PolicyReport {
            name: name.into(),
            kind,
            equals: None,
            j: share,
            share: Some(share),
            gap: Some(1.0 - share),
            shortage_rate: 0.0,
            auction_revenue: 0.0,
            mean_auction_ecpm: 0.0,
            mean_contract_ctr: 0.0,
            contract_impressions: 0,
            auction_impressions: 0,
            unfilled: 0,
            share_interval: None,
            curve_deviation: None,
            roughness: None,
            contracts: vec![],
            blocks: vec![Block { earned: share, bound: 1.0 }; hours],
            quarters: vec![],
            bids: vec![],
        };
        Self {
            log: "day".into(),
            told: "logged".into(),
            judged: "logged".into(),
            stress: None,
            requests: hours as u64,
            quarantined: 0,
            unfilled: 0,
            rate_seed: 0,
            contracts_declared: false,
            seen: vec![],
            unknown: vec![],
            bound: BoundReport { ub: 1.0, primal: 1.0, stake: 0.0 },
            policies: shares.iter().map(policy).collect(),
            planned: vec![],
            market: Market::default(),
        }
    }
}

/// All policies on one day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DayReport {
    pub log: String,
    /// Values that plan and policies saw, and values that everything here is counted with.
    pub told: String,
    pub judged: String,
    /// Stress on the day, if any.
    pub stress: Option<String>,
    pub requests: u64,
    pub quarantined: u64,
    /// Requests on which no policy could show anything.
    pub unfilled: u64,
    pub rate_seed: u64,
    /// Whether the importer declared auction ads to be contracts.
    pub contracts_declared: bool,
    /// Policies that were trained or chosen on the day.
    #[serde(default)]
    pub seen: Vec<Seen>,
    /// Policies to which the day is partly new.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    pub bound: BoundReport,
    pub policies: Vec<PolicyReport>,
    /// Planned share of each contract's delivery before every quarter hour and after the last; empty if nothing was forecast.
    #[serde(skip)]
    pub planned: Vec<Vec<f64>>,
    /// The auction's prices over the day.
    #[serde(skip)]
    pub market: Market,
}
