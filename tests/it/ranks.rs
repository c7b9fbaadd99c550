//! `values.ranks`: several trainers of one model, through real processes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use admix::settings::KEPT_GRADIENTS;
use admix::sparse::file;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::harness::PATIENCE;
use super::support::admix;
use super::values::{MANY_DEATHS, Scene, WORLD, all_learned, manifest, model, pids};

/// A world whose exposures have propensities, so that samples weigh differently.
fn scene() -> Scene {
    Scene::of(WORLD)
}

/// The network's parameters and every row with its state, as numbers.
fn numbers(scene: &Scene, run: &Path) -> (Vec<f32>, BTreeMap<u64, Vec<f32>>) {
    let out = scene.folder.path().join("rows.bin");
    let mut command = admix();
    command.args(["values", "dump", "--values"]).arg(run).arg("--out").arg(&out).assert().success();
    let table = file::read(&out, 0, 1).unwrap();
    let floats = table.shape().floats();
    let row = |record: u32| table.record(record)[..floats].iter().map(|word| f32::from_bits(*word)).collect();
    let rows = table.sorted().into_iter().map(|(id, record)| (id, row(record))).collect();
    let net = std::fs::read(out.with_extension("bin.safetensors")).unwrap();
    let net = safetensors::SafeTensors::deserialize(&net).unwrap();
    let mut tensors = net.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let of_tensor = |(_, tensor): &(String, safetensors::tensor::TensorView<'_>)| -> Vec<f32> {
        tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    (tensors.iter().flat_map(of_tensor).collect(), rows)
}

/// The largest difference between two models, relative to the largest number of each kind.
fn difference(a: &(Vec<f32>, BTreeMap<u64, Vec<f32>>), b: &(Vec<f32>, BTreeMap<u64, Vec<f32>>)) -> f32 {
    assert_eq!(a.0.len(), b.0.len());
    assert!(a.1.keys().eq(b.1.keys()), "other rows");
    let worst = |a: &[f32], b: &[f32]| {
        let most = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        a.iter().zip(b).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / most
    };
    let flat = |rows: &BTreeMap<u64, Vec<f32>>| rows.values().flatten().copied().collect::<Vec<f32>>();
    worst(&a.0, &b.0).max(worst(&flat(&a.1), &flat(&b.1)))
}

#[test]
fn ranks_with_a_part_of_the_batch_each_learn_what_one_learns_with_the_whole() {
    let scene = scene();
    let run = |name: &str, sets: &[&str]| numbers(&scene, &scene.train(name, &[&["values.epochs=1"], sets].concat()));
    let world = "ranks.sparse_average=world";
    let one = run("one", &["values.batch=512"]);
    let two = run("two", &["values.batch=256", "values.ranks=2", world]);
    let four = run("four", &["values.batch=128", "values.ranks=4", world]);
    // The first one with half of its share, and with nothing to do but write.
    let fewer = run("fewer", &["values.batch=256", "values.ranks=2", world, "ranks.first_share=0.5"]);
    let none = run("none", &["values.batch=128", "values.ranks=4", world, "ranks.first_share=0"]);
    for (name, other) in [("two", &two), ("four", &four), ("fewer", &fewer), ("none", &none)] {
        let worst = difference(&one, other);
        assert!(worst < 2e-5, "{name}: {worst}");
    }
    // Another divisor is another model.
    let occurrence = run("occurrence", &["values.batch=256", "values.ranks=2"]);
    assert!(difference(&one, &occurrence) > 1e-3);
}

#[test]
fn the_timing_and_killed_processes_change_no_bit() {
    let scene = scene();
    let sets = ["values.readers=2", "values.ranks=3", "values.batch=100"];
    let plain = model(&scene.train("plain", &sets));
    assert!(plain == model(&scene.train("again", &sets)));
    // Others read their next rows while most of this batch's are not written, and once without having told what they read.
    let mut slow = scene.command("slow", &sets);
    slow.env("ADMIX_FAILPOINT", "rank.wanted@1=3ms,other.ahead@9=fail").assert().success();
    assert!(plain == model(&scene.folder.path().join("slow")));
    killed_at_each(
        &scene,
        &sets,
        &plain,
        &[
            "rank.wanted@24=kill",
            "reader.claimed@40=kill",
            "reader.committed@52=kill",
            "other.update@20=kill",
            "other.exchange@21=kill",
            "rank.exchange@22=kill",
            "rank.written@23=kill",
            // How many snapshots there are depends on the checkpointer's speed; two are certain.
            "rank.snapshot@2=kill",
        ],
    );
}

/// Copies of a few rows, of fewer than a batch has, and of all.
#[test]
fn ranks_that_keep_copies_of_rows_learn_the_same_bytes() {
    let scene = scene();
    let sets = ["values.ranks=3", "values.batch=100"];
    let plain = model(&scene.train("plain", &sets));
    for (run, copies) in
        [("few", "table.cache_rows=20"), ("some", "table.cache_rows=150"), ("all", "table.cache_rows=5000")]
    {
        let kept = scene.train(run, &[&sets[..], &[copies]].concat());
        assert!(plain == model(&kept), "{run}");
        let records = std::fs::read_to_string(kept.join("metrics.jsonl")).unwrap();
        let mut records = records.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let last = records.rfind(|record| record["kind"] == "values").unwrap();
        let counter = |name: &str| last["cache"][name].as_u64().unwrap();
        assert!(counter("hits") > 0 && counter("misses") > 0 && counter("write_backs") == 0, "{last}");
        assert_eq!(counter("evictions") > 0, run != "all", "{last}");
    }
    let tables = ["values.ranks=2", "ranks.tables=2", "values.batch=75", "table.cache_rows=300"];
    assert!(
        model(&scene.train("flat", &["values.ranks=4", "values.batch=75"])) == model(&scene.train("tables", &tables))
    );
    let copies = [&sets[..], &["table.cache_rows=300"]].concat();
    killed_at_each(
        &scene,
        &copies,
        &plain,
        &["other.update@20=kill", "other.exchange@21=kill", "rank.written@23=kill"],
    );
}

#[test]
fn copies_that_missed_an_update_are_found_at_the_end_of_the_pass() {
    let scene = scene();
    let mut command = scene.command("stale", &["values.ranks=2", "values.batch=128", "table.cache_rows=5000"]);
    let assert = command.env("ADMIX_FAILPOINT", "other.write@7=fail").assert().code(1);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("of rank 1 is not the row of the table any more"), "{said}");
}

