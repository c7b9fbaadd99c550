//! Checks the promises of a generated world against its files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::*;

/// A directory for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("admix-synth-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Failing to remove it is harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn plain(requests: u32) -> WorldSettings {
    WorldSettings { requests, compress: Compress::None, ..WorldSettings::default() }
}

fn generate_quietly(world: &WorldSettings, out: &Path, days: u32) {
    generate(world, out, days, world.seed, &|_| ()).unwrap();
}

/// Reads the rows of a table as maps from column to cell.
fn table(path: &Path) -> Vec<HashMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|l| l.split('\t').map(str::to_string));
    let header: Vec<String> = lines.next().unwrap().collect();
    lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect()
}

fn number(row: &HashMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap()
}

/// Returns `(ad_id, type, ecpm, pctr, filter)` of every entry.
fn entries(row: &HashMap<String, String>) -> Vec<(u64, char, f64, f64, u64)> {
    row["queue"]
        .split(';')
        .map(|entry| {
            let p: Vec<&str> = entry.split(',').collect();
            (
                p[0].parse().unwrap(),
                p[1].chars().next().unwrap(),
                p[2].parse().unwrap(),
                p[3].parse().unwrap(),
                p[4].parse().unwrap(),
            )
        })
        .collect()
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads_but_on_the_seed() {
    let scratch = Scratch::new("threads");
    let world = WorldSettings { requests: 1500, ..WorldSettings::default() };
    let digest = |name: &str, threads: usize, seed: u64| {
        let out = scratch.0.join(name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let done = pool.build().unwrap().install(|| {
            let told = RefCell::new(Vec::new());
            generate(&world, &out, 5, seed, &|d| told.borrow_mut().push(d)).unwrap();
            told.into_inner()
        });
        assert_eq!(done, [1, 2, 3, 4, 5]);
        let mut files = Vec::new();
        for day in 0..5 {
            for name in ["day.toml", "track_log.tsv.zst", "control.tsv", "inventory.tsv", "joined_exposure.tsv.zst"] {
                files.push(std::fs::read(out.join(format!("day-{day}")).join(name)).unwrap());
            }
        }
        files
    };
    let one = digest("one", 1, 11);
    assert!(one == digest("four", 4, 11));
    assert!(one != digest("other", 1, 12));
    assert!(one[1] != one[6], "days differ");
}

#[test]
fn the_best_auction_entry_has_the_asked_mean_spread_and_lead() {
    let scratch = Scratch::new("prices");
    let world = WorldSettings { price_drift: 0.0, ..plain(6000) };
    generate_quietly(&world, &scratch.0, 4);
    let (mut bests, mut ratios, mut contracts) = (Vec::new(), Vec::new(), 0);
    for day in 0..4 {
        for row in table(&scratch.0.join(format!("day-{day}/track_log.tsv"))) {
            let queue = entries(&row);
            assert!(queue.is_sorted_by(|a, b| a.2 >= b.2));
            contracts += queue.iter().filter(|e| e.1 == 'C').count();
            let auction: Vec<f64> = queue.iter().filter(|e| e.1 == 'A' && e.4 == 0).map(|e| e.2).collect();
            if let [first, second, ..] = auction[..] {
                bests.push(first);
                ratios.push(first / second);
            }
        }
    }
    let n = bests.len() as f64;
    let mean = bests.iter().sum::<f64>() / n;
    let log_mean = bests.iter().map(|b| b.ln()).sum::<f64>() / n;
    let log_sd = (bests.iter().map(|b| (b.ln() - log_mean).powi(2)).sum::<f64>() / n).sqrt();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    assert!((mean / 2000.0 - 1.0).abs() < 0.06, "{mean}");
    assert!((log_sd - 0.76).abs() < 0.03, "{log_sd}");
    assert!((ratio - 1.12).abs() < 0.01, "{ratio}");
    assert!((contracts as f64 / n - 6.0).abs() < 0.7, "{contracts} in {n}");
}

#[test]
fn demands_fill_what_was_asked_and_follow_the_optional_keys() {
    let scratch = Scratch::new("demand");
    let world = WorldSettings { cap_slack: 0.25, delivered0_share: 0.1, rate: 0.5, ..plain(20_000) };
    generate_quietly(&world, &scratch.0, 2);
    let control = table(&scratch.0.join("day-1/control.tsv"));
    let required: f64 = control.iter().map(|r| number(r, "required")).sum();
    assert!((required / 20_000.0 - 0.45).abs() < 0.02, "{required}");
    for row in &control {
        let required = number(row, "required");
        assert!((number(row, "cap") - 1.25 * required).abs() <= 0.5);
        assert!((number(row, "delivered0") - 0.1 * required).abs() <= 0.5);
        assert_eq!(number(row, "rate"), 0.5);
        assert!((2.0..=8.0).contains(&number(row, "penalty")));
    }
    let part_day = control.iter().filter(|r| !r["start_ms"].is_empty()).count();
    assert!((1..=15).contains(&part_day), "{part_day}");
}

#[test]
fn the_live_policy_shows_only_what_may_be_shown() {
    let scratch = Scratch::new("live");
    let world = WorldSettings { filter_share: 0.3, ..plain(8000) };
    generate_quietly(&world, &scratch.0, 1);
    let dir = scratch.0.join("day-0");
    let track: HashMap<String, HashMap<String, String>> =
        table(&dir.join("track_log.tsv")).into_iter().map(|r| (r["request_id"].clone(), r)).collect();
    let control: HashMap<u64, HashMap<String, String>> =
        table(&dir.join("control.tsv")).into_iter().map(|r| (r["ad_id"].parse().unwrap(), r)).collect();
    let (mut delivered, mut explored) = (HashMap::<u64, f64>::new(), 0.0);
    let exposure = table(&dir.join("joined_exposure.tsv"));
    for row in &exposure {
        let ad: u64 = row["ad_id"].parse().unwrap();
        let queue = entries(&track[&row["request_id"]]);
        let entry = queue.iter().find(|e| e.0 == ad).expect("it was in the queue");
        assert_eq!(entry.4, 0, "filtered entry shown");
        assert!(number(row, "arrival_ms") >= number(row, "ts_ms"));
        let propensity = number(row, "propensity");
        assert!(propensity > 0.0 && propensity <= 1.0);
        explored += number(row, "explore");
        if let Some(terms) = control.get(&ad) {
            let count = delivered.entry(ad).or_default();
            *count += 1.0;
            assert!(*count <= number(terms, "cap"));
            if !terms["start_ms"].is_empty() {
                let flight = number(terms, "start_ms")..number(terms, "end_ms");
                assert!(flight.contains(&number(row, "ts_ms")));
            }
        }
    }
    let n = exposure.len() as f64;
    assert!((explored / n - 0.05).abs() < 0.01, "{explored} of {n}");
    let required: f64 = control.values().map(|r| number(r, "required")).sum();
    let total: f64 = delivered.values().sum();
    assert!(total > 0.6 * required, "{total} of {required}");
}

#[test]
fn an_auction_only_world_has_no_contracts_anywhere() {
    let scratch = Scratch::new("auction");
    let world = WorldSettings { contracts: 0, ..plain(500) };
    generate_quietly(&world, &scratch.0, 1);
    assert!(table(&scratch.0.join("day-0/control.tsv")).is_empty());
    let track = table(&scratch.0.join("day-0/track_log.tsv"));
    assert!(track.iter().all(|r| entries(r).iter().all(|e| e.1 == 'A')));
    assert!(table(&scratch.0.join("day-0/joined_exposure.tsv")).len() > 300);
}

#[test]
fn the_smallest_world_can_be_drawn() {
    let scratch = Scratch::new("smallest");
    let world = WorldSettings {
        queue: 2,
        regions: 1,
        ages: 1,
        slots: 1,
        users: 1,
        auction_ads: 4,
        contracts: 1,
        contracts_per_queue: 0.5,
        cell_log_sd: 0.0,
        top_ratio: 1.05,
        ..plain(10)
    };
    for seed in 0..20 {
        generate(&world, &scratch.0, 1, seed, &|_| ()).unwrap();
    }
    assert_eq!(table(&scratch.0.join("day-0/inventory.tsv")).len(), 6);
}

/// Returns the requests by hour of a written day.
fn by_hour(dir: &Path) -> [f64; 24] {
    let mut counts = [0.0; 24];
    for row in table(&dir.join("track_log.tsv")) {
        counts[(number(&row, "ts_ms") as u64 / 3_600_000 % 24) as usize] += 1.0;
    }
    counts
}

#[test]
fn the_volatile_file_draws_sound_worlds_that_differ() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/synth/volatile.toml");
    let file = load(&file).unwrap();
    let worlds: Vec<WorldSettings> =
        (1..=40).map(|seed| WorldSettings { seed, ..file.clone() }.drawn().unwrap()).collect();
    let spread = |f: fn(&WorldSettings) -> f64| {
        let values = worlds.iter().map(f);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (low, high) = spread(|w| w.volume_noise);
    assert!((0.15..0.2).contains(&low) && (0.4..=0.45).contains(&high), "{low} {high}");
    let (low, high) = spread(|w| w.requests.into());
    assert!((10_000.0..20_000.0).contains(&low) && (50_000.0..=60_000.0).contains(&high), "{low} {high}");
}

#[test]
fn hourly_volume_changes_the_number_of_requests_and_not_only_when_they_come() {
    let scratch = Scratch::new("wander");
    let calm = WorldSettings { traffic_noise: 0.0, volume_drift: 0.0, ..plain(6000) };
    let volatile = WorldSettings { volume_noise: 0.4, ..calm.clone() };
    generate_quietly(&calm, &scratch.0.join("calm"), 12);
    generate_quietly(&volatile, &scratch.0.join("volatile"), 12);
    let day = |kind: &str, d: u32| by_hour(&scratch.0.join(format!("{kind}/day-{d}")));
    let (mut squares, mut n) = (0.0, 0.0);
    for d in 0..12 {
        let (calm, volatile) = (day("calm", d), day("volatile", d));
        assert_eq!(calm.iter().sum::<f64>(), 6000.0);
        assert!(volatile.iter().sum::<f64>() != 6000.0);
        for hour in 8..24 {
            let log = (volatile[hour] / calm[hour]).ln();
            squares += log * log;
            n += 1.0;
        }
    }
    let sd = f64::sqrt(squares / n);
    assert!((0.3..0.55).contains(&sd), "{sd}");
}

#[test]
fn levels_persist_from_day_to_day_if_they_are_told_to() {
    let level = |kept: f64, seed: u64, day: u32| {
        let settings = WorldSettings { level_persistence: kept, price_drift: 0.2, ..WorldSettings::default() };
        conditions::Conditions::draw(&settings, day, &|purpose, day| random::stream(seed, purpose, day)).volume.ln()
    };
    let correlation = |kept: f64| {
        let pairs: Vec<(f64, f64)> = (0..300).map(|seed| (level(kept, seed, 5), level(kept, seed, 6))).collect();
        let sum = |f: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>();
        sum(&|p| p.0 * p.1) / (sum(&|p| p.0 * p.0) * sum(&|p| p.1 * p.1)).sqrt()
    };
    assert!((correlation(0.8) - 0.8).abs() < 0.08, "{}", correlation(0.8));
    assert!(correlation(0.0).abs() < 0.15, "{}", correlation(0.0));
}

#[test]
fn small_contracts_ask_for_a_good_part_of_a_narrow_audience() {
    let settings = WorldSettings { small_share: 0.4, requests: 30_000, ..WorldSettings::default() };
    let world = World::build(settings).unwrap();
    let small: Vec<&contract::Contract> =
        world.contracts.list.iter().filter(|c| c.kind == contract::Kind::Small).collect();
    assert_eq!(small.len(), 12);
    for c in &small {
        assert!((50.0..=500.0).contains(&(c.demand * 30_000.0)));
    }
    let mut tightness: Vec<f64> = small.iter().map(|c| c.demand / c.supply).collect();
    tightness.sort_by(f64::total_cmp);
    assert!((0.15..0.9).contains(&tightness[6]), "{tightness:?}");
}

/// A day in Parquet equals the day in text.
#[test]
fn a_day_in_parquet_says_what_the_text_says() {
    let dir = tempfile::tempdir().unwrap();
    let world = |compress| WorldSettings { compress, boost_share: 0.1, ..plain(20_000) };
    let read = |compress, name: &str| {
        let out = dir.path().join(name);
        generate(&world(compress), &out, 1, 3, &|_| {}).unwrap();
        let day = crate::log::RawDay::read(&out.join("day-0"), crate::log::CompileOptions::default()).unwrap();
        (day.rows, std::fs::read(out.join("day-0/control.tsv")).unwrap())
    };
    assert!(read(Compress::Parquet, "parquet") == read(Compress::None, "text"));
    // After one was written over the other, one track log is left.
    assert!(read(Compress::None, "parquet") == read(Compress::Parquet, "text"));
}
