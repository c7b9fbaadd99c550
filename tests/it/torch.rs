//! A policy file as a PyTorch module: the same scores. Skipped, aloud, where there is no torch.

use std::process::Command;
use std::sync::Arc;

use admix::env::{Choice, Episode, FEATURES, Moment, Replay, Terms};
use admix::policy::file::PolicyFile;
use admix::policy::{Bids, Decider, LearnedPolicy, Policy as _, PolicySpec, lift};
use admix::settings::{self, ScoreMode};
use rand::SeedableRng as _;
use serde_json::json;

use super::decisions::{SMALL, TWISTED, plan, synth};
use super::worlds::open;
use admix::env::{DayModel, Vocabulary};
use admix::plan::Plan;

#[test]
fn the_module_of_a_policy_gives_its_scores() {
    let python = std::env::var("ADMIX_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import torch, safetensors"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "the_module_of_a_policy_gives_its_scores: skipped, {python} has no torch and safetensors (ADMIX_PYTHON)"
        );
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 2);
    let plan = Plan::read(&plan(scratch.path(), &days[..1])).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/policy_module.py");
    for (ad_embedding, traffic_embedding, negative_bids) in [(0, 0, false), (3, 2, true)] {
        let policy = settings::Policy {
            hidden: 24,
            ad_embedding,
            traffic_embedding,
            negative_bids,
            ..settings::Policy::default()
        };
        let vocabulary = Vocabulary::of_days(&[&open(&days[0])], false);
        let spec = Arc::new(PolicySpec { score_mode: ScoreMode::Contract, policy, vocabulary });
        let actor = spec.actor_shape().initial(&mut rand_chacha::ChaCha8Rng::seed_from_u64(5), 1.0, 0.1);
        let path = scratch.path().join(format!("policy-{ad_embedding}.safetensors"));
        PolicyFile { spec: spec.clone(), plan: plan.clone(), actor: actor.clone(), updates: 0 }.write(&path).unwrap();

        let day = DayModel::with_forecast(open(&days[1]), &plan.forecast, &plan, Arc::new(spec.vocabulary.clone()));
        let episode = Episode::whole_day(&day, 0);
        let rows = day.log.requests().len();
        let mut replay = Replay::start(&day, episode, 300.0, 0.0, &mut (0..rows).peekable());
        let mut policy = LearnedPolicy::new(spec.clone(), actor);
        policy.begin(&replay);
        let bids = Bids::new(&day, &spec.policy);
        let all = Terms::all(&day, &replay.episode, spec.policy.warm_start);
        let mut decider = Decider::default();
        let (mut features, mut ids, mut terms, mut scores) = (vec![], vec![], vec![], vec![]);
        for row in 0..rows {
            replay.arrive(day.incoming(row));
            let choice = decider.decide(&mut replay, &mut policy);
            let moment = Moment::new(&replay);
            for (c, score) in replay.candidates().iter().zip(&decider.contracts) {
                let j = c.contract as usize;
                let of = moment.of(j, &all[j]);
                let mut values = vec![0.0f32; FEATURES];
                of.write(replay.state.observed[j], &mut values);
                let mut looked_up = vec![];
                spec.push_ids(replay.visit(), day.contracts[j].vocabulary, &mut looked_up);
                let (start, low, high) = bids.terms(j);
                let owed = admix::policy::learned::unit_owed(&spec.policy, &replay, j);
                let lifted = lift(&spec.policy, &replay, j, of.pacing);
                features.push(values);
                ids.push(looked_up);
                terms.push([start, lifted, low, high, owed, c.click]);
                scores.push(1000.0 * score);
            }
            replay.show(if row % 3 == 0 { Choice::Nothing } else { choice });
        }
        assert!(scores.len() > 1000);
        let cases = scratch.path().join("cases.json");
        let text = json!({"features": features, "ids": ids, "terms": terms, "scores": scores}).to_string();
        std::fs::write(&cases, text).unwrap();
        let output = Command::new(&python).arg(script).arg(&path).arg("--check").arg(&cases).output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