/// Trains once for each failpoint, at which a process is killed: the model is always `plain`.
pub fn killed_at_each(scene: &Scene, sets: &[&str], plain: &BTreeMap<String, Vec<u8>>, failpoints: &[&str]) {
    for (i, failpoint) in failpoints.iter().enumerate() {
        let run = format!("killed{i}");
        let mut command = scene.command(&run, &[sets, &["checkpoint.every_s=0.001", MANY_DEATHS]].concat());
        let assert = command.env("ADMIX_FAILPOINT", failpoint).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("started again") || said.contains("went back"), "{failpoint}: nobody died: {said}");
        assert!(*plain == model(&scene.folder.path().join(&run)), "{failpoint}");
    }
}

#[test]
fn ranks_killed_at_random_moments_hang_nobody_and_change_no_bit() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=128", "values.epochs=30", "checkpoint.every_s=0.02"];
    let plain = model(&scene.train("plain", &sets));
    let kills = killed_at_random_moments(&scene, "killed", &sets, &["admix-rank1", "admix-trainer"]);
    assert!(plain == model(&scene.folder.path().join("killed")), "after {kills} kills");
}

/// Trains while one of the named processes is killed again and again; returns how often.
pub fn killed_at_random_moments(scene: &Scene, run: &str, sets: &[&str], names: &[&str]) -> usize {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut child = scene.start(run, sets);
    let begun = std::time::Instant::now();
    let mut kills = 0;
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(rng.random_range(20..400)));
        let name = names[rng.random_range(0..names.len())];
        if let Some(pid) = pids(child.id(), name).first().filter(|_| kills < 15) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
            kills += 1;
        }
    }
    assert!(child.wait().unwrap().success(), "after {kills} kills");
    kills
}

