//! The baselines: each does what it is named after, knows what it may, and bears days on which nothing is normal.

use std::collections::BTreeMap;
use std::sync::Arc;

use admix::env::{DayModel, Delay, Replay};
use admix::log::schema::{AdType, ControlRow, DAY_MS, QueueEntry, TrackRow};
use admix::plan::{Horizon, PacingGains, Plan, Sample, Tuned, hindsight_bound};
use admix::policy::baselines::{self, DualDescent, PassRate, Random, Receding};
use admix::policy::{Controller, Policy, ReplayOptions, replay_day, tune};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::bound::untied;
use super::replay::decide;
use super::worlds::{Loaded, World, open, plain_contract};

const PROMPT: ReplayOptions = ReplayOptions { rate_seed: 0, delay: Delay::fixed(0.0) };

/// A policy under watch: `see` looks at it after each request that it scored.
struct Watched<P, F> {
    policy: P,
    see: F,
}

impl<P: Policy, F: FnMut(&P, &Replay) + Send> Policy for Watched<P, F> {
    fn begin(&mut self, replay: &Replay) {
        self.policy.begin(replay);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        self.policy.score(replay, contracts, auctions);
        (self.see)(&self.policy, replay);
    }
}

/// A day of evenly spread requests, all alike but for their prices, with every contract in every queue.
fn stationary(seed: u64, requests: usize, contracts: Vec<ControlRow>) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World { utc_offset_minutes: 0, rows: vec![], contracts };
    let start = world.start_ms();
    for i in 0..requests {
        let entry = |ad_id, ad_type, ecpm, boost| QueueEntry { ad_id, ad_type, ecpm, pctr: 0.01, filter: 0, boost };
        let mut queue: Vec<QueueEntry> =
            world.contracts.iter().map(|c| entry(c.ad_id, AdType::Contract, 0.0, 1.0)).collect();
        queue.push(entry(1, AdType::Auction, rng.random_range(500.0..4000.0), 1.0));
        queue.push(entry(11, AdType::Auction, 100.0, 1.0));
        world.rows.push(TrackRow {
            request_id: 1 + i as u64,
            ts_ms: start + i as u64 * DAY_MS / requests as u64,
            slot_id: 1,
            region: 1,
            gender: 1,
            age: 1,
            user_id: None,
            queue,
        });
    }
    world
}

#[test]
fn random_shows_every_candidate_alike_whatever_its_boost_and_repeats_itself() {
    let mut world = stationary(1, 24_000, (0..3).map(|k| plain_contract(k, 24_000, 1.0)).collect());
    for (i, e) in world.rows.iter_mut().flat_map(|r| r.queue.iter_mut().enumerate()) {
        // The dearer auction ad stays the best one.
        e.boost = [0.1, 10.0, 1.0, 5.0, 1.0][i];
    }
    let day = world.load().day;
    let (_, shown) = decide(&day, &mut Random::new(7), PROMPT);
    let mut counts = BTreeMap::<u64, f64>::new();
    for (ad, _) in shown.iter().filter_map(|(_, ad)| *ad) {
        *counts.entry(ad).or_default() += 1.0 / 24_000.0;
    }
    // Four standard deviations of a share of a quarter.
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(counts.values().all(|share| (share - 0.25).abs() < 0.0112), "{counts:?}");
    assert_eq!(shown, decide(&day, &mut Random::new(7), PROMPT).1);
    let other = decide(&day, &mut Random::new(8), PROMPT).1;
    let same = shown.iter().zip(&other).filter(|(a, b)| a == b).count() as f64 / 24_000.0;
    assert!((same - 0.25).abs() < 0.0112, "{same}");
}

