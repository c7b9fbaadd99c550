//! Replays several policies on a day and compares them with the hindsight bound.

use std::sync::Arc;

use anyhow::bail;

use crate::env::{DayModel, Vocabulary};
use crate::plan::{Bound, Plan, hindsight_bound};
use crate::policy::baselines::{self, Oracle};
use crate::policy::informed::{self, Informed};
use crate::policy::{Policy, ReplayOptions, Shown, Totals};
use crate::settings::Settings;
use crate::values::Told;

use super::TestDay;
use super::bootstrap::share_interval;
use super::compared::{ComparedPolicy, START};
use super::familiar;
use super::logged::{self, Logged};
use super::measure::{DayMeasure, Meter};
use super::report::{BoundReport, DayReport, Kind, PolicyReport};
use super::together::{self, Entrant, Watch};

/// Name of the oracle's row.
const ORACLE: &str = "oracle";

/// A policy in a comparison.
pub struct Contender {
    pub name: String,
    pub kind: Kind,
    pub policy: Box<dyn Policy>,
}

/// A day with its bound, on which policies are replayed.
struct Comparison {
    bound: Bound,
    measure: DayMeasure,
    /// The day with the values that J is counted with, if policies see other values.
    judged: Option<DayModel>,
}

impl Comparison {
    /// `day` provides the curves that deliveries are measured against.
    fn new(day: &DayModel, judged: Option<DayModel>, rate_seed: u64) -> Self {
        let judge = judged.as_ref().unwrap_or(day);
        let bound = hindsight_bound(&judge.log, rate_seed);
        let measure = DayMeasure::new(judge, &bound, rate_seed);
        Self { bound, measure, judged }
    }

    /// Returns the oracle of `day`: it knows the day as it is judged.
    fn oracle(&self, day: &DayModel, rate_seed: u64) -> Oracle {
        Oracle::new(&self.bound, &self.judged.as_ref().unwrap_or(day).log, rate_seed)
    }

    /// Returns the oracle as an entrant: it sees every delivery at once.
    fn enter<'a>(&'a self, policy: &'a mut Oracle, day: &'a DayModel, options: ReplayOptions) -> Entrant<'a> {
        let options = options.seen_by(true);
        Entrant { name: ORACLE, kind: Kind::Oracle, policy, day: self.judged.as_ref().unwrap_or(day), options }
    }

    /// Replays policies, of which the oracle is the last, and returns their rows in the same order.
    fn replay(&self, mut entrants: Vec<Entrant>, watch: &mut Watch) -> anyhow::Result<Vec<PolicyReport>> {
        let names: Vec<(String, Kind)> = entrants.iter().map(|e| (e.name.to_owned(), e.kind)).collect();
        let judged = self.judged.as_ref();
        // The oracle replays another log than the policies that are told other values.
        let oracle = judged.and_then(|_| entrants.pop());
        let mut sums = together::replay(entrants, &self.measure, judged, watch)?;
        if let Some(oracle) = oracle {
            sums.extend(together::replay(vec![oracle], &self.measure, judged, watch)?);
        }
        let row = |((name, kind), (totals, meter)): ((String, Kind), _)| self.row(&name, kind, &totals, meter);
        Ok(names.into_iter().zip(sums).map(row).collect())
    }

    /// Returns the row of a policy, from its sums and the meter.
    fn row(&self, name: &str, kind: Kind, totals: &Totals, meter: Meter) -> PolicyReport {
        let share = self.bound.share(totals.j);
        let (blocks, delivery) = (meter.blocks(), meter.delivery());
        PolicyReport {
            name: name.to_owned(),
            kind,
            equals: None,
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
            share_interval: share.and_then(|_| share_interval(&[&blocks])),
            curve_deviation: delivery.curve_deviation,
            roughness: delivery.roughness,
            contracts: delivery.contracts,
            blocks,
            quarters: meter.quarters(),
            bids: meter.bids(),
        }
    }

    /// Returns the row of the ads that the live system showed on the day.
    fn logged(&self, day: &DayModel, logged: &Logged, watch: &mut Watch) -> anyhow::Result<PolicyReport> {
        let mut meter = self.measure.meter();
        let totals = logged.replay(self.judged.as_ref().unwrap_or(day), &mut |shown| {
            meter.see(&shown);
            watch(logged::NAME, shown)
        })?;
        Ok(self.row(logged::NAME, Kind::Baseline, &totals, meter))
    }

    /// Builds the day's report from the rows of its policies, of which the oracle's is the last.
    fn report(&self, day: &DayModel, policies: Vec<PolicyReport>, rate_seed: u64) -> DayReport {
        DayReport {
            log: day.log.name().to_owned(),
            told: Told::Logged.to_string(),
            judged: Told::Logged.to_string(),
            stress: None,
            requests: day.log.requests().len() as u64,
            quarantined: day.log.counts().quarantined,
            unfilled: unfillable(day, rate_seed),
            rate_seed,
            contracts_declared: day.log.contracts_declared(),
            seen: vec![],
            unknown: vec![],
            bound: BoundReport {
                ub: self.bound.upper,
                primal: policies.last().map_or(0.0, |oracle| oracle.j),
                stake: self.bound.stake,
            },
            policies,
            planned: self.measure.planned(),
            market: self.measure.market().clone(),
        }
    }
}

/// Returns contenders as entrants on `day`.
fn entrants<'a>(contenders: &'a mut [Contender], day: &'a DayModel, options: ReplayOptions) -> Vec<Entrant<'a>> {
    let entrant = |c: &'a mut Contender| {
        let options = options.seen_by(c.name.ends_with(baselines::PREDICTING));
        Entrant { name: &c.name, kind: c.kind, policy: &mut *c.policy, day, options }
    };
    contenders.iter_mut().map(entrant).collect()
}

