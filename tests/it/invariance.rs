//! What a day is called and how it is written down changes nothing.
//!
//! That the order of a queue changes nothing is shown in `replay`, on random worlds; that the track log's columns, line ends and
//! compression change nothing, in `inputs`.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use admix::policy::baselines;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::decisions::{Evaluation, SMALL, TWISTED, decisions, evaluate, plan, synth};
use super::harness::Run;
use super::logs::LogRows;
use super::worlds::{close, text_of};

/// Nobody's fate hangs on a hash of its id: every rate is 1.
const CERTAIN: &str = "contracts = 7\ncontracts_per_queue = 2.5\ncap_slack = 0.3\ndelivered0_share = 0.15\n\
                       boost_share = 0.2\nfilter_share = 0.2\npart_day_share = 0.5\n";
/// Nothing is looked up by an id.
const NO_EMBEDDING: [&str; 3] = ["policy.ad_embedding=0", "policy.traffic_embedding=0", "data.test=[]"];

/// A bijection of every kind of id; 0 stays where it means unknown.
struct Renaming {
    ads: HashMap<u64, u64>,
    requests: HashMap<u64, u64>,
    users: HashMap<u64, u64>,
    slots: HashMap<u32, u32>,
    regions: HashMap<u32, u32>,
}

fn bijection<T: Copy + Eq + std::hash::Hash>(
    ids: &BTreeSet<T>,
    mut draw: impl FnMut() -> T,
    rng: &mut ChaCha8Rng,
) -> HashMap<T, T> {
    let mut names = std::collections::HashSet::new();
    while names.len() < ids.len() {
        names.insert(draw());
    }
    let mut names: Vec<T> = names.into_iter().collect();
    names.shuffle(rng);
    ids.iter().copied().zip(names).collect()
}

impl Renaming {
    fn of(days: &[LogRows]) -> Self {
        let requests = || days.iter().flat_map(|d| &d.requests);
        let contracts = || days.iter().flat_map(|d| &d.contracts);
        let nodes = || days.iter().flat_map(|d| d.inventory.iter().flatten());
        let ads = requests().flat_map(|r| r.queue.iter().map(|e| e.ad_id));
        let ads = ads.chain(contracts().map(|c| c.ad_id)).chain(nodes().flat_map(|n| n.ad_ids.clone())).collect();
        let targeted = |list: fn(&admix::log::targeting::Targeting) -> &Vec<u32>| {
            contracts().flat_map(move |c| list(&c.targeting).clone())
        };
        let slots = requests().map(|r| r.slot_id).chain(nodes().map(|n| n.slot_id)).chain(targeted(|t| &t.slot));
        let regions = requests().map(|r| r.region).chain(nodes().map(|n| n.region)).chain(targeted(|t| &t.region));
        let (mut draws, mut rng) = (ChaCha8Rng::seed_from_u64(1), ChaCha8Rng::seed_from_u64(2));
        let mut small = ChaCha8Rng::seed_from_u64(3);
        let mut long = |ids: BTreeSet<u64>| bijection(&ids, || draws.random::<u64>(), &mut rng);
        let ads = long(ads);
        let requests_by = long(requests().map(|r| r.request_id).collect());
        let users = long(requests().filter_map(|r| r.user_id).collect());
        let mut short = |ids: BTreeSet<u32>| bijection(&ids, || small.random_range(1..u32::MAX), &mut rng);
        let slots = short(slots.collect());
        let mut regions = short(regions.filter(|r| *r != 0).collect());
        regions.insert(0, 0);
        Self { ads, requests: requests_by, users, slots, regions }
    }

    fn apply(&self, day: &LogRows) -> LogRows {
        let mut day = day.clone();
        for r in &mut day.requests {
            r.request_id = self.requests[&r.request_id];
            r.user_id = r.user_id.map(|u| self.users[&u]);
            (r.slot_id, r.region) = (self.slots[&r.slot_id], self.regions[&r.region]);
            r.queue.iter_mut().for_each(|e| e.ad_id = self.ads[&e.ad_id]);
        }
        for c in &mut day.contracts {
            c.ad_id = self.ads[&c.ad_id];
            c.targeting.slot.iter_mut().for_each(|s| *s = self.slots[s]);
            c.targeting.region.iter_mut().for_each(|r| *r = self.regions[r]);
        }
        for n in day.inventory.iter_mut().flatten() {
            (n.slot_id, n.region) = (self.slots[&n.slot_id], self.regions[&n.region]);
            n.ad_ids.iter_mut().for_each(|ad| *ad = self.ads[ad]);
        }
        day
    }
}