#[test]
fn pass_rates_follow_the_planned_curve() {
    // A tenth of the requests is needed; rates start at half and twice of that.
    for start in [0.05, 0.2] {
        let mut terms = plain_contract(0, 2000, 5.0);
        terms.theta = Some(start);
        let day = stationary(2, 20_000, vec![terms]).load().day;
        let mut worst: f64 = 0.0;
        let mut policy = Watched {
            policy: PassRate::new(0.1, 300.0),
            see: |_: &PassRate, replay: &Replay| {
                let done = replay.state.observed[0] / replay.episode.owed[0];
                let planned = day.contracts[0].planned_share(replay.offset()).unwrap();
                if replay.offset() > DAY_MS / 4 {
                    worst = worst.max((done - planned).abs());
                }
            },
        };
        let totals = replay_day(&day, &mut policy, PROMPT, &mut |_| {});
        assert!(worst < 0.05, "from a pass rate of {start}: {worst} off the curve");
        assert!(totals.missing < 0.03 * totals.owed, "{} missing", totals.missing);
    }
}

#[test]
fn dual_descent_finds_the_price_of_a_stationary_day() {
    for (seed, required) in [(3, 3000), (4, 6000), (5, 10_000)] {
        let day = stationary(seed, 20_000, vec![plain_contract(0, required, 4.0)]).load().day;
        let optimal = hindsight_bound(&day.log, 0).prices[0];
        for cold in [true, false] {
            let (mut sum, mut n) = (0.0, 0.0);
            let start =
                if cold { DualDescent::cold(6.0, 60.0) } else { DualDescent::warm(6.0, 60.0).starting_off_by(0.7) };
            let mut policy = Watched {
                policy: start,
                see: |policy: &DualDescent, replay: &Replay| {
                    // Where a high start delivered too much, the demand is met before the end.
                    if (DAY_MS / 2..DAY_MS / 10 * 9).contains(&replay.offset()) {
                        (sum, n) = (sum + policy.prices()[0], n + 1.0);
                    }
                },
            };
            replay_day(&day, &mut policy, PROMPT, &mut |_| {});
            let found = sum / n;
            assert!((found / optimal - 1.0).abs() < 0.04, "owed {required}, cold {cold}: {found}, not {optimal}");
        }
    }
}

/// With a sample that is the day itself, only the draws of chance within it are unknown.
#[test]
fn a_receding_horizon_with_perfect_knowledge_comes_close_to_the_bound() {
    let horizon = Horizon { interval_s: 300.0, memory_s: 10_800.0 };
    let mut worst: f64 = 0.0;
    for seed in 0..12 {
        let mut world = untied(seed, 3500);
        for e in world.rows.iter_mut().flat_map(|r| &mut r.queue) {
            e.boost = 1.0;
        }
        let Loaded { day, plan, .. } = world.load();
        let mut policy = Receding::new(plan.sample, horizon);
        let j = replay_day(&day, &mut policy, PROMPT, &mut |_| {}).j;
        let gap = 1.0 - hindsight_bound(&day.log, 0).share(j).unwrap();
        assert!(gap < 0.01, "seed {seed}: a gap of {gap}");
        worst = worst.max(gap);
    }
    eprintln!("widest gap of perfect knowledge: {worst:.5}");
}

#[test]
fn a_receding_horizon_starts_at_the_prices_of_the_bound() {
    let Loaded { day, plan, .. } =
        stationary(6, 4000, (0..3).map(|k| plain_contract(k, 500, 3.0 + k as f64)).collect()).load();
    let bound = hindsight_bound(&day.log, 0).prices;
    let mut first = None;
    let mut policy = Watched {
        policy: Receding::new(plan.sample, Horizon::default()),
        see: |policy: &Receding, _: &Replay| {
            first.get_or_insert_with(|| policy.prices().to_vec());
        },
    };
    replay_day(&day, &mut policy, PROMPT, &mut |_| {});
    for (found, optimal) in first.unwrap().iter().zip(&bound) {
        // Three contracts alike at once: smoothing takes its share of the last percent.
        assert!((found / optimal - 1.0).abs() < 0.08, "{found}, not {optimal}");
    }
}