/// What main says of a rank that hangs.
const HUNG: &str = "rank1 ended (killed: it had not taken part in an exchange for ranks.timeout_s)";

/// A rank that hangs is given up by the others, and named; the run ends with the same bytes.
#[test]
fn a_rank_that_hangs_is_given_up() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=128", "values.epochs=30"];
    let plain = model(&scene.train("plain", &sets));
    // On a busy machine the limit may also end an exchange with a rank that is only slow.
    let limited = [&sets[..], &["ranks.timeout_s=5", MANY_DEATHS]].concat();
    let mut program = std::process::Command::new(scene.command("hung", &limited).get_program());
    program.args(scene.command("hung", &limited).get_args());
    let mut child = program.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let begun = std::time::Instant::now();
    // While ranks begin, main alone looks for one that hangs.
    let metrics = scene.folder.path().join("hung/metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"kind\":\"evaluation\"")) {
        assert!(begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "nothing is learned");
        std::thread::sleep(Duration::from_millis(2));
    }
    let hung = nix::unistd::Pid::from_raw(*pids(child.id(), "admix-rank1").first().expect("a rank to stop"));
    nix::sys::signal::kill(hung, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && said.contains(HUNG), "{said}");
    assert!(plain == model(&scene.folder.path().join("hung")));
}

/// The others gave rank 0 up while it joined the validation days. The next one joined them again, until the run ended with code 20.
#[test]
fn a_first_rank_that_takes_long_to_begin_is_waited_for() {
    let scene = scene();
    let sets = ["values.ranks=1", "ranks.tables=2", "values.batch=128", "values.weights=equal", "ranks.timeout_s=8"];
    let mut command = scene.command("slow", &sets);
    command.env("ADMIX_FAILPOINT", "rank.judge@1=10000ms").assert().success();
    let run = scene.folder.path().join("slow");
    assert_eq!(manifest(&run)["outcome"]["went_back"], 0);
    all_learned(&run, 4);
}

/// The others wait for it as for one that hangs. It was named as one.
#[test]
fn a_rank_that_waits_for_a_reader_is_not_blamed() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=128", "ranks.timeout_s=2", "watchdog.max_restarts=1"];
    let mut command = scene.command("waiting", &sets);
    // Between the shards of the two ranks.
    let assert = command.env("ADMIX_FAILPOINT", "reader.claimed@40=3600000ms").assert().code(20);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("it lost another rank") && !said.contains(HUNG), "{said}");
}

#[test]
fn an_interrupted_run_goes_on_with_as_many_ranks_and_with_others_where_that_is_the_same() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=64", "values.epochs=30", "ranks.sparse_average=world"];
    let plain = model(&scene.train("plain", &sets));
    scene.interrupted("same", &sets);
    scene.command("same", &sets).arg("--resume").assert().success();
    assert!(plain == model(&scene.folder.path().join("same")));

    // Other shares are the same sums, too, but other means over the ranks that hold a row.
    scene.interrupted("shares", &sets);
    let uneven = [&sets[..], &["ranks.first_share=0.5"]].concat();
    scene.command("shares", &uneven).arg("--resume").assert().success();
    let means = ["values.ranks=2", "values.batch=64", "values.epochs=30", "ranks.first_share=0.5"];
    scene.interrupted("means", &means);
    let assert = scene.command("means", &means[..3]).arg("--resume").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("ranks.first_share"), "{said}");
    scene.command("means", &means).arg("--resume").assert().success();

    scene.interrupted("other", &sets);
    let assert = scene.command("other", &[&sets[..], &["values.ranks=4"]].concat()).arg("--resume").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("values.ranks was 2 and is 4 now") && said.contains("world"), "{said}");
    let four = [&sets[..], &["values.ranks=4", "values.batch=32"]].concat();
    scene.command("other", &four).arg("--resume").assert().success();
    let [plain, other] = ["plain", "other"].map(|run| numbers(&scene, &scene.folder.path().join(run)));
    let worst = difference(&plain, &other);
    assert!(worst < 0.05, "{worst}");
}

