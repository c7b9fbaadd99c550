//! Replays several policies on a day and compares them with the hindsight bound.

use std::sync::{Arc, Mutex};

use anyhow::bail;

use crate::env::{DayModel, Delay, Replay, Vocabulary};
use crate::plan::{Bound, Plan, hindsight_bound};
use crate::policy::baselines::{self, FixedPrices};
use crate::policy::informed::{self, Informed};
use crate::policy::witness::{Newest, Ranking, Scored, Watcher, Witness};
use crate::policy::{Policy, ReplayOptions, Shown, Totals, replay_day};
use crate::settings::Settings;
use crate::values::Told;

use super::TestDay;
use super::bootstrap::share_interval;
use super::entry::{Entry, START};
use super::familiar;
use super::logged::{self, Logged};
use super::measure::{DayMeasure, Meter};
use super::report::{BoundReport, DayReport, Kind, PolicyReport};

/// A policy in a comparison.
pub struct Contender {
    pub name: String,
    pub kind: Kind,
    pub policy: Box<dyn Policy>,
}

/// Shared between the observed policy and the writer of its decisions.
#[derive(Clone, Default)]
struct SharedNewest(Arc<Mutex<Newest>>);

impl Watcher for SharedNewest {
    fn see(&mut self, replay: &Replay, ranked: &[Scored], features: &[f32]) {
        self.0.lock().expect("nobody panics with it").see(replay, ranked, features);
    }
}

/// A policy to be replayed.
struct Entrant<'a> {
    name: &'a str,
    kind: Kind,
    policy: &'a mut dyn Policy,
}

/// A day with its bound, on which policies are replayed one after the other.
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

    /// Replays a policy on the day; `day` may contain another plan's knowledge of the same log.
    fn replay(
        &self,
        day: &DayModel,
        entrant: Entrant,
        options: ReplayOptions,
        watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
    ) -> anyhow::Result<PolicyReport> {
        let Entrant { name, kind, policy } = entrant;
        let newest = SharedNewest::default();
        let mut watcher = newest.clone();
        let ranking = |shown: &Shown| newest.0.lock().expect("nobody panics with it").of(shown.request_id);
        if let Some(judged) = &self.judged {
            let (mut shown, mut rankings) = (Vec::new(), Vec::new());
            replay_day(day, &mut Witness::new(policy, &mut watcher), options, &mut |s| {
                rankings.push(ranking(&s));
                shown.push(s.ad);
            });
            return self.recount(judged, name, kind, &Logged { shown }, &rankings, watch);
        }
        let mut failed = Ok(());
        let mut meter = self.measure.meter();
        let totals = replay_day(day, &mut Witness::new(policy, &mut watcher), options, &mut |shown| {
            let shown = Shown { ranking: ranking(&shown), ..shown };
            meter.see(&shown);
            if failed.is_ok() {
                failed = watch(name, shown);
            }
        });
        failed?;
        Ok(self.row(name, kind, &totals, meter))
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
    fn logged(
        &self,
        day: &DayModel,
        logged: &Logged,
        watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
    ) -> anyhow::Result<PolicyReport> {
        self.recount(self.judged.as_ref().unwrap_or(day), logged::NAME, Kind::Baseline, logged, &[], watch)
    }

    /// Returns the row of the ads shown, counted at the values of `day`; `rankings` are those of the decisions, request by
    /// request, or empty.
    fn recount(
        &self,
        day: &DayModel,
        name: &str,
        kind: Kind,
        shown: &Logged,
        rankings: &[Option<Ranking>],
        watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
    ) -> anyhow::Result<PolicyReport> {
        let mut meter = self.measure.meter();
        let mut rankings = rankings.iter();
        let totals = shown.replay(day, &mut |shown| {
            let shown = Shown { ranking: rankings.next().copied().flatten(), ..shown };
            meter.see(&shown);
            watch(name, shown)
        })?;
        Ok(self.row(name, kind, &totals, meter))
    }

    /// Replays contenders and the oracle, and builds the day's report.
    fn report(
        &self,
        day: &DayModel,
        contenders: &mut [Contender],
        options: ReplayOptions,
        watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
    ) -> anyhow::Result<DayReport> {
        let mut policies = Vec::new();
        // No delay: the oracle knows the day, and a policy that predicts deliveries sees no delay.
        let prompt = ReplayOptions { delay: Delay::fixed(0.0), ..options };
        for c in contenders {
            let options = if c.name.ends_with(baselines::PREDICTING) { prompt } else { options };
            let entrant = Entrant { name: &c.name, kind: c.kind, policy: &mut *c.policy };
            policies.push(self.replay(day, entrant, options, watch)?);
        }
        let mut oracle = FixedPrices::oracle(&self.bound);
        let entrant = Entrant { name: "oracle", kind: Kind::Oracle, policy: &mut oracle };
        let oracle = self.replay(self.judged.as_ref().unwrap_or(day), entrant, prompt, watch)?;
        let primal = oracle.j;
        policies.push(oracle);
        Ok(DayReport {
            log: day.log.name().to_owned(),
            told: Told::Logged.to_string(),
            judged: Told::Logged.to_string(),
            stress: None,
            requests: day.log.requests().len() as u64,
            quarantined: day.log.counts().quarantined,
            unfilled: unfillable(day, options.rate_seed),
            rate_seed: options.rate_seed,
            contracts_declared: day.log.contracts_declared(),
            seen: vec![],
            unknown: vec![],
            bound: BoundReport { ub: self.bound.upper, primal, stake: self.bound.stake },
            policies,
            planned: self.measure.planned(),
            market: self.measure.market().clone(),
        })
    }
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
    policies: &[Entry],
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
        match baselines::named(name, plan, settings.baselines.interval_s) {
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
    let mut report = comparison.report(&base, &mut contenders, options, watch)?;
    report.stress = day.stress().map(ToString::to_string);
    (report.told, report.judged) = (day.told().to_string(), day.judge().to_string());
    if let Some(plan) = plan.filter(|_| !names.is_empty()) {
        report.seen.extend(familiar::seen(familiar::BASELINES, plan, day.content()));
        report.unknown.extend(familiar::unknown(familiar::BASELINES, plan, &Vocabulary::default(), day.log()));
    }
    let oracle = report.policies.pop();
    if names.iter().any(|n| n == logged::NAME) {
        match day.logged()? {
            Some(logged) => report.policies.push(comparison.logged(&base, &logged, watch)?),
            None => tracing::warn!(
                "left out: {} needs a joined_exposure in {}, and the day as it was logged",
                logged::NAME,
                day.dir().display()
            ),
        }
    }
    for Entry { name, kind, policy, is_start } in policies {
        if report.policies.iter().any(|p| p.name == *name) {
            bail!("two policies are called `{name}`; rename a run directory or file");
        }
        // The rows beside a chosen policy come from the same run.
        if matches!(kind, Kind::Trained | Kind::Baseline) {
            report.seen.extend(familiar::seen(name, policy.plan(), day.content()));
            report.unknown.extend(familiar::unknown(name, policy.plan(), &policy.vocabulary(), day.log()));
        }
        let own = day.model(policy.plan(), Arc::new(policy.vocabulary()));
        let entrant = Entrant { name, kind: *kind, policy: &mut *policy.policy() };
        let mut row = comparison.replay(&own, entrant, options, watch)?;
        row.equals = is_start.then(|| format!("{name}{START}"));
        report.policies.push(row);
    }
    report.policies.extend(oracle);
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
    Comparison::new(day, None, options.rate_seed).report(day, contenders, options, watch)
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