#[test]
fn a_receding_horizon_serves_contracts_that_no_training_day_knew() {
    let known = stationary(7, 4000, vec![plain_contract(0, 900, 4.0)]).load();
    let mut world = stationary(
        8,
        4000,
        vec![plain_contract(0, 900, 4.0), plain_contract(1, 900, 4.0), plain_contract(2, 300, 4.0)],
    );
    // The last one's flight is the afternoon.
    world.contracts[2].start_ms += DAY_MS / 2;
    let dir = tempfile::tempdir().unwrap();
    world.write(dir.path());
    let day = DayModel::with_forecast(open(dir.path()), &known.plan.forecast, &known.plan, Arc::default());
    let mut policy = Receding::new(known.plan.sample, Horizon::default());
    let totals = replay_day(&day, &mut policy, PROMPT, &mut |_| {});
    assert!(totals.missing < 0.02 * totals.owed, "{} missing", totals.missing);
    let gap = 1.0 - hindsight_bound(&day.log, 0).share(totals.j).unwrap();
    assert!(gap < 0.01, "{gap}");
}

/// What the sample holds is in the log, at most so much of it, and survives its file.
#[test]
fn a_sample_is_part_of_its_days_and_bounded() {
    let days: Vec<Loaded> = [(9, 12_000), (10, 2500)].map(|(seed, n)| untied(seed, n).load()).into_iter().collect();
    let logs: Vec<_> = days.iter().map(|d| &*d.day.log).collect();
    let plan = Plan::from_days(&logs, 0).unwrap();
    let rows: Vec<usize> = plan.sample.days.iter().map(|d| d.cells.len()).collect();
    assert_eq!(rows, [9000, 2500], "18,000 in all, half of them for each day");
    for (sampled, log) in plan.sample.days.iter().zip(&logs) {
        let mut at = 0;
        let near = |a: f64, b: f64| (a - b).abs() <= 6e-4 * b;
        for row in plan.sample.rows(sampled) {
            // In time order, each is some later request of the log.
            let found = log.requests().range(at..log.requests().len()).position(|r| {
                let entries = log.entries(&r);
                near(row.best, r.best)
                    && entries.len() == row.contracts.len()
                    && row
                        .contracts
                        .iter()
                        .zip(row.pctr)
                        .all(|(j, p)| entries.iter().any(|e| e.contract == *j && near(f64::from(*p), e.pctr)))
            });
            at += 1 + found.expect("a request like it");
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    plan.write(file.path()).unwrap();
    assert!(Plan::read(file.path()).unwrap().sample == plan.sample, "the file keeps the sample");
    let mut broken = plan.clone();
    std::sync::Arc::make_mut(&mut broken.sample).days[1].entries[3] += 1;
    broken.write(file.path()).unwrap();
    let said = format!("{:#}", Plan::read(file.path()).unwrap_err());
    assert!(said.contains("sample of requests is malformed"), "{said}");
    assert!(plan.sample.without(0).days == plan.sample.days[1..]);
    let one = Sample { days: plan.sample.days[..1].to_vec(), ..(*plan.sample).clone() };
    assert!(one.without(0) == one, "its own day is better than nothing");
}

/// Whole days as they were logged.
fn still() -> admix::settings::Episodes {
    admix::settings::Episodes {
        demand_jitter: 0.0,
        price_jitter: 0.0,
        volume_jitter: 0.0,
        jump_share: 0.0,
        shock_sd: 0.0,
        supply_error: 0.0,
        ..admix::settings::Episodes::default()
    }
}

fn terms<'a>(
    budget: &'a tune::Budget,
    episodes: &'a admix::settings::Episodes,
    policy: &'a admix::settings::Policy,
) -> tune::Terms<'a> {
    tune::Terms { options: PROMPT, interval_s: 300.0, budget, episodes, per_step: 30, policy }
}

