//! The same seed gives the same policy file, byte for byte, where that is promised: lock-step and serial, on the CPU.

use crate::harness::{Ended, train};

/// Both policy files of a run.
fn policies(ended: &Ended) -> [Vec<u8>; 2] {
    [ended.best(), ended.last()].map(|path| std::fs::read(path).unwrap())
}

/// The evaluations of a run without their times.
fn evaluations(ended: &Ended) -> Vec<serde_json::Value> {
    let lines = ended.metrics().into_iter().filter(|line| line["kind"] == "evaluation");
    lines.map(|mut line| line.as_object_mut().unwrap().remove("time").map(|_| line).unwrap()).collect()
}

#[test]
fn lock_step_runs_of_the_same_seed_give_the_same_bytes() {
    let runs = [train(&[], &["--deterministic"]), train(&[], &["--deterministic"])];
    assert!(policies(&runs[0]) == policies(&runs[1]));
    assert_eq!(evaluations(&runs[0]), evaluations(&runs[1]));
    assert_eq!(runs[0].ledger("consumed"), runs[1].ledger("consumed"));
    assert_eq!(runs[0].manifest()["mode"], "lock-step");
}

#[test]
fn lock_step_runs_do_not_depend_on_the_number_of_threads() {
    let runs = ["1", "2", "3"].map(|n| train(&[&format!("learner.threads={n}")], &["--deterministic"]));
    assert!(policies(&runs[0]) == policies(&runs[1]));
    assert!(policies(&runs[0]) == policies(&runs[2]));
}

#[test]
fn lock_step_holds_for_every_critic_and_for_delayed_feedback() {
    for set in ["learner.critic=categorical", "learner.critic=scalar", "env.feedback_delay_s=600", "score_mode=all"] {
        let runs = ["1", "2"].map(|n| train(&[set, &format!("learner.threads={n}")], &["--deterministic"]));
        assert!(policies(&runs[0]) == policies(&runs[1]), "{set}");
    }
}

#[test]
fn serial_runs_of_the_same_seed_give_the_same_bytes() {
    for sets in [&[][..], &["serial.literal=true"]] {
        let runs = [train(sets, &["--serial"]), train(sets, &["--serial"])];
        assert!(policies(&runs[0]) == policies(&runs[1]), "{sets:?}");
        assert_eq!(evaluations(&runs[0]), evaluations(&runs[1]), "{sets:?}");
    }
}

#[test]
fn another_seed_gives_another_policy() {
    for mode in ["--deterministic", "--serial"] {
        let runs = ["1", "2"].map(|seed| train(&[], &[mode, "--seed", seed]));
        assert_eq!(runs[1].manifest()["seed"], 2);
        assert!(policies(&runs[0])[1] != policies(&runs[1])[1], "{mode}");
    }
}
