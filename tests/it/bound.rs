//! The hindsight bound: above every policy, tight where it can be, and never higher than brute force allows.

use std::path::Path;
use std::sync::Arc;

use admix::env::{DayModel, Delay};
use admix::log::schema::{AdType, ControlRow, DAY_MS, QueueEntry, TrackRow};
use admix::log::targeting::Targeting;
use admix::plan::bound::{Problem, sampled_bound};
use admix::plan::{Plan, hindsight_bound};
use admix::policy::baselines::Oracle;
use admix::policy::{ReplayOptions, replay_day};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::replay::{decide, policies};
use super::support;
use super::worlds::{
    Delivered, Loaded, PlainContract, PlainLog, Size, World, cases, close, contract_id, open, sized, world,
};

/// D of the formats, from the text alone, for any `lambda` and `mu`.
fn dual(plain: &PlainLog, rate_seed: u64, lambda: &[f64], mu: &[f64]) -> f64 {
    let index = |ad: u64| plain.contracts.keys().position(|&k| k == ad).unwrap();
    let requests: f64 = plain
        .requests
        .iter()
        .map(|r| {
            let contracts = plain.showable(r, rate_seed, |_| true).filter(|e| e.kind == 'C').map(|e| {
                let j = index(e.ad);
                plain.contracts[&e.ad].click_value * e.pctr + lambda[j] - mu[j]
            });
            contracts.fold(PlainLog::best(r).max(0.0), f64::max)
        })
        .sum();
    let demands: f64 =
        plain.contracts.values().zip(lambda).zip(mu).map(|((c, l), m)| l * c.owed() - m * c.left()).sum();
    requests - demands
}

/// The most that any sequence of decisions earns on what is left of the log, `J` without the penalty of the start; with
/// `forced`, a request of which something may be shown is filled.
fn best_of_all(plain: &PlainLog, rate_seed: u64, forced: bool, at: usize, delivered: &mut Delivered) -> f64 {
    let Some(r) = plain.requests.get(at) else { return -plain.shortage(delivered).1 };
    let seen = delivered.clone();
    let choices: Vec<_> = plain.showable(r, rate_seed, |ad| plain.room(ad, &seen)).collect();
    let mut best = f64::NEG_INFINITY;
    if choices.is_empty() || !forced {
        best = best_of_all(plain, rate_seed, forced, at + 1, delivered);
    }
    // Of the auction ads only the dearest can be part of a best sequence.
    let dearest = choices.iter().filter(|e| e.kind == 'A').map(|e| e.ecpm / 1000.0).reduce(f64::max);
    if let Some(worth) = dearest {
        best = best.max(worth + best_of_all(plain, rate_seed, forced, at + 1, delivered));
    }
    for e in choices.iter().filter(|e| e.kind == 'C') {
        *delivered.entry(e.ad).or_default() += 1;
        let click = plain.contracts[&e.ad].click_value * e.pctr;
        best = best.max(click + best_of_all(plain, rate_seed, forced, at + 1, delivered));
        *delivered.entry(e.ad).or_default() -= 1;
    }
    best
}

