//! Stresses as properties: each alters what it says and nothing else, and the altered day is a day like any other.

use std::collections::HashMap;
use std::path::Path;

use admix::env::Delay;
use admix::evaluate::{self, Stress, TestDay};
use admix::log::schema::{AdType, DAY_MS};
use admix::log::{self, CompileOptions, RawDay};
use admix::plan::{Plan, hindsight_bound};
use admix::settings::Settings;
use admix::values::Told;
use proptest::prelude::*;

use super::worlds::{Loaded, World, cases, close, world};

fn stress(text: &str, seed: u64) -> Stress {
    text.parse::<Stress>().unwrap().seeded(seed)
}

fn raw(world: &World) -> (tempfile::TempDir, RawDay) {
    let dir = tempfile::tempdir().unwrap();
    world.write(dir.path());
    let day = RawDay::read(dir.path(), CompileOptions::default()).unwrap();
    (dir, day)
}

fn altered(calm: &RawDay, text: &str, seed: u64) -> RawDay {
    let mut day = calm.clone();
    stress(text, seed).alter(&mut day, None);
    day
}

fn files_below(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir.join(".admix"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

const LOGGED: (&Told, &Told) = (&Told::Logged, &Told::Logged);
const ALL: &[&str] = &[
    "prices=1.4@14",
    "prices=0.6@random",
    "volume=0.75",
    "demands=0.3",
    "forecast=0.3",
    "forecast-level=1.3",
    "delay=600",
    "flights=0.5",
    "newcomers=0.2",
    "prices=3@random+volume=0.9+demands=0.5+flights=1+newcomers=1+forecast=0.3+delay=60",
];

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn prices_change_for_auction_ads_from_the_hour_on_and_nowhere_else(
        world in world(),
        factor in 0.1..5.0f64,
        hour in 0u64..=24,
    ) {
        let (_dir, calm) = raw(&world);
        let day = altered(&calm, &format!("prices={factor}@{hour}"), 0);
        prop_assert_eq!(&day.contracts, &calm.contracts);
        prop_assert_eq!(day.rows.len(), calm.rows.len());
        for (new, old) in day.rows.iter().zip(&calm.rows) {
            let late = old.ts_ms >= calm.day.start_ms + hour * 3_600_000;
            let mut expected = old.clone();
            for entry in expected.queue.iter_mut().filter(|e| late && e.ad_type == AdType::Auction) {
                entry.ecpm *= factor;
            }
            prop_assert_eq!(new, &expected);
        }
    }

    #[test]
    fn a_smaller_volume_keeps_rows_whole_and_in_order(world in world(), keep in 0.05..1.0f64, seed in 0u64..9) {
        let (_dir, calm) = raw(&world);
        let day = altered(&calm, &format!("volume={keep}"), seed);
        prop_assert_eq!(&day.contracts, &calm.contracts);
        let mut rest = calm.rows.iter();
        for row in &day.rows {
            prop_assert!(rest.any(|old| old == row), "a row that was not there, or in another order");
        }
        // What stays does not depend on the rows beside it.
        let less = altered(&calm, &format!("volume={}", 0.5 * keep), seed);
        prop_assert!(less.rows.iter().all(|row| day.rows.contains(row)));
    }

    #[test]
    fn demands_and_flights_stay_what_a_control_table_may_say(world in world(), seed in 0u64..9) {
        let (_dir, calm) = raw(&world);
        for text in ["demands=0.8", "flights=1"] {
            let day = altered(&calm, text, seed);
            prop_assert_eq!(&day.rows, &calm.rows);
            for (new, old) in day.contracts.iter().zip(&calm.contracts) {
                prop_assert!(new.required >= 1 && new.cap >= new.required && new.cap >= new.delivered0, "{new:?}");
                prop_assert_eq!((new.ad_id, new.delivered0, new.penalty), (old.ad_id, old.delivered0, old.penalty));
                if text.starts_with("flights") {
                    prop_assert!(new.start_ms >= old.start_ms && new.end_ms <= old.end_ms && new.start_ms < new.end_ms);
                    prop_assert!(new.required <= old.required.max(1));
                } else {
                    prop_assert_eq!((new.start_ms, new.end_ms), (old.start_ms, old.end_ms));
                }
            }
        }
    }

    #[test]
    fn newcomers_are_the_same_contracts_under_ids_that_nobody_knows(mut world in world(), seed in 0u64..9) {
        for c in &mut world.contracts {
            c.rate = 1.0;
        }
        let (_dir, calm) = raw(&world);
        let day = altered(&calm, "newcomers=0.5", seed);
        let ids: HashMap<u64, u64> =
            day.contracts.iter().zip(&calm.contracts).map(|(new, old)| (new.ad_id, old.ad_id)).collect();
        prop_assert_eq!(ids.len(), calm.contracts.len(), "ids stay unique");
        let renamed = ids.iter().filter(|(new, old)| new != old).count();
        let n = calm.contracts.len();
        prop_assert_eq!(renamed, if n == 0 { 0 } else { ((0.5 * n as f64).round() as usize).max(1) });
        let mut back = day.clone();
        for c in &mut back.contracts {
            c.ad_id = ids[&c.ad_id];
        }
        for e in back.rows.iter_mut().flat_map(|r| &mut r.queue).filter(|e| e.ad_type == AdType::Contract) {
            e.ad_id = ids[&e.ad_id];
        }
        prop_assert_eq!((&back.rows, &back.contracts), (&calm.rows, &calm.contracts));
        let options = CompileOptions::default();
        let upper = |day: &RawDay| hindsight_bound(&day.compile_altered(options, "x").unwrap(), 0).upper;
        prop_assert!(close(upper(&day), upper(&calm)), "a name is worth nothing");
    }

    #[test]
    fn a_stressed_day_is_above_every_policy_and_leaves_no_trace(world in world(), which in 0..ALL.len(), seed in 0u64..9) {
        let Loaded { dir, plan, day, .. } = world.load();
        let before = (files_below(dir.path()), day.log.inputs());
        let stress = stress(ALL[which], seed);
        let test_day = match TestDay::open(dir.path(), CompileOptions::default(), LOGGED, Some(&stress)) {
            Ok(test_day) => test_day,
            Err(e) => {
                prop_assert!(e.to_string().contains("no request is left"), "{e}");
                return Ok(());
            }
        };
        let names = admix::policy::baselines::NAMES.map(String::from);
        let settings = Settings::default();
        let report = evaluate::compare(&test_day, &[], Some(&plan), &names, &settings, &mut |_, _| Ok(())).unwrap();
        prop_assert_eq!(report.stress.as_deref(), Some(ALL[which]));
        prop_assert!(report.policies.len() > 1);
        for p in &report.policies {
            let ub = report.bound.ub;
            prop_assert!(p.j <= ub + 1e-9 * (1.0 + ub.abs()), "{} earns {}, the bound is {ub}", p.name, p.j);
        }
        let again = log::open(dir.path(), CompileOptions::default()).unwrap();
        prop_assert_eq!((files_below(dir.path()), again.inputs()), before);
        prop_assert_eq!(again.requests(), day.log.requests());
    }

    #[test]
    fn compiled_in_memory_or_in_a_file_a_day_is_the_same(world in world()) {
        let (dir, calm) = raw(&world);
        let file = log::open(dir.path(), CompileOptions::default()).unwrap();
        let memory = calm.compile_altered(CompileOptions::default(), "nothing").unwrap();
        prop_assert!(file.inputs() != memory.inputs(), "an altered log is not taken for the directory's");
        prop_assert_eq!(file.requests(), memory.requests());
        prop_assert_eq!(file.contracts(), memory.contracts());
        for (a, b) in file.requests().iter().zip(memory.requests()) {
            prop_assert_eq!((file.entries(&a).to_vec(), file.auctions(&a).to_vec()), (memory.entries(&b).to_vec(), memory.auctions(&b).to_vec()));
        }
    }
}

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/test-0");

fn sample(text: &str, seed: u64) -> TestDay {
    let stress = stress(text, seed);
    TestDay::open(Path::new(SAMPLE), CompileOptions::default(), LOGGED, Some(&stress)).unwrap()
}

#[test]
fn a_stress_is_as_large_as_it_says() {
    let calm = RawDay::read(Path::new(SAMPLE), CompileOptions::default()).unwrap();
    let kept = altered(&calm, "volume=0.75", 3).rows.len() as f64 / calm.rows.len() as f64;
    assert!((kept - 0.75).abs() < 0.015, "{kept} of the requests are left");
    let factors: Vec<f64> = (0..200)
        .flat_map(|seed| {
            let day = altered(&calm, "demands=0.3", seed);
            let factor = |(new, old): (&log::schema::ControlRow, &log::schema::ControlRow)| {
                new.required as f64 / old.required as f64
            };
            day.contracts.iter().zip(&calm.contracts).map(factor).collect::<Vec<_>>()
        })
        .collect();
    let n = factors.len() as f64;
    let mean = factors.iter().sum::<f64>() / n;
    let log_mean = factors.iter().map(|f| f.ln()).sum::<f64>() / n;
    let log_sd = (factors.iter().map(|f| (f.ln() - log_mean).powi(2)).sum::<f64>() / n).sqrt();
    assert!((mean - 1.0).abs() < 0.03 && (log_sd - 0.3).abs() < 0.02, "mean {mean}, log-sd {log_sd}");
    let cut = (0..200).map(|seed| altered(&calm, "flights=0.5", seed)).flat_map(|day| day.contracts);
    let whole = calm.contracts.iter().cycle();
    let share = cut.zip(whole).filter(|(new, old)| (new.start_ms, new.end_ms) != (old.start_ms, old.end_ms)).count();
    assert!((share as f64 / n - 0.5).abs() < 0.04, "{share} of {n} flights are cut");
}

#[test]
fn a_random_hour_differs_by_seed_and_is_the_same_again() {
    let calm = RawDay::read(Path::new(SAMPLE), CompileOptions::default()).unwrap();
    let hour = |seed| {
        let day = altered(&calm, "prices=2@random", seed);
        let first = day.rows.iter().zip(&calm.rows).find(|(new, old)| new != old).unwrap().1.ts_ms;
        (first - calm.day.start_ms) as f64 / 3_600_000.0
    };
    let hours: Vec<f64> = (0..8).map(hour).collect();
    assert_eq!(hours, (0..8).map(hour).collect::<Vec<_>>());
    assert!(hours.iter().all(|h| (4.0..20.2).contains(h)), "{hours:?}");
    assert!(hours.iter().any(|h| (h - hours[0]).abs() > 1.0), "{hours:?}");
}

#[test]
fn a_wrong_forecast_changes_what_is_planned_and_not_what_happens() {
    let log = log::open(Path::new(SAMPLE), CompileOptions::default()).unwrap();
    let plan = Plan::from_days(&[&log], 0).unwrap();
    let calm =
        TestDay::open(Path::new(SAMPLE), CompileOptions::default(), LOGGED, None).unwrap().model(&plan, <_>::default());
    let level = sample("forecast-level=1.3", 0).model(&plan, <_>::default());
    let nodes = sample("forecast=0.3", 0).model(&plan, <_>::default());
    for day in [&level, &nodes] {
        assert_eq!(day.log.requests(), log.requests());
    }
    for ((c, l), n) in calm.contracts.iter().zip(&level.contracts).zip(&nodes.contracts) {
        assert!(close(l.supply.total(), 1.3 * c.supply.total()));
        let error = n.supply.total() / c.supply.total();
        assert!((0.5..2.0).contains(&error) && !close(error, 1.0), "{error}");
    }
    assert!((nodes.traffic.total() / calm.traffic.total() - 1.0).abs() < 0.2);
    let env = Settings::default().env;
    let options = sample("delay=1800+forecast=0.3", 0).options(&env);
    assert_eq!(options.delay, Delay::fixed(1800.0));
    assert_eq!(calm.offset(0), nodes.offset(0));
    assert!(calm.offset(0) < DAY_MS);
}

#[test]
fn eval_takes_a_stress_and_says_so() {
    let run = |arguments: &[&str]| {
        let mut command = super::support::admix();
        command.args(["eval", "--log", SAMPLE]).args(arguments).assert()
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = run(&[&["--json"], arguments].concat()).success();
        serde_json::from_slice(&output.get_output().stdout).unwrap()
    };
    let (calm, dear) = (json(&[]), json(&["--stress", "prices=1.4@14"]));
    assert!(calm["stress"].is_null());
    assert_eq!(dear["stress"], "prices=1.4@14");
    assert!(dear["bound"]["ub"].as_f64() > calm["bound"]["ub"].as_f64());
    assert_eq!(calm["requests"], dear["requests"]);
    let table = run(&["--stress", "volume=0.75", "--stress-seed", "4"]).success();
    assert!(String::from_utf8_lossy(&table.get_output().stdout).contains("volume=0.75"));
    let refused = run(&["--stress", "price=2"]).code(2);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("prices=FACTOR"));
}

#[test]
fn text_is_kept_and_malformed_parts_say_what_to_write() {
    for text in ALL {
        assert_eq!(text.parse::<Stress>().unwrap().to_string(), *text);
    }
    for text in ["", "prices", "price=2", "volume=1.5", "delay=-1", "prices=1.4@25", "volume=0.5+x=1", "flights=nan"] {
        let why = text.parse::<Stress>().unwrap_err();
        assert!(why.contains("stress"), "{text}: {why}");
    }
}