/// Snapshots held the samples of rank 0 alone: after `--resume`, or a return to a snapshot, the ledger missed those of the others.
#[test]
fn the_ledger_of_several_ranks_is_that_of_the_whole_run() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=16", "values.epochs=20", "values.weights=equal"];
    scene.interrupted("cut", &sets);
    scene.command("cut", &sets).arg("--resume").assert().success();
    all_learned(&scene.folder.path().join("cut"), 20);
    let often = [&sets[..], &["checkpoint.every_s=0.001", MANY_DEATHS]].concat();
    let mut command = scene.command("killed", &often);
    let assert = command.env("ADMIX_FAILPOINT", "other.update@900=kill").assert().success();
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("went back"), "nobody died: {said}");
    all_learned(&scene.folder.path().join("killed"), 20);
}

#[test]
fn a_full_table_and_settings_that_do_not_go_together_are_named() {
    let scene = scene();
    let refused = |run: &str, sets: &[&str], code: i32, names: &[&str]| {
        let assert = scene.command(run, &[&["values.ranks=2"], sets].concat()).assert().code(code);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    };
    refused("full", &["table.max_rows=50"], 1, &["table.max_rows", "50 rows"]);
    refused("cached", &["table.cache_rows=300", "ranks.sync=overlap"], 2, &["table.cache_rows", "ranks.sync"]);
    refused("devices", &["table.devices=2"], 2, &["table.devices", "2 ranks"]);
    refused("many", &["values.ranks=9"], 2, &["values.ranks", "8"]);
}

/// Each process would have begun the same run. `scripts/mpi` tests programs that are built with MPI.
#[cfg(not(feature = "mpi"))]
#[test]
fn processes_that_a_launcher_started_together_are_refused_without_mpi() {
    let scene = scene();
    for (key, value) in [("OMPI_COMM_WORLD_SIZE", "4"), ("PMI_SIZE", "2")] {
        let assert = scene.command("many", &[]).env(key, value).assert().code(2);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("--features mpi") && said.contains(value), "{said}");
    }
    assert!(!scene.folder.path().join("many").exists());
    scene.command("one", &["values.epochs=1"]).env("OMPI_COMM_WORLD_SIZE", "1").assert().success();
    let mut train = admix();
    let run = scene.folder.path().join("policy");
    let train = train.args(["train", "--config", "configs/quickstart.toml", "--run-dir"]).arg(&run);
    let assert = train.env("OMPI_COMM_WORLD_SIZE", "4").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("--features mpi") && said.contains('4') && !run.exists(), "{said}");
    // A run that another command starts is not one node of a job, with MPI or without.
    let parent = std::process::id().to_string();
    let assert = train.args(["--parent", &parent]).assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("starts runs of its own") && !run.exists(), "{said}");
}

