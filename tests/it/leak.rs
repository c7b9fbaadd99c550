//! Nobody but the oracle knows the future: whatever a log holds after a moment, decisions before it stay as they were.
//!
//! Through `admix eval --decisions`, with plans and policies of other days, for every baseline and for trained policies. The
//! forecast of a day is its inventory, else the plan's; both stay. Small random worlds are held to the same in `replay`,
//! and days without any plan in `decisions`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use admix::log::schema::{AdType, DAY_MS, MAX_ECPM, QueueEntry, TrackRow};
use admix::policy::baselines;
use admix::policy::file::PolicyFile;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::decisions::{SMALL, TWISTED, decisions, evaluate, plan, synth};
use super::harness::Run;
use super::logs::LogRows;
use super::worlds::Decision;

/// What a log turns into from some moment on.
#[derive(Debug, Clone, Copy)]
enum Future {
    /// Nothing comes any more.
    Ends,
    PricesRise,
    PricesFall,
    ClicksChange,
    /// What was filtered is not, and the other way round.
    FiltersFlip,
    ContractsLeave,
    EveryContractStandsInEveryQueue,
    AuctionsLeave,
    FiveTimesTheTraffic,
    /// Rows go, come, move; all that they say is drawn anew.
    Anything,
}

const FUTURES: [Future; 10] = [
    Future::Ends,
    Future::PricesRise,
    Future::PricesFall,
    Future::ClicksChange,
    Future::FiltersFlip,
    Future::ContractsLeave,
    Future::EveryContractStandsInEveryQueue,
    Future::AuctionsLeave,
    Future::FiveTimesTheTraffic,
    Future::Anything,
];

/// A day with another future from `time` on; its past is the same to the last character.
fn altered(day: &LogRows, time: u64, future: Future, rng: &mut ChaCha8Rng) -> LogRows {
    let end = day.day.start_ms + DAY_MS;
    let contracts: Vec<u64> = day.contracts.iter().map(|c| c.ad_id).collect();
    let mut next_id = 1 << 40;
    let mut copy = |row: &TrackRow, rng: &mut ChaCha8Rng| {
        next_id += 1;
        TrackRow { request_id: next_id, ts_ms: rng.random_range(time..end), ..row.clone() }
    };
    let mut requests = Vec::new();
    for row in &day.requests {
        if row.ts_ms < time {
            requests.push(row.clone());
            continue;
        }
        let mut row = row.clone();
        match future {
            Future::Ends => continue,
            Future::PricesRise => row.queue.iter_mut().for_each(|e| e.ecpm = (40.0 * e.ecpm).min(MAX_ECPM)),
            Future::PricesFall => row.queue.iter_mut().for_each(|e| e.ecpm *= 0.01),
            Future::ClicksChange => row.queue.iter_mut().for_each(|e| e.pctr = rng.random()),
            Future::FiltersFlip => row.queue.iter_mut().for_each(|e| e.filter = u64::from(e.filter == 0)),
            Future::ContractsLeave => row.queue.retain(|e| e.ad_type == AdType::Auction),
            Future::EveryContractStandsInEveryQueue => join_all(&mut row.queue, &contracts, rng),
            Future::AuctionsLeave => row.queue.retain(|e| e.ad_type == AdType::Contract),
            Future::FiveTimesTheTraffic => requests.extend((0..4).map(|_| copy(&row, rng))),
            Future::Anything => {
                if rng.random_bool(0.3) {
                    join_all(&mut row.queue, &contracts, rng);
                }
                row.queue.retain(|_| rng.random_bool(0.8));
                for e in &mut row.queue {
                    e.ecpm = (e.ecpm * rng.random_range(0.0..5.0)).min(MAX_ECPM);
                    e.pctr = rng.random::<f64>().powi(3);
                    e.filter = u64::from(rng.random_bool(0.2));
                    e.boost = rng.random_range(0.2..5.0);
                }
                row.slot_id = rng.random_range(1..=2);
                row.region = rng.random_range(0..=4);
                row.gender = rng.random_range(0..=2);
                row.age = rng.random_range(0..=6);
                row.user_id = Some(rng.next_u64());
                row.ts_ms = rng.random_range(time..end);
                if rng.random_bool(0.3) {
                    requests.push(copy(&row, rng));
                }
                if rng.random_bool(0.3) {
                    continue;
                }
            }
        }
        requests.push(row);
    }
    requests.retain(|row| !row.queue.is_empty());
    LogRows { requests, ..day.clone() }
}

/// Adds the contracts that a queue lacks.
fn join_all(queue: &mut Vec<QueueEntry>, contracts: &[u64], rng: &mut ChaCha8Rng) {
    for &ad_id in contracts {
        if queue.iter().all(|e| e.ad_id != ad_id) {
            let pctr = rng.random_range(0.0..0.1);
            queue.push(QueueEntry { ad_id, ad_type: AdType::Contract, ecpm: 0.0, pctr, filter: 0, boost: 1.0 });
        }
    }
}