fn tiny(contracts: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = World> {
    sized(Size { requests: (1..=8).into(), contracts, required: 5 })
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn every_dual_is_above_every_policy(
        world in world(),
        rate_seed in 0u64..4,
        shares in proptest::collection::vec((-1.0..=1.0f64, 0.0..2.0f64), 6),
    ) {
        let Loaded { day, plan, plain, dir: _dir } = world.load();
        let problem = Problem::of_day(&day.log, rate_seed);
        let bound = hindsight_bound(&day.log, rate_seed);
        let terms: Vec<(&PlainContract, (f64, f64))> = plain.contracts.values().zip(shares).collect();
        // Any price up to the penalty, as one number; as lambda >= 0 and mu >= 0; and lambda < 0 where cap = required.
        let price_of = |c: &PlainContract, share: f64| share * if share > 0.0 { c.penalty } else { c.penalty + 1.0 };
        let price: Vec<f64> = terms.iter().map(|(c, (share, _))| price_of(c, *share)).collect();
        let lambda: Vec<f64> = terms.iter().map(|(c, (share, _))| share.abs() * c.penalty).collect();
        let mu: Vec<f64> = terms.iter().map(|(_, (_, mu))| *mu).collect();
        let split = |pick: fn(f64) -> f64| price.iter().map(|&p| pick(p)).collect::<Vec<_>>();
        let one = problem.dual(&price);
        prop_assert!(close(one, dual(&plain, rate_seed, &split(|p| p.max(0.0)), &split(|p| (-p).max(0.0)))));
        let both = dual(&plain, rate_seed, &lambda, &mu);
        let difference: Vec<f64> = lambda.iter().zip(&mu).map(|(l, m)| l - m).collect();
        let joined = problem.dual(&difference);
        prop_assert!(joined <= both + 1e-9 * (1.0 + both.abs()), "one price per contract loses nothing");
        let mut duals = vec![one, both, bound.upper];
        if terms.iter().all(|(c, _)| c.cap == c.required && c.delivered0 <= c.required) {
            duals.push(dual(&plain, rate_seed, &price, &vec![0.0; price.len()]));
        }
        let upper = bound.upper;
        prop_assert!(upper <= one + 1e-6 * (1.0 + one.abs()), "the least D found, {upper}, is above {one}");
        prop_assert!(close(bound.stake, plain.stake()));
        prop_assert!(bound.prices.iter().zip(&day.contracts).all(|(p, c)| *p <= c.penalty));
        prop_assert!(close(bound.upper, problem.dual(&bound.prices)), "the prices prove the bound");
        let options = ReplayOptions { rate_seed, delay: Delay::fixed(0.0) };
        let mut all = policies(&day, &plan);
        all.push(("oracle", Box::new(Oracle::new(&bound, &day.log, rate_seed))));
        for (name, mut policy) in all {
            let j = plain.judge(rate_seed, &decide(&day, &mut *policy, options).1).map_err(TestCaseError::fail)?.j;
            for &d in &duals {
                prop_assert!(d >= j - 1e-9 * (1.0 + j.abs()), "{name} earns {j}, the bound is {d}");
            }
        }
    }

    #[test]
    fn the_bound_is_above_the_best_of_all_decisions(world in tiny(1..=2), rate_seed in 0u64..4) {
        let Loaded { day, plain, .. } = world.load();
        let upper = hindsight_bound(&day.log, rate_seed).upper;
        let best = best_of_all(&plain, rate_seed, false, 0, &mut Delivered::new());
        prop_assert!(upper >= best - 1e-9 * (1.0 + best.abs()), "{upper} is below {best}");
        let forced = best_of_all(&plain, rate_seed, true, 0, &mut Delivered::new());
        prop_assert!(best >= forced - 1e-9);
    }

    #[test]
    fn with_one_contract_the_bound_is_the_best_of_all_decisions(world in tiny(1..=1), rate_seed in 0u64..4) {
        let Loaded { day, plain, .. } = world.load();
        let upper = hindsight_bound(&day.log, rate_seed).upper;
        let best = best_of_all(&plain, rate_seed, false, 0, &mut Delivered::new());
        prop_assert!((upper - best).abs() <= 1e-5 * (1.0 + best.abs()), "{upper} and {best}");
    }
}

/// A day without ties: continuous prices, one to five auction ads a queue, overlapping contracts. Boosts, which the
/// prices of the bound know nothing of, are everywhere.
pub fn untied(seed: u64, requests: usize) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let n = rng.random_range(1..=5usize);
    let fill = rng.random_range(0.2..0.6) / n as f64;
    let contracts = (0..n)
        .map(|k| {
            let required = (requests as f64 * fill * rng.random_range(0.5..1.5)) as u64;
            let slack = if rng.random() { 0 } else { rng.random_range(0..=required / 2) };
            let start_ms = if rng.random() { 0 } else { rng.random_range(0..DAY_MS / 2) };
            ControlRow {
                ad_id: contract_id(k),
                required,
                cap: required + slack,
                delivered0: if rng.random() { 0 } else { rng.random_range(0..=required / 4) },
                start_ms,
                end_ms: rng.random_range(start_ms + DAY_MS / 4..=DAY_MS),
                targeting: Targeting::default(),
                theta: None,
                rate: if rng.random() { 1.0 } else { rng.random_range(0.5..1.0) },
                penalty: rng.random_range(1.0..8.0),
                click_value: rng.random_range(0.0..30.0),
                pctr: None,
            }
        })
        .collect();
    let mut world = World { utc_offset_minutes: 0, rows: vec![], contracts };
    let start = world.start_ms();
    for c in &mut world.contracts {
        (c.start_ms, c.end_ms) = (c.start_ms + start, c.end_ms + start);
    }
    for i in 0..requests {
        let level = (0.7 * (rng.random::<f64>() + rng.random::<f64>() + rng.random::<f64>() - 1.5)).exp() * 2000.0;
        let mut queue: Vec<QueueEntry> = Vec::new();
        let mut push =
            |ad_id, ad_type, ecpm, pctr, boost| queue.push(QueueEntry { ad_id, ad_type, ecpm, pctr, filter: 0, boost });
        for k in 0..n {
            if rng.random::<f64>() < 0.7 {
                push(contract_id(k), AdType::Contract, 0.0, rng.random_range(0.0..0.05), rng.random_range(0.1..10.0));
            }
        }
        for k in 0..rng.random_range(1..=5) {
            push(10 * k + 1, AdType::Auction, level * rng.random_range(0.5..1.0), 0.01, rng.random_range(0.1..10.0));
        }
        world.rows.push(TrackRow {
            request_id: 1 + i as u64,
            ts_ms: start + rng.random_range(0..DAY_MS),
            slot_id: 1,
            region: 0,
            gender: 0,
            age: 0,
            user_id: None,
            queue,
        });
    }
    world
}

