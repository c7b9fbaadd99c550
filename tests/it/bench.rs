//! The benchmarks measure what they say; how fast anything is, no test says.

use serde_json::Value;

use super::support::admix;

fn bench(stage: &str, arguments: &[&str]) -> Value {
    let output = admix().args(["bench", stage, "--json"]).args(arguments).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {report}"))
}

/// There is something to count.
#[test]
fn the_environment_and_the_actor_count_what_they_did() {
    let env = bench("env", &["--seconds", "0.2", "--queue", "5", "--eligible", "2", "--contracts", "4"]);
    assert!(number(&env, "steps") >= 60_000.0 && number(&env, "steps") % 60_000.0 == 0.0, "whole days: {env}");

    let actor = bench("actor", &["--seconds", "0.2"]);
    assert!(number(&actor, "decisions") > 0.0 && number(&actor, "bytes_per_sample") > 30.0, "{actor}");
}

/// Replanning, network and replay are timed apart, and no part is longer than the whole.
#[test]
fn every_part_of_an_evaluation_takes_some_of_its_time() {
    let report = bench("evaluate", &["--seconds", "0.3"]);
    for part in ["replanning_seconds", "network_seconds", "replay_seconds"] {
        let part = number(&report, part);
        assert!(part > 0.0 && part < number(&report, "seconds"), "{report}");
    }
}

#[test]
fn nothing_is_torn_between_processes() {
    let ring = bench("ring", &["--records", "200000"]);
    let ledger = &ring["ledger"];
    assert!(number(&ring, "records") >= 200_000.0, "{ring}");
    assert_eq!((number(&ring, "torn_blocks"), number(&ring, "wrong_blocks")), (0.0, 0.0), "{ring}");
    assert_eq!(number(ledger, "consumed"), number(&ring, "records"), "{ring}");
    let params = bench("params", &["--publications", "50000", "--words", "512"]);
    assert_eq!((number(&params, "publications"), number(&params, "torn_reads")), (50_000.0, 0.0), "{params}");
    assert!(number(&params, "reads") > 0.0, "{params}");
}

#[test]
fn all_ranks_average_to_the_same() {
    let report =
        bench("collectives", &["--ranks", "1", "--ranks", "3", "--bytes", "40000", "--rounds", "40", "--no-mpi"]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{report}");
    for (run, ranks) in runs.iter().zip([1.0, 3.0]) {
        assert_eq!(
            (number(run, "ranks"), number(run, "bytes"), number(run, "wrong")),
            (ranks, 40_000.0, 0.0),
            "{report}"
        );
    }
    assert_eq!(report["mpi_missing"], "left out");
}

/// More GPUs than any machine has.
#[test]
fn ranks_without_a_gpu_each_are_not_averaged_by_nccl() {
    let refused = admix().args(["bench", "collectives", "--nccl", "--ranks", "64", "--no-mpi"]).assert().code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("device `cuda`"), "{said}");
}

#[test]
fn the_benchmark_plans_what_it_says() {
    let report = bench("plan", &["--contracts", "60", "--nodes", "3000", "--runs", "1"]);
    let number = |name: &str| number(&report, name);
    assert_eq!((number("contracts"), number("nodes")), (60.0, 3000.0));
    // The pairs of contracts that want the same narrow supply ask for more than there is; no plan beats the least shortage.
    assert!(number("over_booked") >= 1.0 && number("unavoidable") > 0.0, "{report}");
    for plan in ["hwm_missing", "shale_missing"] {
        assert!(number(plan) >= number("unavoidable") * (1.0 - 1e-9), "{report}");
    }
    admix().args(["bench", "plan", "--nodes", "0"]).assert().code(2);
}

/// A server of its own process: loaded, swapped, maltreated and killed.
#[test]
fn a_server_is_measured_and_answers_as_it_should() {
    let report = bench(
        "serve",
        &["--seconds", "0.5", "--rate", "200", "--connections", "2", "--swaps", "3", "--hostile", "60", "--kills", "1"],
    );
    for part in [&report["even"], &report["swapped"], &report["hostile"]["latency"]] {
        assert!(number(part, "requests") > 0.0 && number(part, "failures") == 0.0, "{report}");
    }
    assert_eq!(number(&report["swapped"], "swaps"), 3.0, "{report}");
    let hostile = &report["hostile"];
    assert!(number(hostile, "sent") >= 60.0 && hostile["wrong"] == serde_json::json!([]), "{report}");
    let kill = &report["kills"][0];
    assert!(number(kill, "decided") > 0.0 && number(kill, "lost") <= number(kill, "decided"), "{report}");
}

/// A whole training in processes, and its learner once more without them.
#[test]
fn a_learner_that_is_fed_stands_beside_the_same_one_alone() {
    let small = ["learner.pool=2048", "learner.batch=128", "policy.hidden=8", "baselines.tuning_replays=4"];
    let sets = small.iter().flat_map(|set| ["--set", set]);
    let arguments = ["--requests", "1500", "--seconds", "30", "--alone", "0.3"].into_iter().chain(sets);
    let report = bench("e2e", &arguments.collect::<Vec<_>>());
    assert!(number(&report, "updates") > 0.0 && number(&report, "alone_updates_per_second") > 0.0, "{report}");
    let names: Vec<&str> =
        report["processes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(["learner", "actor0", "evaluator", "main"].iter().all(|name| names.contains(name)), "{report}");
}