/// Plans on, trains on and evaluates the days of a folder, from the start to the decisions.
fn whole_way(folder: &Path, days: &[PathBuf]) -> Evaluation {
    let plan = plan(folder, &days[..1]);
    let mut arguments = vec!["--plan".to_owned(), plan.to_str().unwrap().to_owned(), "--policy".to_owned()];
    for mode in ["contract", "all"] {
        let mode_set = format!("score_mode={mode}");
        let sets = [&NO_EMBEDDING[..], &[&mode_set]].concat();
        let ended = Run::start_on(days[0].parent().unwrap(), &sets, &["--serial"]).wait().expect(0);
        let path = folder.join(format!("trained-{mode}.safetensors"));
        std::fs::copy(ended.last(), &path).unwrap();
        arguments.push(path.to_str().unwrap().to_owned());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    evaluate(&days[2..], &arguments)
}

fn policies(evaluation: &Evaluation) -> &[Value] {
    evaluation.reports[0]["policies"].as_array().unwrap()
}

#[test]
fn other_ids_give_the_same_decisions_under_their_other_names() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    std::fs::create_dir_all(two.join("days")).unwrap();
    std::fs::create_dir(&one).unwrap();
    let days = synth(&one, &format!("{SMALL}{CERTAIN}"), 3);
    let rows: Vec<LogRows> = days.iter().map(|dir| LogRows::read(dir)).collect();
    let renaming = Renaming::of(&rows);
    let renamed: Vec<PathBuf> = rows
        .iter()
        .enumerate()
        .map(|(i, day)| renaming.apply(day).write(two.join("days").join(format!("day-{i}"))))
        .collect();
    let (here, there) = (whole_way(&one, &days), whole_way(&two, &renamed));
    let mut checked = Vec::new();
    // Renamed days have no exposures: nothing was shown on them.
    let scored = |p: &&Value| p["name"] != "logged";
    for (a, b) in policies(&here).iter().filter(scored).zip(policies(&there).iter().filter(scored)) {
        let name = a["name"].as_str().unwrap();
        assert_eq!(a["name"], b["name"]);
        // They draw by a hash of request and ad id, as a platform's lottery does: other ids, another draw.
        if baselines::draws(name) {
            continue;
        }
        let of = |evaluation: &Evaluation| decisions(&evaluation.folder.path().join("day-2"), name);
        let expected: Vec<_> = of(&here)
            .into_iter()
            .map(|(id, shown)| (renaming.requests[&id], shown.map(|(ad, kind)| (renaming.ads[&ad], kind))))
            .collect();
        let moved = expected.iter().zip(&of(&there)).filter(|(a, b)| a != b).count();
        assert_eq!(moved, 0, "{name}: of {} decisions", expected.len());
        assert!(close(a["j"].as_f64().unwrap(), b["j"].as_f64().unwrap()), "{a} and {b}");
        checked.push(name);
    }
    for name in baselines::NAMES.iter().filter(|name| !baselines::draws(name)).chain(&[
        "trained-contract",
        "trained-all",
        "oracle",
    ]) {
        assert!(checked.contains(name), "{name} took no part");
    }
}

/// The text of a table with its columns in the opposite order.
fn reversed(text: &str) -> String {
    let line = |line: &str| line.split('\t').rev().collect::<Vec<_>>().join("\t") + "\n";
    text.lines().map(line).collect()
}

#[test]
fn column_order_and_compression_of_every_table_change_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 2);
    let plan = plan(scratch.path(), &days[..1]);
    let arguments = ["--plan", plan.to_str().unwrap(), "--feedback-delay", "60"];
    let usual = evaluate(&days[1..], &arguments);
    for ending in ["gz", "zst"] {
        let dir = scratch.path().join(ending).join("day-1");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy(days[1].join("day.toml"), dir.join("day.toml")).unwrap();
        for name in ["track_log", "control", "inventory", "joined_exposure"] {
            let path = dir.join(format!("{name}.tsv.{ending}"));
            let mut table = admix::log::write::TableWriter::create(&path).unwrap();
            std::io::Write::write_all(&mut table, reversed(&text_of(&days[1], name)).as_bytes()).unwrap();
            table.finish().unwrap();
        }
        let other = evaluate(&[dir], &arguments);
        assert_eq!(other.reports, usual.reports, "{ending}");
        for policy in policies(&usual) {
            let of = |evaluation: &Evaluation| {
                decisions(&evaluation.folder.path().join("day-1"), policy["name"].as_str().unwrap())
            };
            assert_eq!(of(&other), of(&usual), "{ending}, {policy}");
        }
    }
}
