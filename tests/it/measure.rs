//! What evaluation says of a day beside its sums, held against a recount from the decisions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use admix::env::{DayModel, Delay};
use admix::evaluate::bootstrap::{Block, share_interval};
use admix::evaluate::compare::compare_day;
use admix::evaluate::{Contender, Kind};
use admix::log::BLOCK;
use admix::log::schema::DAY_MS;
use admix::plan::{Plan, Tuned};
use admix::policy::baselines::PREDICTING;
use admix::policy::{ReplayOptions, Shown, replay_day};
use proptest::prelude::*;
use serde_json::Value;

use super::replay::policies;
use super::support;
use super::worlds::{Decision, Loaded, cases, close, open, world};

const QUARTERS: u64 = 96;

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn hours_sum_to_the_day_and_deliveries_to_the_decisions(world in world(), rate_seed in 0u64..4) {
        let Loaded { day, plan, plain, dir: _dir } = world.load();
        let mut contenders: Vec<Contender> = policies(&day, &plan)
            .into_iter()
            .map(|(name, policy)| Contender { name: name.to_owned(), kind: Kind::Baseline, policy })
            .collect();
        let mut decisions: Vec<(String, Decision)> = vec![];
        let options = ReplayOptions { rate_seed, delay: Delay::fixed(0.0) };
        let report = compare_day(&day, &mut contenders, options, &mut |name, shown| {
            let letter = if shown.contract.is_some() { 'C' } else { 'A' };
            decisions.push((name.to_owned(), (shown.request_id, shown.ad.map(|(ad, _)| (ad, letter)))));
            Ok(())
        })
        .unwrap();
        let (ub, stake) = (report.bound.ub, report.bound.stake);
        for p in &report.policies {
            let mine: Vec<Decision> = decisions.iter().filter(|(name, _)| *name == p.name).map(|(_, d)| *d).collect();
            let verdict = plain.judge(rate_seed, &mine).map_err(TestCaseError::fail)?;
            prop_assert!(close(p.j, verdict.j), "{}: measuring changes nothing", p.name);
            let sum = |f: fn(&Block) -> f64| p.blocks.iter().map(f).sum::<f64>();
            prop_assert!(close(sum(|b| b.earned), p.j + stake), "{}", p.name);
            prop_assert!(close(sum(|b| b.bound), ub + stake));
            prop_assert!(p.blocks.iter().all(|b| b.earned <= b.bound + 1e-9 * (1.0 + b.bound.abs())), "{:?}", p.blocks);
            prop_assert_eq!(p.share.is_some(), p.share_interval.is_some());
            prop_assert_eq!(p.contracts.iter().map(|c| c.delivered).sum::<u64>(), p.contract_impressions);
            for (c, model) in p.contracts.iter().zip(&day.contracts) {
                prop_assert_eq!(c.ad_id, model.ad_id);
                let mut at = vec![0.0; QUARTERS as usize];
                for (request, decision) in plain.requests.iter().zip(&mine) {
                    if decision.1 == Some((c.ad_id, 'C')) {
                        let offset = request.ts - day.log.day().start_ms;
                        at[(offset * QUARTERS / DAY_MS) as usize] += 1.0;
                    }
                }
                prop_assert_eq!(at.iter().sum::<f64>(), c.delivered as f64);
                let total = model.supply.total();
                let (start, end) = (model.start, model.end.min(DAY_MS));
                if model.owed == 0.0 || total <= 0.0 || start >= end {
                    prop_assert!(c.curve_deviation.is_none() && c.roughness.is_none());
                    continue;
                }
                let in_flight = |q: &u64| (q + 1) * DAY_MS / QUARTERS > start && q * DAY_MS / QUARTERS < end;
                let quarters: Vec<u64> = (0..QUARTERS).filter(in_flight).collect();
                let planned = |q: u64| model.supply.before(q * DAY_MS / QUARTERS) / total;
                let delivered = |q: u64| at[..q as usize].iter().sum::<f64>() / model.owed;
                let off: f64 = quarters.iter().map(|q| (delivered(q + 1) - planned(q + 1)).abs()).sum();
                prop_assert!(close(c.curve_deviation.unwrap(), off / quarters.len() as f64));
                if quarters.len() > 1 {
                    let error = |q: u64| (delivered(q + 1) - delivered(q)) - (planned(q + 1) - planned(q));
                    let sum: f64 = quarters[1..].iter().map(|&q| (error(q) - error(q - 1)).abs()).sum();
                    let rough = sum / (quarters.len() - 1) as f64 * quarters.len() as f64;
                    prop_assert!(close(c.roughness.unwrap(), rough));
                }
            }
        }
    }
}