/// Returns the first error of the trace of `rank`, one of `ranks` that was not started again. Global gradients have at least `quorum` members,
/// periods `period` iterations at most.
fn wrong(text: &str, (rank, ranks, quorum): (u64, u64, u32), period: u64) -> Option<String> {
    let mut newest: Option<(u64, u64)> = None;
    let (mut last, mut generation) = (None, 0);
    for (before, line) in (0..).zip(text.lines()) {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| record[key].as_u64().unwrap();
        let here = (number("period"), number("iteration"));
        if here.1 >= period || last.is_some_and(|last| here != next(last, here)) {
            return Some(format!("{here:?} after {last:?}"));
        }
        if number("generation") < generation {
            return Some(format!("rows {} after {generation}", number("generation")));
        }
        generation = number("generation");
        // A period begins with all rows written. Later the rows of an iteration are written when all ranks have read those of the next.
        if here.1 == 0 && generation != before || here.1 > 0 && generation >= before {
            return Some(format!("rows {generation} in {here:?} after {before} iterations"));
        }
        if let Some(global) = record["global"].as_array() {
            let (j, members) = (global[0].as_u64().unwrap(), global[1].as_u64().unwrap());
            if j > here.1 || newest.is_some_and(|(of, used)| of == here.0 && j <= used) {
                return Some(format!("{global:?} in {here:?} after {newest:?}"));
            }
            // Its own gradient is there as long as it is kept, and never alone.
            let own = members >> rank & 1 == 1;
            let enough = members.count_ones() >= quorum && members >> ranks == 0 && members != 1 << rank;
            if !enough || own != (here.1 - j < KEPT_GRADIENTS as u64) {
                return Some(format!("{global:?} of rank {rank} in {here:?}"));
            }
            newest = Some((here.0, j));
        }
        last = Some(here);
    }
    last.is_none().then(|| "nothing".into())
}

/// What follows an iteration: the next one, or the first of the next period.
fn next(last: (u64, u64), here: (u64, u64)) -> (u64, u64) {
    if here.1 == 0 { (last.0 + 1, 0) } else { (last.0, last.1 + 1) }
}

#[test]
fn ranks_that_overlap_learn_as_well_as_in_step() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=128", "values.epochs=6"];
    let in_step = scene.train("step", &sets);
    let overlapped =
        scene.train("overlap", &[&sets[..], &["ranks.sync=overlap", "ranks.period=5", "ranks.trace=true"]].concat());
    let [a, b] = [&in_step, &overlapped].map(|run| best_loss(run));
    assert!((a - b).abs() < 0.02 * a, "{a} {b}");
    for run in [&in_step, &overlapped] {
        let work = &manifest(run)["outcome"]["work"];
        let number = |key: &str| work[key].as_f64().unwrap();
        assert!(number("first_busy_s") > 0.0 && number("other_busy_s") > 0.0 && number("first_share") == 1.0, "{work}");
        assert!((0.0..=1.0).contains(&number("even_share")), "{work}");
    }
    for rank in 0..2 {
        let text = std::fs::read_to_string(overlapped.join(format!("trace/rank{rank}.jsonl"))).unwrap();
        assert_eq!(wrong(&text, (rank, 2, 2), 5), None);
    }
}

#[test]
fn what_is_wrong_in_a_trace_is_seen() {
    let record = |iteration: u64, j: u64, members: u64, generation: u64| {
        format!("{{\"period\":0,\"iteration\":{iteration},\"global\":[{j},{members}],\"generation\":{generation}}}\n")
    };
    let of_all = |text: &str| wrong(text, (0, 2, 2), 5);
    assert_eq!(of_all(&(record(0, 0, 3, 0) + &record(1, 1, 3, 0))), None);
    // Used twice, used before it was there, and rows that were written too early.
    assert!(of_all(&(record(0, 0, 3, 0) + &record(1, 0, 3, 0))).is_some());
    assert!(of_all(&record(0, 1, 3, 0)).is_some());
    assert!(of_all(&(record(0, 0, 3, 0) + &record(1, 1, 3, 1))).is_some());
    // Of rank 1 of three: its own and one of another at least.
    let of_some = |members: u64, quorum: u32| wrong(&record(0, 0, members, 0), (1, 3, quorum), 5);
    assert!([0b011, 0b110, 0b111].iter().all(|members| of_some(*members, 2).is_none()));
    assert!([0b010, 0b101, 0b001, 0b1010].iter().all(|members| of_some(*members, 2).is_some()));
    assert!(of_some(0b010, 1).is_some() && of_some(0b011, 1).is_none() && of_some(0b011, 3).is_some());
}

