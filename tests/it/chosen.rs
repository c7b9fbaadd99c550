//! Which policy of a run is the chosen one.

use admix::policy::file::PolicyFile;
use serde_json::Value;

use crate::harness::*;

/// An evaluation as the metrics have it.
struct Evaluated {
    updates: u64,
    j: f64,
    /// Lower end of the interval of the difference from the start.
    surely: f64,
    improved: bool,
    without_improvement: u64,
}

fn evaluations(metrics: &[Value]) -> Vec<Evaluated> {
    let of = |line: &Value| Evaluated {
        updates: line["updates"].as_u64().unwrap(),
        j: line["j"].as_f64().unwrap(),
        surely: line["over_start"]["interval"][0].as_f64().unwrap(),
        improved: line["improved"].as_bool().unwrap(),
        without_improvement: line["without_improvement"].as_u64().unwrap(),
    };
    metrics.iter().filter(|line| line["kind"] == "evaluation").map(of).collect()
}

/// A higher J on the validation days is often luck. Which policy is chosen changes nothing else: the same updates are made, and the
/// run converges at the same one.
#[test]
fn the_start_stays_the_best_until_another_surely_beats_it() {
    let runs = [true, false].map(|kept| {
        let kept_start = format!("evaluate.keep_start={kept}");
        let sets = [&kept_start, "evaluate.every=4", "budget.max_updates=80", "learner.critic_head_start=4"];
        let ended = train(&sets, &["--deterministic"]);
        let evaluations = evaluations(&ended.metrics());
        let (mut best, mut chosen) = (f64::NEG_INFINITY, 0);
        for evaluation in &evaluations {
            let may_be = !kept || evaluation.updates == 0 || evaluation.surely > 0.0;
            assert_eq!(evaluation.improved, may_be && evaluation.j > best, "after {} updates", evaluation.updates);
            if evaluation.improved {
                (best, chosen) = (evaluation.j, evaluation.updates);
            }
        }
        assert_eq!(PolicyFile::read(&ended.best()).unwrap().updates, chosen);
        assert_eq!(ended.outcome()["best_j"].as_f64(), Some(best));
        evaluations
    });
    let [kept, by_j] = &runs;
    let course = |of: &[Evaluated]| of.iter().map(|e| (e.updates, e.j, e.without_improvement)).collect::<Vec<_>>();
    assert_eq!(course(kept), course(by_j));
    let improved = |of: &[Evaluated]| of.iter().filter(|e| e.improved).count();
    assert!(improved(kept) < improved(by_j), "no evaluation was higher by luck: the run tells nothing");
}