/// A day of several blocks, so that policies wait for each other between them.
#[test]
fn policies_that_share_a_pass_decide_as_if_alone() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/test-0"));
    let log = Arc::new(open(dir));
    assert!(log.requests().len() > 2 * BLOCK);
    let mut plan = Plan::from_days(&[&log], 0).unwrap();
    plan.tuned = Some(Tuned::default());
    let day = DayModel::with_forecast(log, &plan.forecast, &plan, Arc::default());
    let options = ReplayOptions { rate_seed: 3, delay: Delay::fixed(90.0) };
    let mut contenders: Vec<Contender> = policies(&day, &plan)
        .into_iter()
        .map(|(name, policy)| Contender { name: name.to_owned(), kind: Kind::Baseline, policy })
        .collect();
    let mut together: BTreeMap<String, Vec<Shown>> = BTreeMap::new();
    let report = compare_day(&day, &mut contenders, options, &mut |name, shown| {
        together.entry(name.to_owned()).or_default().push(Shown { ranking: None, ..shown });
        Ok(())
    })
    .unwrap();
    for (name, mut policy) in policies(&day, &plan) {
        let delay = if name.ends_with(PREDICTING) { Delay::fixed(0.0) } else { options.delay };
        let mut alone = Vec::new();
        let totals = replay_day(&day, &mut *policy, ReplayOptions { delay, ..options }, &mut |shown| alone.push(shown));
        assert!(together[name] == alone, "{name}");
        let row = report.policies.iter().find(|p| p.name == name).unwrap();
        assert_eq!((row.j, row.auction_revenue), (totals.j, totals.auction_revenue), "{name}");
    }
}

#[test]
fn the_interval_of_a_real_sized_day_covers_its_share_and_repeats() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
    let scratch = tempfile::tempdir().unwrap();
    let plan = scratch.path().join("plan.json");
    support::admix().arg("plan").arg(data.join("train-0")).arg("--out").arg(&plan).assert().success();
    let evaluate = || -> Value {
        let mut command = support::admix();
        command.args(["eval", "--json", "--log"]).arg(data.join("test-0")).arg("--plan").arg(&plan);
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let report = evaluate();
    assert_eq!(report, evaluate());
    for p in report["policies"].as_array().unwrap() {
        let share = p["share"].as_f64().unwrap();
        let [low, high] = [0, 1].map(|i| p["share_interval"][i].as_f64().unwrap());
        assert!(low <= share + 1e-9 && share <= high + 1e-9, "{p}");
        if p["name"] != "oracle" {
            assert!(high - low > 1e-4 && high - low < 0.2, "{p}");
        }
        assert_eq!(p["contracts"].as_array().unwrap().len(), 15);
        assert!(p["curve_deviation"].is_f64() && p["roughness"].is_f64());
    }
}

fn blocks(shares: &[f64]) -> Vec<Block> {
    shares.iter().map(|share| Block { earned: 2.0 * share, bound: 2.0 }).collect()
}

#[test]
fn hours_that_are_alike_leave_no_doubt_and_hours_that_differ_do() {
    let sure = blocks(&[0.9; 24]);
    let [low, high] = share_interval(&[&sure]).unwrap();
    assert!((low - 0.9).abs() < 1e-12 && (high - 0.9).abs() < 1e-12);
    let unsure = blocks(&[[0.8, 1.0]; 12].concat());
    let [low, high] = share_interval(&[&unsure]).unwrap();
    // The standard error of a mean of 24 is 0.1 / sqrt(24) = 0.0204.
    assert!((0.9 - low - 0.04).abs() < 0.01 && (high - 0.9 - 0.04).abs() < 0.01, "{low} {high}");
    let [low_of_four, high_of_four] = share_interval(&[&unsure[..], &unsure, &unsure, &unsure]).unwrap();
    let ratio = (high_of_four - low_of_four) / (high - low);
    assert!((ratio - 0.5).abs() < 0.1, "four days are twice as sure: {ratio}");
}

#[test]
fn nothing_at_stake_has_no_interval() {
    assert_eq!(share_interval(&[]), None);
    assert_eq!(share_interval(&[&[Block::default()]]), None);
}