/// How far both sides of the certificate are apart, as a share of UB + S: the bound, and what serving with its prices earns.
fn certificate_gap(world: &World, seed: u64) -> f64 {
    let Loaded { day, plain, .. } = world.load();
    let bound = hindsight_bound(&day.log, seed);
    let options = ReplayOptions { rate_seed: seed, delay: Delay::fixed(0.0) };
    let (_, decisions) = decide(&day, &mut Oracle::new(&bound, &day.log, seed), options);
    let primal = plain.judge(seed, &decisions).unwrap().j;
    let gap = (bound.upper - primal) / (bound.upper + bound.stake);
    assert!(gap > -1e-12, "seed {seed}: J {primal} above the bound {}", bound.upper);
    gap
}

/// A day's prices decide every request but a handful at the margin (of a contract, one or two), and each of these is
/// worth about one part in `requests` of the day. Below some hundred requests the rounding alone is worth more than a
/// thousandth.
#[test]
fn both_sides_of_the_certificate_meet_on_days_without_ties() {
    let mut worst: f64 = 0.0;
    for seed in 0..24 {
        let requests = 800 + 50 * seed as usize;
        let gap = certificate_gap(&untied(seed, requests), seed);
        assert!(gap < 0.001, "seed {seed}, {requests} requests: {gap}");
        worst = worst.max(gap);
    }
    eprintln!("widest certificate: {worst:.6}");
}

/// Where prices are rounded, as logged ones are, hundreds of requests are worth the same to a contract and to the auction. The oracle
/// gives each contract as many of them as it needs; on iPinYou's days it gave none, and was below the policies.
#[test]
fn both_sides_of_the_certificate_nearly_meet_where_prices_are_rounded() {
    let mut gaps = vec![];
    for seed in 0..24 {
        let mut world = untied(seed, 800 + 50 * seed as usize);
        for entry in world.rows.iter_mut().flat_map(|row| &mut row.queue) {
            entry.ecpm = 500.0 * (entry.ecpm / 500.0).round();
            if entry.ad_type == AdType::Contract {
                entry.pctr = 0.02;
            }
        }
        gaps.push(certificate_gap(&world, seed));
    }
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    assert!(mean < 0.004 && gaps.iter().all(|gap| *gap < 0.02), "{mean}: {gaps:?}");
}

/// A contract that no request may serve costs its whole penalty whatever anyone does, and the bound knows it.
#[test]
fn a_contract_out_of_reach_does_not_loosen_the_bound() {
    for (seed, owed) in (0..20).flat_map(|seed| [(seed, 1), (seed, 7)]) {
        let mut world = untied(seed, 100);
        let unreachable = ControlRow {
            ad_id: 9000,
            required: owed,
            cap: owed,
            delivered0: 0,
            penalty: 3.0,
            ..world.contracts[0].clone()
        };
        let reachable = hindsight_bound(&world.load().day.log, 0);
        world.contracts.push(unreachable);
        let bound = hindsight_bound(&world.load().day.log, 0);
        assert!(
            close(bound.upper, reachable.upper - 3.0 * owed as f64),
            "seed {seed}: {} and {}",
            bound.upper,
            reachable.upper
        );
    }
}