/// Replays the named baselines, trained policies and the oracle on a day; `watch` is called with each decision and the policy's
/// name.
///
/// Each trained policy gets its own plan's knowledge; baselines get `plan`. Without one, baselines that need it are left
/// out with a warning.
///
/// # Errors
/// If two policies have one name, and any error of `watch`.
pub fn compare(
    day: &TestDay,
    policies: &[ComparedPolicy],
    plan: Option<&Plan>,
    names: &[String],
    settings: &Settings,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<DayReport> {
    let options = day.options(&settings.env);
    // Without any plan the day itself only provides a money unit for policies that need no knowledge.
    let bare;
    let base_plan = match plan {
        Some(plan) => plan,
        None => {
            bare = Plan::from_days(&[day.log()], options.rate_seed)?.unit_only();
            &bare
        }
    };
    let mut contenders = Vec::new();
    for name in names.iter().filter(|n| ![logged::NAME, informed::NAME].contains(&n.as_str())) {
        match baselines::named(name, plan) {
            Ok(policy) => contenders.push(Contender { name: name.clone(), kind: Kind::Baseline, policy }),
            Err(why) => tracing::warn!("left out: {why}"),
        }
    }
    if names.iter().any(|n| n == informed::NAME) {
        match day.known()? {
            Some(known) => contenders.push(Contender {
                name: informed::NAME.to_owned(),
                kind: Kind::Informed,
                policy: Box::new(Informed::new(known)),
            }),
            None => tracing::warn!(
                "left out: {} needs the world file that `admix data synth` writes beside the days, and a day as it was drawn",
                informed::NAME
            ),
        }
    }
    let base = day.model(base_plan, Arc::default());
    let judged = (!Arc::ptr_eq(&base.log, day.judged())).then(|| day.judged_model(base_plan));
    let comparison = Comparison::new(&base, judged, options.rate_seed);
    let mut oracle = comparison.oracle(&base, options.rate_seed);
    let mut own: Vec<(&ComparedPolicy, Box<dyn Policy>, DayModel)> = Vec::new();
    for entry in policies {
        let ComparedPolicy { name, policy, .. } = entry;
        let taken = names.iter().map(String::as_str).chain([ORACLE]).any(|other| other == name);
        if taken || own.iter().any(|(other, ..)| other.name == *name) {
            bail!("two policies are called `{name}`; rename a run directory or file");
        }
        let model = day.model(policy.plan(), Arc::new(policy.vocabulary())).seen_by(policy.predicts());
        own.push((entry, policy.policy(), model));
    }
    let baselines = contenders.len();
    let mut all = entrants(&mut contenders, &base, options);
    for (ComparedPolicy { name, kind, policy: stored, .. }, policy, day) in &mut own {
        let options = options.seen_by(stored.predicts());
        all.push(Entrant { name, kind: *kind, policy: &mut **policy, day, options });
    }
    all.push(comparison.enter(&mut oracle, &base, options));
    let mut rows = comparison.replay(all, watch)?;
    for (row, entry) in rows[baselines..].iter_mut().zip(policies) {
        row.equals = entry.is_start.then(|| format!("{}{START}", entry.name));
    }
    let mut report = comparison.report(&base, rows, options.rate_seed);
    report.stress = day.stress().map(ToString::to_string);
    (report.told, report.judged) = (day.told().to_string(), day.judge().to_string());
    if let Some(plan) = plan.filter(|_| !names.is_empty()) {
        report.seen.extend(familiar::seen(familiar::BASELINES, plan, day.content()));
        report.unknown.extend(familiar::unknown(familiar::BASELINES, plan, &Vocabulary::default(), day.log()));
    }
    if names.iter().any(|n| n == logged::NAME) {
        match day.logged()? {
            Some(logged) => report.policies.insert(baselines, comparison.logged(&base, &logged, watch)?),
            None => tracing::warn!(
                "left out: {} needs a joined_exposure in {} that can be used, and the day as it was logged",
                logged::NAME,
                day.dir().display()
            ),
        }
    }
    for ComparedPolicy { name, kind, policy, .. } in policies {
        // The rows beside a chosen policy come from the same run.
        if matches!(kind, Kind::Trained | Kind::Baseline) {
            report.seen.extend(familiar::seen(name, policy.plan(), day.content()));
            report.unknown.extend(familiar::unknown(name, policy.plan(), &policy.vocabulary(), day.log()));
        }
    }
    Ok(report)
}

/// Replays every contender and the oracle on a day; `watch` is called with each decision and the policy's name.
///
/// # Errors
/// Any error of `watch`.
pub fn compare_day(
    day: &DayModel,
    contenders: &mut [Contender],
    options: ReplayOptions,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<DayReport> {
    let comparison = Comparison::new(day, None, options.rate_seed);
    let mut oracle = comparison.oracle(day, options.rate_seed);
    let mut all = entrants(contenders, day, options);
    all.push(comparison.enter(&mut oracle, day, options));
    let rows = comparison.replay(all, watch)?;
    Ok(comparison.report(day, rows, options.rate_seed))
}

/// Counts the requests without an auction ad and without a contract whose draw passed.
fn unfillable(day: &DayModel, rate_seed: u64) -> u64 {
    let log = &day.log;
    let none = |r: &crate::log::Request| {
        log.auctions(r).is_empty()
            && !log.entries(r).iter().any(|e| {
                let c = &log.contracts()[e.contract as usize];
                c.left() > 0 && crate::log::draw::passes(rate_seed, r.request_id, c.ad_id, c.rate)
            })
    };
    log.requests().iter().filter(none).count() as u64
}
