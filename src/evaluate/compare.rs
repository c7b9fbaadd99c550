//! Replays policies side by side on a day, beside the hindsight bound.

use std::sync::Arc;

use anyhow::bail;
use serde::Serialize;

use crate::env::DayModel;
use crate::plan::{Plan, hindsight_bound};
use crate::policy::baselines::{self, FixedPrices};
use crate::policy::file::PolicyFile;
use crate::policy::{Policy, ReplayOptions, Shown, Totals, replay_day};
use crate::settings::Settings;

use super::TestDay;

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

fn report(name: &str, kind: Kind, totals: &Totals, share: Option<f64>) -> PolicyReport {
    PolicyReport {
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

/// Replays the named baselines, trained policies and the oracle on a day; `watch` sees each decision with the policy's
/// name.
///
/// Each trained policy is given its own plan's knowledge; baselines get `plan`. Without one, those that need it are left
/// out with a warning.
///
/// # Errors
/// Two policies of one name, and whatever `watch` returns.
pub fn compare(
    day: &TestDay,
    policies: &[(String, PolicyFile)],
    plan: Option<&Plan>,
    names: &[String],
    settings: &Settings,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<DayReport> {
    let options = ReplayOptions { rate_seed: settings.env.rate_seed, feedback_delay_s: settings.env.feedback_delay_s };
    // Without any plan the day itself only serves as a money unit for policies that need no knowledge.
    let bare;
    let base_plan = match plan {
        Some(plan) => plan,
        None => {
            bare = Plan::from_days(&[day.log()], options.rate_seed)?.unit_only();
            &bare
        }
    };
    let mut contenders = Vec::new();
    for name in names {
        match baselines::named(name, plan, settings.baselines.pid_interval_s) {
            Ok(policy) => contenders.push(Contender { name: name.clone(), kind: Kind::Baseline, policy }),
            Err(why) => tracing::warn!("left out: {why}"),
        }
    }
    let mut report = compare_day(&day.model(base_plan, Arc::default()), &mut contenders, options, watch)?;
    let oracle = report.policies.pop();
    for (name, file) in policies {
        if report.policies.iter().any(|p| p.name == *name) {
            bail!("two policies are called `{name}`; rename a run directory or file");
        }
        let own = day.model(&file.plan, Arc::new(file.spec.vocabulary.clone()));
        let contender = Contender { name: name.clone(), kind: Kind::Trained, policy: Box::new(file.policy()) };
        report.policies.push(replay_one(&own, contender, options, &report.bound, watch)?);
    }
    report.policies.extend(oracle);
    Ok(report)
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
        policies.push(report(&c.name, c.kind, &totals, bound.share(totals.j)));
    }
    // The oracle knows the day; delayed feedback takes nothing from it.
    let prompt = ReplayOptions { feedback_delay_s: 0.0, ..options };
    let oracle = replay("oracle", &mut FixedPrices::oracle(&bound), prompt);
    policies.push(report("oracle", Kind::Oracle, &oracle, bound.share(oracle.j)));
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
fn replay_one(
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
    let whole = bound.ub + bound.stake;
    let share = (whole != 0.0).then(|| (totals.j + bound.stake) / whole);
    Ok(report(&contender.name, contender.kind, &totals, share))
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
