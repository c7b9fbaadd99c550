//! Ablations are one key away: every key of the configuration is either seen to change what a short run learns, seen to leave it
//! as it is, or listed with the test that covers it. A new key that is in none of the tables fails here.

use std::path::{Path, PathBuf};

use admix::log::schema::AdType;
use admix::policy::file::PolicyFile;
use admix::settings::Settings;
use toml::{Table, Value};

use super::decisions::synth;
use super::harness::Run;
use super::logs::LogRows;

const WORLD: &str = "requests = 900\nqueue = 6\nregions = 3\nslots = 2\nages = 2\nusers = 300\nauction_ads = 40\n\
                     contracts = 4\ncontracts_per_queue = 2.0\nrate = 0.8\nboost_share = 0.2\n";

/// As small as it may be while everything takes part: blocks of both actors, evictions from the pool, publications, a
/// head start that ends.
const BASE: [&str; 17] = [
    "data.test=[]",
    "policy.hidden=8",
    "learner.publish_every=2",
    "learner.batch=64",
    "learner.segment=16",
    "learner.samples_per_update=64",
    "learner.pool=512",
    "learner.critic_head_start=4",
    "learner.critic_hidden=8",
    "learner.quantiles=4",
    "learner.atoms=7",
    "episodes.steps=300",
    "episodes.requests_per_step=1",
    "actors.write_every=64",
    "actors.episodes=4",
    "evaluate.every=100",
    "budget.max_updates=32",
];

/// Key, another value, and what else has to be set for the key to mean anything.
const CHANGE: &[(&str, &str, &[&str])] = &[
    ("score_mode", "all", &[]),
    ("run.seed", "2", &[]),
    ("data.train", "[\"DAYS/day-2\"]", &[]),
    // Of a single training day; with several it chooses alone.
    ("data.validation", "[\"DAYS/day-2\"]", &[]),
    // A policy that predicts deliveries does not see the delay.
    ("env.feedback_delay_s", "600", &["policy.predict=false"]),
    ("env.feedback_delay.median_s", "600", &["env.feedback_delay.max_s=1800", "policy.predict=false"]),
    (
        "env.feedback_delay.log_sd",
        "1",
        &["env.feedback_delay.max_s=1800", "env.feedback_delay.median_s=600", "policy.predict=false"],
    ),
    (
        "env.feedback_delay.max_s",
        "300",
        &["env.feedback_delay.max_s=1800", "env.feedback_delay.median_s=600", "policy.predict=false"],
    ),
    ("env.delay_seed", "1", &["env.feedback_delay={median_s=600, log_sd=1, max_s=1800}", "policy.predict=false"]),
    ("env.rate_seed", "3", &[]),
    ("env.complete_queues", "true", &[]),
    ("episodes.steps", "200", &[]),
    ("episodes.requests_per_step", "3", &[]),
    ("episodes.demand_jitter", "0.3", &[]),
    ("episodes.price_jitter", "0.4", &[]),
    ("episodes.volume_jitter", "0.4", &[]),
    ("episodes.mid_day_share", "0.9", &[]),
    ("episodes.start_spread", "0.3", &[]),
    ("episodes.start_error", "0.5", &[]),
    ("episodes.supply_error", "0.5", &[]),
    ("episodes.jump_share", "0.9", &[]),
    ("episodes.jump_sd", "0.6", &[]),
    ("episodes.volume_noise", "0.4", &[]),
    ("episodes.price_noise", "0.3", &[]),
    ("episodes.shock_sd", "0.8", &[]),
    ("reward.auction", "0.5", &[]),
    ("reward.contract_ctr", "0.5", &[]),
    ("reward.contract_delivery", "0.5", &[]),
    ("policy.hidden", "4", &[]),
    ("policy.ad_embedding", "4", &[]),
    ("policy.traffic_embedding", "2", &[]),
    ("policy.temperature", "0.1", &[]),
    ("policy.initial_bid", "0.3", &["policy.warm_start=false"]),
    ("policy.warm_start", "false", &[]),
    ("policy.replan", "false", &[]),
    ("policy.volume_model", "false", &[]),
    ("policy.volume_model", "false", &["policy.outlook=true"]),
    ("policy.pacing", "false", &[]),
    ("policy.predict", "false", &["env.feedback_delay_s=1800"]),
    ("policy.outlook", "true", &[]),
    (
        "policy.shipped_start",
        "false",
        &["policy.outlook=true", "policy.pacing=false", "policy.hidden=64", "learner.target=hindsight"],
    ),
    ("policy.negative_bids", "true", &[]),
    ("policy.auction_candidates", "4", &["score_mode=all"]),
    ("learner.target", "hindsight", &[]),
    ("learner.target", "both", &[]),
    ("learner.lesson_every_s", "7200", &["learner.target=hindsight"]),
    ("learner.hedge", "0.5", &["learner.target=hindsight"]),
    ("learner.critic", "categorical", &[]),
    ("learner.critic", "scalar", &[]),
    ("learner.credit", "total", &[]),
    ("learner.publish_every", "4", &[]),
    ("learner.batch", "128", &[]),
    ("learner.segment", "8", &[]),
    ("learner.pool", "256", &[]),
    ("learner.samples_per_update", "32", &[]),
    ("learner.anchor", "3", &[]),
    ("learner.critic_head_start", "8", &[]),
    ("learner.actor_rate", "3e-3", &[]),
    ("learner.critic_rate", "5e-3", &[]),
    ("learner.final_rate_share", "0.5", &[]),
    ("learner.adam_epsilon", "1e-3", &[]),
    ("learner.actor_clip", "1e-4", &[]),
    ("learner.critic_clip", "1e-3", &[]),
    ("learner.target_rate", "0.5", &[]),
    ("learner.average_rate", "0.1", &[]),
    ("learner.lambda", "0.5", &[]),
    ("learner.critic_hidden", "4", &[]),
    ("learner.quantiles", "8", &[]),
    ("learner.kappa", "0.01", &[]),
    ("learner.atoms", "21", &["learner.critic=categorical"]),
    ("actors.count", "3", &[]),
    ("actors.write_every", "128", &[]),
    ("actors.episodes", "2", &[]),
    ("budget.max_updates", "24", &[]),
    ("budget.max_samples", "1000", &[]),
    ("serial.literal", "true", &[]),
    ("baselines.tuning_replays", "3", &[]),
    ("baselines.interval_s", "7200", &["baselines.tuning_replays=24"]),
];