/// Two trained policies, one for each score mode, and each again with its weights shaken so that the networks decide.
fn policies(folder: &Path, days: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for (name, sets) in
        [("contract", &[][..]), ("all", &["score_mode=all", "policy.traffic_embedding=2", "policy.negative_bids=true"])]
    {
        let sets = [&["env.feedback_delay_s=600", "data.test=[]"], sets].concat();
        let ended = Run::start_on(days, &sets, &["--serial"]).wait().expect(0);
        let trained = PolicyFile::read(&ended.last()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let actor = trained.actor.iter().map(|w| w + rng.random_range(-0.5..0.5)).collect();
        let shaken = PolicyFile { actor, ..trained.clone() };
        for (kind, file) in [("trained", trained), ("shaken", shaken)] {
            let path = folder.join(format!("{kind}-{name}.safetensors"));
            file.write(&path).unwrap();
            paths.push(path.to_str().unwrap().to_owned());
        }
    }
    paths
}

/// Moments at about a tenth, a half and nine tenths of the requests.
fn moments(day: &LogRows, rng: &mut ChaCha8Rng) -> Vec<u64> {
    let mut times: Vec<u64> = day.requests.iter().map(|r| r.ts_ms).collect();
    times.sort_unstable();
    [0.1, 0.5, 0.9].map(|share| times[(times.len() as f64 * (share + rng.random_range(-0.08..0.08))) as usize]).into()
}

/// What a policy decided on a day, and how many of these decisions moved in all with what came after them.
struct Watched {
    usual: Vec<Decision>,
    moved: usize,
}

/// Evaluates a day and the same with other futures; what became of the decisions before the alteration, by policy.
fn watch(folder: &Path, day: &LogRows, arguments: &[&str]) -> BTreeMap<String, Watched> {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut logs = vec![day.write(folder.join("as-it-was"))];
    let mut times = Vec::new();
    for future in FUTURES {
        for time in moments(day, &mut rng) {
            let other = altered(day, time, future, &mut rng);
            logs.push(other.write(folder.join(format!("{future:?}-{}", times.len()))));
            times.push(time);
        }
    }
    let evaluation = evaluate(&logs, arguments);
    let of = |log: &PathBuf, name: &str| decisions(&evaluation.folder.path().join(log.file_name().unwrap()), name);
    let names = evaluation.reports[0]["policies"].as_array().unwrap().iter();
    let names = names.map(|policy| policy["name"].as_str().unwrap().to_owned());
    names
        .map(|name| {
            let usual = of(&logs[0], &name);
            let mut moved = 0;
            for (log, time) in logs[1..].iter().zip(&times) {
                let other: HashMap<_, _> = of(log, &name).into_iter().collect();
                let past = day.requests.iter().filter(|r| r.ts_ms < *time).map(|r| r.request_id);
                let past: std::collections::HashSet<u64> = past.collect();
                let changed = usual.iter().filter(|(id, shown)| past.contains(id) && other[id] != *shown).count();
                if changed > 0 && name != "oracle" {
                    eprintln!("{name}: {changed} of {} decisions moved before {}", past.len(), log.display());
                }
                moved += changed;
            }
            (name, Watched { usual, moved })
        })
        .collect()
}

/// Only the oracle may move; that it does shows that these futures matter.
fn check(watched: &BTreeMap<String, Watched>) {
    assert!(watched["oracle"].moved > 0, "futures that not even the oracle looks at");
    let moved = watched.iter().map(|(name, w)| (name, w.moved));
    let leaks: Vec<_> = moved.filter(|(name, n)| *name != "oracle" && *n > 0).collect();
    assert!(leaks.is_empty(), "decisions moved with what came after them: {leaks:?}");
}

#[test]
fn no_policy_knows_what_a_log_holds_after_its_decisions() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 3);
    let plan = plan(scratch.path(), &days[..2]);
    let policies = policies(scratch.path(), days[0].parent().unwrap());
    let mut arguments = vec!["--plan", plan.to_str().unwrap(), "--policy"];
    arguments.extend(policies.iter().map(String::as_str));
    let mut day = LogRows::read(&days[2]);
    assert!(day.contracts.iter().any(|c| c.rate < 1.0) && day.inventory.is_some());
    for (name, options) in
        [("inventory", &[][..]), ("plan", &["--feedback-delay", "600", "--rate-seed", "5", "--complete-queues"])]
    {
        if name == "plan" {
            day.inventory = None;
        }
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let watched = watch(&folder, &day, &[&arguments[..], options].concat());
        for name in baselines::NAMES.iter().chain(&["trained-contract", "shaken-contract", "trained-all", "shaken-all"])
        {
            assert!(watched.contains_key(*name), "{name} took no part");
        }
        for mode in ["contract", "all"] {
            let of = |kind: &str| &watched[&format!("{kind}-{mode}")].usual;
            assert!(of("trained") != of("shaken"), "the network decides nothing");
        }
        check(&watched);
    }
}

/// Without a plan the day itself gives the unit of money; no policy may see it.
#[test]
fn no_policy_without_a_plan_knows_what_a_log_holds_after_its_decisions() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 1);
    let folder = scratch.path().join("altered");
    std::fs::create_dir(&folder).unwrap();
    check(&watch(&folder, &LogRows::read(&days[0]), &["--feedback-delay", "60"]));
}
