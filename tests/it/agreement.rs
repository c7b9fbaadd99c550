//! One policy, four ways to ask it: `score`, `serve`, its PyTorch module and the Python binding give what the library's scorer gives, on
//! the same requests in the same state. What this machine has no Python packages for is skipped, aloud.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use admix::env::{FEATURES, Moment, Terms, Vocabulary};
use admix::log::schema::TrackRow;
use admix::plan::Plan;
use admix::policy::file::PolicyFile;
use admix::policy::learned::unit_owed;
use admix::policy::{Bids, PolicySpec, lift};
use admix::score::{DayFiles, Decision, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use admix::settings::{self, ScoreMode};
use rand::SeedableRng as _;
use serde_json::{Value, json};

use super::serve::{World, lines};
use super::support::{admix, python};
use super::worlds::open;

const TEST: &str = "every_way_to_ask_a_policy_gives_the_same_scores";
/// Promised of all ways, relative to scores and to one minor unit per thousand impressions.
const CLOSE: f64 = 1e-5;
const OPTIONS: ScoreOptions = ScoreOptions {
    rate_seed: 4,
    feedback_delay_s: 300.0,
    complete_queues: false,
    stateless: false,
    exposures: false,
    confirm_within_s: None,
};
/// The same for the commands.
const FLAGS: [&str; 4] = ["--rate-seed", "4", "--feedback-delay", "300"];

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A policy with large random weights; `replan`: it solves prices during the day.
fn policy(world: &World, settings: settings::Policy) -> PathBuf {
    let vocabulary = Vocabulary::of_days(&[&open(&world.day)], false);
    let spec = PolicySpec { score_mode: ScoreMode::Contract, policy: settings, vocabulary };
    let actor = spec.actor_shape().initial(&mut rand_chacha::ChaCha8Rng::seed_from_u64(5), 1.0, 0.1);
    let plan: Plan = PolicyFile::read(&world.policies[0]).unwrap().plan;
    let path = world.scratch.path().join("agreed.safetensors");
    PolicyFile { spec: Arc::new(spec), plan, actor, updates: 0 }.write(&path).unwrap();
    path
}

fn files(day: &Path) -> [(&'static str, PathBuf); 3] {
    [("control", day.join("control.tsv")), ("inventory", day.join("inventory.tsv")), ("day", day.join("day.toml"))]
}

/// What the library says of every request, and the same for the module: features, ids and terms of each contract, and its score.
fn library(world: &World, path: &Path, rows: &[TrackRow]) -> (Vec<Decision>, Value) {
    let [control, inventory, day] = files(&world.day).map(|(_, path)| path);
    let served = ServedDay::read(&DayFiles { control, inventory: Some(inventory), day: Some(day) }, 0).unwrap();
    let spec = PolicyFile::read(path).unwrap().spec;
    let mut scorer = Scorer::new(&served, &ServedPolicy::open(path.to_str().unwrap(), None).unwrap(), OPTIONS).unwrap();
    let bids = Bids::new(&scorer.replay().day, &spec.policy);
    let all = Terms::all(&scorer.replay().day, &scorer.replay().episode, spec.policy.warm_start);
    let (mut decisions, mut features, mut ids, mut terms, mut scores) = (vec![], vec![], vec![], vec![], vec![]);
    for row in rows {
        let mut decision = Decision::default();
        scorer.decide(row, &mut decision).unwrap();
        // What was shown is observed minutes later: the network's view of the request has not changed since it was scored.
        let replay = scorer.replay();
        let moment = Moment::new(replay);
        for (c, &(_, score)) in replay.candidates().iter().zip(&decision.scores) {
            let j = c.contract as usize;
            let of = moment.of(j, &all[j]);
            let mut values = vec![0.0f32; FEATURES];
            of.write(replay.state.observed[j] as f32, &mut values);
            let mut looked_up = vec![];
            spec.push_ids(replay.visit(), replay.day.contracts[j].vocabulary, &mut looked_up);
            let (start, low, high) = bids.terms(j);
            let owed = unit_owed(&spec.policy, replay, j);
            features.push(values);
            ids.push(looked_up);
            terms.push([start, lift(&spec.policy, replay, j, of.pacing), low, high, owed, c.click]);
            scores.push(score / c.boost);
        }
        decisions.push(decision);
    }
    assert!(scores.len() > 1000, "{} scores of contracts", scores.len());
    (decisions, json!({"features": features, "ids": ids, "terms": terms, "scores": scores}))
}

/// Holds answers, as objects of the JSON lines, against the library's.
fn agree(way: &str, answers: &[Value], decisions: &[Decision]) {
    assert_eq!(answers.len(), decisions.len(), "{way}");
    for (answer, decision) in answers.iter().zip(decisions) {
        assert_eq!(answer["request_id"], decision.request_id, "{way}");
        assert_eq!(answer["chosen"], decision.chosen.map_or(0, |(ad_id, _)| ad_id), "{way}: {answer}");
        let said: BTreeMap<u64, f64> = answer["scores"]
            .as_array()
            .unwrap()
            .iter()
            .map(|score| (score["ad_id"].as_u64().unwrap(), score["score"].as_f64().unwrap()))
            .collect();
        assert_eq!(said.len(), decision.scores.len(), "{way}: {answer}");
        for (ad_id, expected) in &decision.scores {
            assert!((said[ad_id] - expected).abs() <= CLOSE * expected.abs().max(1.0), "{way}: {answer}, {expected}");
        }
    }
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asks the Python binding for every request.
const BINDING: &str = "
import json, sys, admix
policy, control, inventory, day, requests = sys.argv[1:]
scorer = admix.Scorer(policy, control, inventory=inventory, day=day, rate_seed=4, feedback_delay_s=300.0)
for line in open(requests):
    d = scorer.decide(json.loads(line))
    scores = [{'ad_id': ad_id, 'score': score} for ad_id, score in d.scores.items()]
    print(json.dumps({'request_id': d.request_id, 'chosen': d.chosen or 0, 'scores': scores}))
";

#[test]
fn every_way_to_ask_a_policy_gives_the_same_scores() {
    let world = World::new();
    let rows = world.rows();
    let texts = lines(&rows);
    let requests = world.scratch.path().join("requests.jsonl");
    std::fs::write(&requests, texts.join("\n") + "\n").unwrap();
    let plain = settings::Policy { hidden: 24, ..settings::Policy::default() };
    let steady = settings::Policy { replan: false, ..plain.clone() };
    let embedded = settings::Policy { ad_embedding: 3, traffic_embedding: 2, negative_bids: true, ..plain.clone() };
    for settings in [plain, steady, embedded] {
        let steady = !settings.replan;
        let path = policy(&world, settings);
        let (decisions, cases) = library(&world, &path, &rows);

        let mut score = admix();
        score.args(["score", "--format", "jsonl", "--policy"]).arg(&path).args(FLAGS);
        for (name, file) in files(&world.day) {
            score.arg(format!("--{name}")).arg(file);
        }
        let output = score.write_stdin(std::fs::read(&requests).unwrap()).assert().success();
        agree("score", &objects(&String::from_utf8_lossy(&output.get_output().stdout)), &decisions);

        // A server solves prices beside serving, so that its decisions may differ by the requests that arrive meanwhile.
        if steady {
            let serving = world.serve(&path, &FLAGS);
            let mut client = serving.client();
            let mut answers = vec![];
            for chunk in texts.chunks(100) {
                let body = format!("[{}]", chunk.join(","));
                let (status, answer) = client.send("POST", "/v1/score", body.as_bytes()).unwrap();
                assert_eq!(status, 200);
                answers.extend(serde_json::from_slice::<Vec<Value>>(&answer).unwrap());
            }
            agree("serve", &answers, &decisions);
            assert_eq!(serving.stop(), 0);
            let _ = std::fs::remove_file(world.state());
        }
        if let Some(python) = python(TEST, "torch, safetensors") {
            let case_file = world.scratch.path().join("cases.json");
            std::fs::write(&case_file, cases.to_string()).unwrap();
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/policy_module.py");
            run(Command::new(python).arg(script).arg(&path).arg("--check").arg(&case_file));
        }
        if let Some(python) = python(TEST, "admix") {
            let mut command = Command::new(python);
            command.args(["-c", BINDING]).arg(&path).args(files(&world.day).map(|(_, file)| file)).arg(&requests);
            agree("the Python binding", &objects(&run(&mut command)), &decisions);
        }
    }
}