/// What must not change what is learned: it chooses, reports, or says how the work is laid out.
const KEEP: &[(&str, &str)] = &[
    ("data.test", "[\"DAYS/day-2\"]"),
    ("data.max_bad_share", "0.5"),
    ("data.memory_mb", "64"),
    ("evaluate.every", "8"),
    // It chooses among what is learned: `chosen` has its test.
    ("evaluate.keep_start", "false"),
    ("stop.patience", "100"),
    ("learner.threads", "2"),
    // So long that what has passed of it at the first update is less than a rounding of the rate, however busy the machine is.
    ("budget.max_seconds", "1e9"),
    // Rings are between processes; in one process there are none.
    ("actors.regions", "3"),
    ("actors.overflow", "overwrite"),
    ("actors.max_restarts", "1"),
    // Snapshots and watchdogs are of runs in processes: `crash` and `resume` have their tests.
    ("checkpoint.every_s", "1"),
    ("checkpoint.keep", "5"),
    ("watchdog.silent_s", "50"),
    ("watchdog.stuck_s", "50"),
    ("watchdog.grace_s", "50"),
    ("watchdog.max_restarts", "5"),
    ("watchdog.max_rollbacks", "5"),
];

/// How the run is done, not what: `determinism` and `train` have their tests. At which values: `values` has. By how many learners,
/// and what averages their gradients: `learner_ranks` has.
const MODES: &[&str] = &["run.device", "run.deterministic", "data.values", "learner.ranks", "learner.collective"];

/// The days with the contracts missing from every third queue, so that completing queues means something.
fn censored(days: &[PathBuf], folder: PathBuf) -> PathBuf {
    std::fs::create_dir(&folder).unwrap();
    for dir in days {
        let mut day = LogRows::read(dir);
        for row in day.requests.iter_mut().step_by(3) {
            row.queue.retain(|e| e.ad_type == AdType::Auction);
        }
        day.write(folder.join(dir.file_name().unwrap()));
    }
    folder
}

/// What a run of these settings learns: the averaged actor's bits.
fn learned(days: &Path, sets: &[String]) -> Vec<u32> {
    let sets: Vec<&str> = BASE.into_iter().chain(sets.iter().map(String::as_str)).collect();
    let ended = Run::start_on(days, &sets, &["--serial"]).wait().expect(0);
    // The file also holds the policy's settings: only weights tell what was learned.
    PolicyFile::read(&ended.last()).unwrap().actor.iter().map(|w| w.to_bits()).collect()
}

#[test]
fn every_key_changes_what_is_learned_or_is_known_not_to() {
    let scratch = tempfile::tempdir().unwrap();
    let days = &censored(&synth(scratch.path(), WORLD, 3), scratch.path().join("censored"));
    let set = |key: &str, value: &str| format!("{key}={}", value.replace("DAYS", days.to_str().unwrap()));
    let usual = learned(days, &[]);
    assert_eq!(learned(days, &[]), usual, "the same settings learn the same");
    let ignored: Vec<_> = CHANGE
        .iter()
        .filter(|(key, value, context)| {
            let mut sets: Vec<String> = context.iter().map(ToString::to_string).collect();
            let without = if sets.is_empty() { usual.clone() } else { learned(days, &sets) };
            sets.push(set(key, value));
            learned(days, &sets) == without
        })
        .collect();
    assert!(ignored.is_empty(), "keys that do nothing: {ignored:?}");
    let moved: Vec<_> = KEEP
        .iter()
        .filter(|(key, value)| {
            let room = if *key == "actors.overflow" { &["actors.regions=3".to_owned()][..] } else { &[] };
            learned(days, &[room, &[set(key, value)]].concat()) != usual
        })
        .collect();
    assert!(moved.is_empty(), "keys that change what is learned and should not: {moved:?}");
}

/// Every key of the configuration as a dotted path.
fn keys(table: &Table, prefix: &str) -> Vec<String> {
    let path = |key: &String| if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
    let inner = table.iter().flat_map(|(key, value)| match value {
        Value::Table(section) => keys(section, &path(key)),
        _ => vec![path(key)],
    });
    inner.collect()
}

#[test]
fn no_key_is_left_out() {
    let all = keys(&Settings::default().to_toml().parse().unwrap(), "");
    let listed: Vec<&str> = CHANGE
        .iter()
        .map(|(key, ..)| *key)
        .chain(KEEP.iter().map(|(key, _)| *key))
        .chain(MODES.iter().copied())
        .collect();
    let missing: Vec<_> = all.iter().filter(|key| !listed.contains(&key.as_str())).collect();
    assert!(
        missing.is_empty(),
        "give each a value that changes what is learned, or a reason why none does: {missing:?}"
    );
    assert!(listed.iter().all(|key| all.iter().any(|k| k == key)));
}