#[test]
fn tuning_improves_on_its_start_repeats_itself_and_keeps_its_budget() {
    let days: Vec<Loaded> = (11..13).map(|seed| untied(seed, 1500).load()).collect();
    let logs: Vec<_> = days.iter().map(|d| &*d.day.log).collect();
    let sample = Plan::from_days(&logs, 0).unwrap().sample;
    let days: Vec<DayModel> = days.into_iter().map(|d| d.day).collect();
    let tuned = |budget| {
        let policy = admix::settings::Policy { replan: false, ..admix::settings::Policy::default() };
        tune::all(&days, &[], &sample, terms(&tune::Budget::of(budget, 0), &still(), &policy)).unwrap()
    };
    assert_eq!(tuned(0), Tuned::default(), "nothing is tried");
    let found = tuned(96);
    assert_eq!(found, tuned(96));
    assert_ne!(found, Tuned::default());
    let j = |make: &dyn Fn() -> Box<dyn Policy>| -> f64 {
        days.iter().map(|day| replay_day(day, &mut *make(), PROMPT, &mut |_| {}).j).sum()
    };
    let start = Tuned::default();
    for (name, a, b) in [
        (
            "pass-rate",
            j(&|| Box::new(PassRate::new(found.pass_rate_step, 300.0))),
            j(&|| Box::new(PassRate::new(start.pass_rate_step, 300.0))),
        ),
        (
            "dual-descent-cold",
            j(&|| Box::new(DualDescent::cold(found.dual_cold_step, 300.0))),
            j(&|| Box::new(DualDescent::cold(start.dual_cold_step, 300.0))),
        ),
    ] {
        assert!(a >= b, "{name}: {a} tuned, {b} before");
    }
}

/// Of a single day the forecast is never wrong. Gains that trusted it lost 2 points on other weekdays of a real log.
#[test]
fn of_a_single_training_day_the_controller_is_judged_on_the_validation_days() {
    let mut days: Vec<Loaded> = (11..14).map(|seed| untied(seed, 1500).load()).collect();
    let sample = Plan::from_days(&[&*days[0].day.log], 0).unwrap().sample;
    let judges: Vec<DayModel> = days.split_off(1).into_iter().map(|d| d.day).collect();
    let day = [days.remove(0).day];
    let policy = admix::settings::Policy { warm_start: false, ..admix::settings::Policy::default() };
    let still = still();
    let tuned = |judges: &[DayModel]| {
        tune::all(&day, judges, &sample, terms(&tune::Budget::of(48, 0), &still, &policy)).unwrap()
    };
    let (by_itself, by_others) = (tuned(&[]), tuned(&judges));
    assert_ne!(by_itself.pacing, by_others.pacing);
    let worth = |gains| -> f64 {
        let replay =
            |day| replay_day(day, &mut Controller::new(&policy, gains, by_others.receding), PROMPT, &mut |_| {});
        judges.iter().map(|day| replay(day).j).sum()
    };
    assert!(worth(by_others.pacing) > worth(PacingGains::default()));
    assert!(worth(by_others.pacing) >= worth(by_itself.pacing));
}

/// Shows the contract on every fourth request and watches what a proportional controller would make of it.
struct EveryFourth {
    requests: u32,
    worst: f64,
}

impl Policy for EveryFourth {
    fn begin(&mut self, _: &Replay) {
        (self.requests, self.worst) = (0, 0.0);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        let gains = PacingGains { proportional: 1.0, ..PacingGains::NONE };
        let error = replay.state.pacing(&replay.day, &gains, &replay.episode, 0, replay.observed_until());
        self.worst = self.worst.max(error.abs());
        contracts.fill(if self.requests.is_multiple_of(4) { 1e9 } else { -1e9 });
        self.requests += 1;
    }
}

/// What is not reported yet was taken for missing: under half an hour of delay controllers overshot all day.
#[test]
fn a_contract_on_its_plan_is_not_behind_because_feedback_is_late() {
    let Loaded { day, .. } = stationary(3, 4000, vec![plain_contract(0, 1000, 2.0)]).load();
    for feedback_delay_s in [0.0, 600.0, 1800.0] {
        let mut policy = EveryFourth { requests: 0, worst: 0.0 };
        let options = ReplayOptions { rate_seed: 0, delay: Delay::fixed(feedback_delay_s) };
        let totals = replay_day(&day, &mut policy, options, &mut |_| {});
        assert_eq!((totals.contract_impressions, totals.missing), (1000, 0.0));
        // Two displays of a thousand; half an hour is twenty.
        assert!(policy.worst < 0.002, "delay {feedback_delay_s}: {}", policy.worst);
    }
}