/// A day on which nothing is worth anything.
fn worthless() -> World {
    let mut world = untied(5, 30);
    for c in &mut world.contracts {
        (c.penalty, c.click_value) = (0.0, 0.0);
    }
    for e in world.rows.iter_mut().flat_map(|r| &mut r.queue) {
        e.ecpm = 0.0;
    }
    world
}

#[test]
fn the_share_is_null_where_nothing_is_at_stake_and_never_else() {
    let Loaded { dir, day, .. } = worthless().load();
    let bound = hindsight_bound(&day.log, 0);
    assert_eq!((bound.upper, bound.stake), (0.0, 0.0));
    assert_eq!(bound.share(0.0), None);
    let report = evaluate(dir.path());
    for policy in report["policies"].as_array().unwrap() {
        assert!(policy["share"].is_null() && policy["gap"].is_null() && policy["j"] == 0.0, "{policy}");
    }
    // A single unit of money anywhere gives everyone a share.
    let mut world = worthless();
    world.rows[0].queue.last_mut().unwrap().ecpm = 1.0;
    let Loaded { dir, .. } = world.load();
    for policy in evaluate(dir.path())["policies"].as_array().unwrap() {
        let (share, gap) = (policy["share"].as_f64().unwrap(), policy["gap"].as_f64().unwrap());
        assert!(close(share + gap, 1.0), "{policy}");
    }
}

fn evaluate(dir: &Path) -> serde_json::Value {
    let output = support::admix().args(["eval", "--json", "--log"]).arg(dir).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// Prices of another rate seed's draws, or of another day, prove nothing here: the seed matters.
#[test]
fn the_bound_follows_the_rate_draws() {
    let mut world = untied(2, 300);
    for c in &mut world.contracts {
        c.rate = 0.3;
    }
    let dir = tempfile::tempdir().unwrap();
    world.write(dir.path());
    let log = open(dir.path());
    let plan = Plan::from_days(&[&log], 0).unwrap();
    let day = DayModel::with_forecast(log, &plan.forecast, &plan, Arc::default());
    let uppers: Vec<f64> = (0..4).map(|seed| hindsight_bound(&day.log, seed).upper).collect();
    assert!(uppers.iter().skip(1).all(|u| !close(*u, uppers[0])), "{uppers:?}");
    for seed in 0..4 {
        let bound = hindsight_bound(&day.log, seed);
        let options = ReplayOptions { rate_seed: seed, delay: Delay::fixed(0.0) };
        let j = replay_day(&day, &mut Oracle::new(&bound, &day.log, seed), options, &mut |_| {}).j;
        assert!(j <= bound.upper + 1e-9 * j.abs(), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// The bound of a long day comes from the prices of a part of it, put into D over the whole.
    #[test]
    fn prices_of_a_part_of_the_day_prove_a_bound_of_all_of_it(world in world(), rate_seed in 0u64..9) {
        let Loaded { plain, day, .. } = &world.load();
        let n = day.log.requests().len();
        let bound = sampled_bound(&day.log, rate_seed, 1.0, n.div_ceil(2));
        let lambda: Vec<f64> = bound.prices.iter().map(|p| p.max(0.0)).collect();
        let mu: Vec<f64> = bound.prices.iter().map(|p| (-p).max(0.0)).collect();
        prop_assert!(close(bound.upper, dual(plain, rate_seed, &lambda, &mu)), "{} over all requests", bound.upper);
        let full = hindsight_bound(&day.log, rate_seed);
        prop_assert!(bound.upper >= full.upper - 1e-3 * (1.0 + full.upper.abs()), "{} < {}", bound.upper, full.upper);
    }
}

/// Half of the requests of the sample's days prove what all prove, within 0.02 points.
#[test]
fn prices_of_half_the_requests_prove_nearly_the_same() {
    for day in ["data/test-0", "data/test-1"] {
        let log = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(day));
        let full = hindsight_bound(&log, 0);
        let half = sampled_bound(&log, 0, 1.0, log.requests().len() / 2);
        let points = 100.0 * (half.upper - full.upper) / (full.upper + full.stake);
        assert!((-0.001..0.1).contains(&points), "{day}: {points} points");
    }
}
