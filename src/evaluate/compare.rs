//! Replays policies side by side on a day, beside the hindsight bound.

use serde::Serialize;

use crate::env::DayModel;
use crate::plan::hindsight_bound;
use crate::policy::baselines::FixedPrices;
use crate::policy::{Policy, ReplayOptions, Shown, Totals, replay_day};

/// What a policy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Baseline,
    Trained,
    /// Knows the future.
    Oracle,
}

/// A policy that takes part.
pub struct Contender {
    pub name: String,
    pub kind: Kind,
    pub policy: Box<dyn Policy>,
}

/// One policy on one day. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyReport {
    pub name: String,
    pub kind: Kind,
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
}

/// The bound of a day.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BoundReport {
    /// The least upper bound found on any policy's J.
    pub ub: f64,
    /// J of serving with the prices that prove it.
    pub primal: f64,
    /// `S = sum penalty * owed`.
    pub stake: f64,
}

/// All policies on one day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DayReport {
    pub log: String,
    pub requests: u64,
    pub quarantined: u64,
    /// Requests on which nothing could be shown whatever a policy did.
    pub unfilled: u64,
    pub rate_seed: u64,
    /// Whether the importer declared auction ads to be contracts.
    pub contracts_declared: bool,
    pub bound: BoundReport,
    pub policies: Vec<PolicyReport>,
}

impl PolicyReport {
    /// `share`: that of the day's bound.
    pub fn new(name: &str, kind: Kind, totals: &Totals, share: Option<f64>) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            j: totals.j,
            share,
            gap: share.map(|s| 1.0 - s),
            shortage_rate: totals.shortage_rate(),
            auction_revenue: totals.auction_revenue,
            mean_auction_ecpm: totals.mean_auction_ecpm(),
            mean_contract_ctr: totals.mean_contract_ctr(),
            contract_impressions: totals.contract_impressions,
            auction_impressions: totals.auction_impressions,
            unfilled: totals.unfilled,
        }
    }
}

impl BoundReport {
    /// The part of the bound that total benefit `j` reaches; `None` where nothing was at stake.
    pub fn share(&self, j: f64) -> Option<f64> {
        let whole = self.ub + self.stake;
        (whole != 0.0).then(|| (j + self.stake) / whole)
    }
}

/// Replays every contender and the oracle on a day; `watch` sees each decision with the policy's name.
///
/// # Errors
/// Whatever `watch` returns.
pub fn compare_day(
    day: &DayModel,
    contenders: &mut [Contender],
    options: ReplayOptions,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<DayReport> {
    let bound = hindsight_bound(&day.log, options.rate_seed);
    let mut failed = Ok(());
    let mut replay = |name: &str, policy: &mut dyn Policy, options: ReplayOptions| {
        replay_day(day, policy, options, &mut |shown| {
            if failed.is_ok() {
                failed = watch(name, shown);
            }
        })
    };
    let mut policies = Vec::new();
    for c in contenders.iter_mut() {
        let totals = replay(&c.name, &mut *c.policy, options);
        policies.push(PolicyReport::new(&c.name, c.kind, &totals, bound.share(totals.j)));
    }
    // The oracle knows the day; delayed feedback takes nothing from it.
    let prompt = ReplayOptions { feedback_delay_s: 0.0, ..options };
    let oracle = replay("oracle", &mut FixedPrices::oracle(&bound), prompt);
    policies.push(PolicyReport::new("oracle", Kind::Oracle, &oracle, bound.share(oracle.j)));
    failed?;
    Ok(DayReport {
        log: day.log.name().to_owned(),
        requests: day.log.requests().len() as u64,
        quarantined: day.log.counts().quarantined,
        unfilled: unfillable(day, options.rate_seed),
        rate_seed: options.rate_seed,
        contracts_declared: day.log.contracts_declared(),
        bound: BoundReport { ub: bound.upper, primal: oracle.j, stake: bound.stake },
        policies,
    })
}

/// Replays one more contender on a day whose bound is known; `day` may carry another plan's knowledge of the same log.
///
/// # Errors
/// Whatever `watch` returns.
pub fn replay_one(
    day: &DayModel,
    mut contender: Contender,
    options: ReplayOptions,
    bound: &BoundReport,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<PolicyReport> {
    let mut failed = Ok(());
    let totals = replay_day(day, &mut *contender.policy, options, &mut |shown| {
        if failed.is_ok() {
            failed = watch(&contender.name, shown);
        }
    });
    failed?;
    Ok(PolicyReport::new(&contender.name, contender.kind, &totals, bound.share(totals.j)))
}

/// Requests without an auction ad and without a contract whose draw passed.
fn unfillable(day: &DayModel, rate_seed: u64) -> u64 {
    let log = &day.log;
    let none = |r: &&crate::log::Request| {
        log.auctions(r).is_empty()
            && !log.entries(r).iter().any(|e| {
                let c = &log.contracts()[e.contract as usize];
                c.left() > 0 && crate::log::draw::passes(rate_seed, r.request_id, c.ad_id, c.rate)
            })
    };
    log.requests().iter().filter(none).count() as u64
}