/// Days at the edge of what is legal: nothing divides by nothing, and what can be shown is.
#[test]
fn every_baseline_bears_degenerate_days() {
    let free = || plain_contract(0, 3, 0.0);
    let full = ControlRow { delivered0: 3, ..plain_contract(0, 3, 2.0) };
    let worthless = |mut world: World| {
        for e in world.rows.iter_mut().flat_map(|r| &mut r.queue) {
            e.ecpm = 0.0;
        }
        world
    };
    let no_auctions = |mut world: World| {
        for r in &mut world.rows {
            r.queue.retain(|e| e.ad_type == AdType::Contract);
        }
        world
    };
    for (what, world) in [
        ("one request", stationary(1, 1, vec![plain_contract(0, 3, 2.0)])),
        ("one request, no contracts", stationary(1, 1, vec![])),
        ("no contracts", stationary(1, 50, vec![])),
        ("no penalty", stationary(1, 50, vec![free()])),
        ("nothing owed", stationary(1, 50, vec![full])),
        ("no worth at all", worthless(stationary(1, 50, vec![free()]))),
        (
            "contracts alone",
            no_auctions(stationary(1, 50, vec![plain_contract(0, 20, 2.0), plain_contract(1, 3, 0.0)])),
        ),
        ("a rate of zero", stationary(1, 50, vec![ControlRow { rate: 0.0, ..plain_contract(0, 20, 2.0) }])),
    ] {
        let Loaded { day, mut plan, plain, .. } = world.load();
        let days = [day];
        plan.tuned = Some(
            tune::all(
                &days,
                &[],
                &plan.sample,
                terms(
                    &tune::Budget::of(16, 0),
                    &admix::settings::Episodes::default(),
                    &admix::settings::Policy { replan: false, ..admix::settings::Policy::default() },
                ),
            )
            .unwrap(),
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        plan.write(file.path()).unwrap();
        let plan = Plan::read(file.path()).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        for feedback_delay_s in [0.0, 600.0] {
            for name in baselines::NAMES {
                let mut policy = baselines::named(name, Some(&plan)).unwrap();
                let options = ReplayOptions { rate_seed: 0, delay: Delay::fixed(feedback_delay_s) };
                let (totals, decisions) = decide(&days[0], &mut *policy, options);
                let verdict = plain.judge(0, &decisions).unwrap_or_else(|e| panic!("{what}, {name}: {e}"));
                assert!(totals.j.is_finite() && (totals.j - verdict.j).abs() < 1e-9, "{what}, {name}: {}", totals.j);
            }
        }
    }
}

/// A forecast of nothing says that every contract is out of reach; the day may bring requests all the same.
#[test]
fn every_baseline_bears_a_forecast_of_nothing() {
    let Loaded { dir, mut plan, plain, .. } = stationary(1, 200, vec![plain_contract(0, 50, 2.0)]).load();
    for node in &mut plan.forecast.nodes {
        node.pv = 0.0;
    }
    let day = DayModel::with_forecast(open(dir.path()), &plan.forecast, &plan, Arc::default());
    for name in baselines::NAMES {
        let mut policy = baselines::named(name, Some(&plan)).unwrap();
        let (totals, decisions) = decide(&day, &mut *policy, PROMPT);
        plain.judge(0, &decisions).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(totals.j.is_finite(), "{name}");
    }
}

#[test]
fn a_baseline_without_its_inputs_says_what_it_lacks() {
    let plan = stationary(1, 20, vec![plain_contract(0, 3, 2.0)]).load().plan;
    let untuned = Plan { tuned: None, ..plan };
    for name in baselines::NAMES {
        let bare = baselines::named(name, None);
        assert_eq!(bare.is_ok(), ["random", "auction-only", "contract-first"].contains(&name), "{name}");
        assert!(bare.err().is_none_or(|e| e.contains(name) && e.contains("--plan")));
        let said = baselines::named(name, Some(&untuned)).err();
        assert!(said.is_none_or(|e| e.contains(name) && e.contains("make the plan again")), "{name}");
    }
}