#[test]
fn with_a_quorum_ranks_that_overlap_do_not_wait_for_the_gradient_of_the_slowest() {
    let scene = scene();
    let sets = [
        "values.ranks=3",
        "values.batch=80",
        "values.weights=equal",
        "ranks.sync=overlap",
        "ranks.period=8",
        "ranks.quorum=2",
        "ranks.trace=true",
    ];
    let mut command = scene.command("quorum", &sets);
    command.env("ADMIX_FAILPOINT", "rank.computing@1=20ms").assert().success();
    let run = scene.folder.path().join("quorum");
    all_learned(&run, 4);
    for rank in 0..3 {
        let text = std::fs::read_to_string(run.join(format!("trace/rank{rank}.jsonl"))).unwrap();
        assert_eq!(wrong(&text, (rank, 3, 2), 8), None);
        let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let without_first = records.filter(|record| record["global"][1] == 0b110).count();
        assert_eq!(without_first > 0, rank > 0, "{without_first} in rank {rank}");
    }
}

/// Loss of the best pass on the validation days.
pub fn best_loss(run: &Path) -> f64 {
    manifest(run)["outcome"]["best_loss"].as_f64().unwrap()
}

/// Checks that a run that was disturbed has learned all its exposures in each of so many passes, and as well as one that was not and came to the
/// loss `undisturbed`.
pub fn learned_as_well(run: &Path, undisturbed: f64, passes: u64) {
    all_learned(run, passes);
    let loss = best_loss(run);
    assert!((loss - undisturbed).abs() < 0.02 * undisturbed, "{}: {loss}, not {undisturbed}", run.display());
}

#[test]
fn ranks_that_overlap_survive_kills_and_interrupts() {
    let scene = scene();
    let sets = [
        "values.ranks=2",
        "values.batch=128",
        "values.weights=equal",
        "ranks.sync=overlap",
        "ranks.period=4",
        "checkpoint.every_s=0.001",
        MANY_DEATHS,
    ];
    let plain = best_loss(&scene.train("plain", &sets));
    for (i, failpoint) in [
        "other.update@20=kill",
        "other.exchange@5=kill",
        "other.reading@22=kill",
        "rank.written@21=kill",
        "reader.claimed@40=kill",
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("killed{i}");
        let assert = scene.command(&run, &sets).env("ADMIX_FAILPOINT", failpoint).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("started again") || said.contains("went back"), "{failpoint}: nobody died: {said}");
        learned_as_well(&scene.folder.path().join(run), plain, 4);
    }
    let assert = scene.command("full", &[&sets[..], &["table.max_rows=50"]].concat()).assert().code(1);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("table.max_rows") && said.contains("50 rows"), "{said}");

    let long = [&sets[..], &["values.epochs=60"]].concat();
    let plain = best_loss(&scene.train("long", &long));
    scene.interrupted("cut", &long);
    scene.command("cut", &long).arg("--resume").assert().success();
    learned_as_well(&scene.folder.path().join("cut"), plain, 60);
}

/// In a period longer than what the others may be ahead, one that hung while it computed was waited for without end.
#[test]
fn a_rank_that_hangs_while_it_reads_or_computes_is_given_up_by_ranks_that_overlap() {
    let scene = scene();
    let sets = ["values.ranks=2", "values.batch=128", "values.weights=equal", "ranks.sync=overlap", "ranks.period=64"];
    let plain = best_loss(&scene.train("plain", &sets));
    // In the second pass of each process: the first one ends with a snapshot.
    for (run, failpoint) in [("reading", "other.reading@40=3600000ms"), ("computing", "other.computing@40=3600000ms")] {
        let limits = ["ranks.timeout_s=2", "checkpoint.every_s=0.001", MANY_DEATHS];
        let mut command = scene.command(run, &[&sets[..], &limits].concat());
        let assert = command.env("ADMIX_FAILPOINT", failpoint).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains(HUNG), "{failpoint}: {said}");
        learned_as_well(&scene.folder.path().join(run), plain, 4);
    }
}
