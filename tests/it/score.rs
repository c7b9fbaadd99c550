//! `score` decides what `eval` decides, request by request; its state survives, and its input may be anything.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use admix::bench::score::jsonl;
use admix::log::schema::TrackRow;
use admix::log::{CompileOptions, RawDay};
use admix::plan::Plan;
use admix::policy::baselines::NAMES;
use admix::score::{DayFiles, Decision, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use admix::values::{Told, ValueModel, store};
use serde_json::Value;
use tempfile::TempDir;

use super::decisions::{SMALL, TWISTED, decisions, evaluate, plan, policies, synth};
use super::support::{admix, real_logs};
use super::values;
use super::worlds::{self, PlainLog};

/// What was chosen on each request, by what `score` wrote.
fn chosen(tsv: &str) -> HashMap<u64, u64> {
    let mut lines = tsv.lines();
    assert_eq!(lines.next(), Some("request_id\tad_id\tscore\tchosen"));
    let mut chosen = HashMap::new();
    let mut best = HashMap::<u64, f64>::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let (request, ad): (u64, u64) = (cells[0].parse().unwrap(), cells[1].parse().unwrap());
        let score: f64 = cells[2].parse().unwrap();
        assert!(score.is_finite(), "{line}");
        let best = best.entry(request).or_insert(f64::NEG_INFINITY);
        *best = best.max(score);
        if cells[3] == "1" {
            assert!(chosen.insert(request, ad).is_none(), "two are chosen on {request}");
        }
    }
    chosen
}

pub(super) fn run_score(arguments: &[&str], input: &[u8]) -> (String, String) {
    let output = admix().arg("score").args(arguments).write_stdin(input).assert().success();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.get_output().stdout), text(&output.get_output().stderr))
}

/// What names a day to `score`.
pub(super) fn files(day: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    for (flag, name) in [("--control", "control.tsv"), ("--inventory", "inventory.tsv"), ("--day", "day.toml")] {
        if day.join(name).is_file() {
            arguments.extend([flag.to_owned(), day.join(name).to_str().unwrap().to_owned()]);
        }
    }
    arguments
}

fn agree(day: &Path, plan: &Path, learned: &[PathBuf], options: &[&str]) {
    let mut arguments = vec!["--plan", plan.to_str().unwrap(), "--policy"];
    arguments.extend(learned.iter().map(|f| f.to_str().unwrap()));
    arguments.extend(options);
    let evaluation = evaluate(std::slice::from_ref(&day.to_path_buf()), &arguments);
    let folder = evaluation.folder.path().join(day.file_name().unwrap());
    let input = std::fs::read(day.join("track_log.tsv")).unwrap();
    let plain = PlainLog::read(day);
    let rate_seed = evaluation.reports[0]["rate_seed"].as_u64().unwrap();
    let baselines = NAMES.map(|name| (name.to_owned(), format!("baseline:{name}")));
    let names =
        learned.iter().map(|f| (f.file_stem().unwrap().to_str().unwrap().to_owned(), f.to_str().unwrap().to_owned()));
    for (name, policy) in baselines.into_iter().chain(names) {
        let mut arguments = vec!["--policy", &policy, "--plan", plan.to_str().unwrap()];
        let files = files(day);
        arguments.extend(files.iter().map(String::as_str));
        arguments.extend(options);
        let scored = chosen(&run_score(&arguments, &input).0);
        let decided = decisions(&folder, &name);
        assert!(decided.len() > 300, "{} requests", decided.len());
        for (request, shown) in &decided {
            assert_eq!(scored.get(request).copied(), shown.map(|(ad, _)| ad), "{name}, request {request}");
        }
        if !options.contains(&"--complete-queues") {
            // Counted from what `score` chose and the text of the log alone.
            let shown = |(id, ad): &worlds::Decision| (*id, ad.map(|(_, kind)| (scored[id], kind)));
            let earned = plain.judge(rate_seed, &decided.iter().map(shown).collect::<Vec<_>>()).unwrap().j;
            let rows = evaluation.reports[0]["policies"].as_array().unwrap();
            let claimed = rows.iter().find(|p| p["name"] == *name).unwrap()["j"].as_f64().unwrap();
            assert!(
                (claimed - earned).abs() <= 1e-6 * earned.abs(),
                "{name}: eval says {claimed}, score earned {earned}"
            );
        }
    }
}

#[test]
fn decisions_are_those_of_eval_on_a_twisted_day() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 3);
    assert!(days[2].join("inventory.tsv").is_file());
    let plan = plan(scratch.path(), &days[..2]);
    let learned = policies(scratch.path(), &plan, &days[0]);
    agree(&days[2], &plan, &learned, &["--rate-seed", "11", "--feedback-delay", "600"]);
    agree(&days[2], &plan, &learned, &["--complete-queues"]);
}

#[test]
fn decisions_are_those_of_eval_on_ipinyou() {
    let Some(folder) = real_logs("decisions_are_those_of_eval_on_ipinyou") else { return };
    let source = folder.join("ipinyou");
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("logs");
    admix()
        .args(["data", "import", "ipinyou", "--impressions"])
        .args((0..3).map(|d| source.join(format!("imp.weekday{d}.csv.gz"))))
        .arg("--control")
        .arg(source.join("contracts.tsv"))
        .arg("--out")
        .arg(&out)
        .assert()
        .success();
    let plan = plan(scratch.path(), &[out.join("weekday-0")]);
    let learned = policies(scratch.path(), &plan, &out.join("weekday-0"));
    agree(&out.join("weekday-2"), &plan, &learned, &["--feedback-delay", "120"]);
}

/// Also at the values of a model, which a policy that was made at them finds beside itself.
#[test]
fn decisions_are_those_of_eval_at_the_values_of_a_model() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("compress = \"none\"\n{}", values::WORLD), 3);
    let run = scratch.path().join("values");
    let train = format!("values.train={:?}", [days[0].to_str().unwrap()]);
    let mut command = admix();
    command.args(["values", "train", "--config", values::CONFIG, "--run-dir"]).arg(&run);
    for set in [&train, "values.batch=256", "values.epochs=3", "table.max_rows=2000"] {
        command.args(["--set", set]);
    }
    command.assert().success();
    let plan = plan(scratch.path(), &days[..1]);
    let learned = policies(scratch.path(), &plan, &days[0]);
    let run = run.to_str().unwrap();
    agree(&days[2], &plan, &learned, &["--values", run]);

    let files = files(&days[2]);
    let input = std::fs::read(days[2].join("track_log.tsv")).unwrap();
    let decide = |policy: &str, told: &[&str]| {
        let mut arguments = vec!["--policy", policy, "--plan", plan.to_str().unwrap()];
        arguments.extend(files.iter().map(String::as_str));
        arguments.extend(told);
        run_score(&arguments, &input)
    };
    let policy = "baseline:auction-only";
    assert!(
        chosen(&decide(policy, &[]).0) != chosen(&decide(policy, &["--values", run]).0),
        "the values change nothing"
    );

    // A policy of a plan at the model's values: it is told them without being asked for, wherever its folder goes.
    let at = scratch.path().join("at-values.json");
    admix().arg("plan").arg(&days[0]).args(["--values", run, "--out"]).arg(&at).assert().success();
    let name = Told::model(Path::new(run)).unwrap().to_string();
    assert_eq!(Plan::read(&at).unwrap().told, name);
    let moved = scratch.path().join("moved/policies");
    std::fs::create_dir_all(&moved).unwrap();
    let policy = &policies(scratch.path(), &at, &days[0])[0];
    let policy = std::fs::copy(policy, moved.join("one.safetensors")).map(|_| moved.join("one.safetensors")).unwrap();
    let policy = policy.to_str().unwrap();
    let mut command = admix();
    command.args(["score", "--policy", policy]).args(&files).write_stdin(&*input);
    let output = command.assert().code(2);
    let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(said.contains(&name) && said.contains("--values"), "{said}");
    let (out, said) = decide(policy, &["--values", run]);
    assert!(said.contains(&format!("is told {name}")), "{said}");
    assert!(decide(policy, &["--values", "logged"]).1.contains("made at other values"));
    let beside = store::put(&ValueModel::read(Path::new(run)).unwrap(), &moved).unwrap();
    assert!(beside.ends_with(name.replace("values:", "values/")), "{}", beside.display());
    assert!(decide(policy, &[]).0 == out, "the model beside it is told");
}

/// A day, its plan and random policies.
pub(super) struct Setting {
    pub scratch: TempDir,
    pub day: PathBuf,
    pub plan: PathBuf,
    learned: Vec<PathBuf>,
}

pub(super) fn setting() -> Setting {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 2);
    let plan = plan(scratch.path(), &days[..1]);
    let learned = policies(scratch.path(), &plan, &days[0]);
    Setting { day: days[1].clone(), plan, learned, scratch }
}

impl Setting {
    pub fn policy(&self, name: &str) -> ServedPolicy {
        let file = self.learned.iter().find(|f| f.file_stem().unwrap() == name);
        match file {
            Some(file) => ServedPolicy::open(file.to_str().unwrap(), None).unwrap(),
            None => ServedPolicy::open(&format!("baseline:{name}"), Some(&self.plan)).unwrap(),
        }
    }

    pub fn served(&self) -> ServedDay {
        let day = |name: &str| self.day.join(name);
        let files =
            DayFiles { control: day("control.tsv"), inventory: Some(day("inventory.tsv")), day: Some(day("day.toml")) };
        ServedDay::read(&files, 0).unwrap()
    }

    pub fn scorer(&self, name: &str, options: ScoreOptions) -> Scorer {
        Scorer::new(&self.served(), &self.policy(name), options).unwrap()
    }

    pub fn rows(&self) -> Vec<TrackRow> {
        RawDay::read(&self.day, CompileOptions::default()).unwrap().rows
    }
}

pub(super) fn decide(scorer: &mut Scorer, row: &TrackRow) -> Decision {
    let mut decision = Decision::default();
    scorer.decide(row, &mut decision).unwrap();
    decision
}

pub(super) const DELAYED: ScoreOptions = ScoreOptions {
    rate_seed: 5,
    feedback_delay_s: 900.0,
    complete_queues: false,
    stateless: false,
    exposures: false,
    confirm_within_s: None,
};

#[test]
fn a_restored_scorer_goes_on_as_if_nothing_had_happened() {
    let setting = setting();
    let rows = setting.rows();
    for name in NAMES.into_iter().chain(["by-contract", "by-all"]) {
        let mut whole = setting.scorer(name, DELAYED);
        let whole: Vec<Decision> = rows.iter().map(|row| decide(&mut whole, row)).collect();
        let mut first = setting.scorer(name, DELAYED);
        let half = rows.len() / 2;
        rows[..half].iter().for_each(|row| drop(decide(&mut first, row)));
        let saved = first.save();
        let mut second = setting.scorer(name, DELAYED);
        assert!(second.restore(&saved).unwrap().goes_on, "{name}");
        for (row, expected) in rows[half..].iter().zip(&whole[half..]) {
            assert_eq!(decide(&mut second, row), *expected, "{name}");
        }
        for damaged in [&saved[..saved.len() - 1], &saved[..10], b"", &[saved.as_slice(), b"x"].concat()] {
            assert!(setting.scorer(name, DELAYED).restore(damaged).is_err());
        }
        assert!(setting.scorer(name, ScoreOptions { rate_seed: 6, ..DELAYED }).restore(&saved).is_err());
    }
}

#[test]
fn a_stateless_scorer_gives_the_same_scores_in_any_order() {
    let setting = setting();
    let rows = setting.rows();
    for name in ["receding-horizon", "pid", "by-contract"] {
        let mut moving = setting.scorer(name, DELAYED);
        rows[..rows.len() / 2].iter().for_each(|row| drop(decide(&mut moving, row)));
        let saved = moving.save();
        let options = ScoreOptions { stateless: true, ..DELAYED };
        let mut scorer = setting.scorer(name, options);
        scorer.restore(&saved).unwrap();
        let ahead = &rows[rows.len() / 2..];
        let forwards: Vec<Decision> = ahead.iter().map(|row| decide(&mut scorer, row)).collect();
        let backwards: Vec<Decision> = ahead.iter().rev().map(|row| decide(&mut scorer, row)).collect();
        assert!(forwards.iter().eq(backwards.iter().rev()), "{name}");
        assert_eq!(
            scorer.save(),
            {
                scorer.restore(&saved).unwrap();
                scorer.save()
            },
            "{name}: its state moved"
        );
        // The first request after the recorded state is scored as it would have been.
        assert_eq!(decide(&mut moving, &ahead[0]), forwards[0], "{name}");
    }
}

/// The verdict of a training says `--plan RUN_DIR`; only the file in it was taken.
#[test]
fn the_plan_of_a_baseline_is_that_of_a_run_directory() {
    let setting = setting();
    let run = tempfile::tempdir().unwrap();
    std::fs::create_dir(run.path().join("plan")).unwrap();
    std::fs::copy(&setting.plan, run.path().join("plan/plan.json")).unwrap();
    let rows = jsonl(&setting.rows()[..50]).unwrap();
    let score = |plan: &Path| {
        let mut arguments = files(&setting.day);
        arguments.extend(["--policy", "baseline:pid", "--format", "jsonl", "--plan"].map(str::to_owned));
        arguments.push(plan.to_str().unwrap().to_owned());
        run_score(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &rows).0
    };
    let scores = score(&setting.plan);
    assert!(scores.lines().count() == 50 && scores == score(run.path()) && scores == score(&run.path().join("plan")));
}

/// Programs whose numbers are doubles keep an id above 2^53 only in a string, and read it back only from one.
#[test]
fn ids_that_come_as_strings_go_out_as_strings() {
    let setting = setting();
    let mut arguments = files(&setting.day);
    arguments.extend(["--policy", "baseline:static-prices", "--format", "jsonl", "--plan"].map(str::to_owned));
    arguments.push(setting.plan.to_str().unwrap().to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let numbers = jsonl(&setting.rows()[..200]).unwrap();
    let as_text = |object: &mut Value, name: &str| {
        if let Some(id) = object.get(name).and_then(Value::as_u64) {
            object[name] = Value::String(id.to_string());
        }
    };
    let texts: Vec<String> = std::str::from_utf8(&numbers)
        .unwrap()
        .lines()
        .map(|line| {
            let mut object: Value = serde_json::from_str(line).unwrap();
            as_text(&mut object, "request_id");
            as_text(&mut object, "user_id");
            object["queue"].as_array_mut().unwrap().iter_mut().for_each(|entry| as_text(entry, "ad_id"));
            object.to_string()
        })
        .collect();
    let (plain, _) = run_score(&arguments, &numbers);
    let (quoted, _) = run_score(&arguments, texts.join("\n").as_bytes());
    assert_eq!(quoted.lines().count(), 200);
    for (plain, quoted) in plain.lines().zip(quoted.lines()) {
        let mut expected: Value = serde_json::from_str(plain).unwrap();
        as_text(&mut expected, "request_id");
        as_text(&mut expected, "chosen");
        expected["scores"].as_array_mut().unwrap().iter_mut().for_each(|score| as_text(score, "ad_id"));
        assert_eq!(serde_json::from_str::<Value>(quoted).unwrap(), expected);
    }
    for wrong in ["17.0", "\"17.0\"", "\"+17\"", "-17", "\"a7\"", "\"\"", "18446744073709551616", "null"] {
        let mut object = texts[0].replacen("\"request_id\":\"", "\"request_id\":#", 1);
        let end = object.find('#').unwrap() + object[object.find('#').unwrap()..].find('"').unwrap();
        object.replace_range(object.find('#').unwrap()..=end, wrong);
        let input = format!("{object}\n{}", texts[1]);
        let (answers, said) = run_score(&arguments, input.as_bytes());
        assert_eq!(answers.lines().count(), 1, "{wrong}");
        let words = [
            "an id: a whole number from 0 to 18446744073709551615, or its digits as a string",
            "hash ids that are texts",
        ];
        assert!(words.iter().all(|word| said.contains(word)), "{wrong}: {said}");
    }
}

#[test]
fn json_lines_give_the_scores_of_tsv() {
    let setting = setting();
    let mut arguments = vec!["--policy".to_owned(), setting.learned[1].to_str().unwrap().to_owned()];
    arguments.extend(files(&setting.day));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let tsv = std::fs::read(setting.day.join("track_log.tsv")).unwrap();
    let (plain, _) = run_score(&arguments, &tsv);
    let json = jsonl(&setting.rows()).unwrap();
    let (objects, _) = run_score(&[arguments.as_slice(), &["--format", "jsonl"]].concat(), &json);
    let mut rows = plain.lines().skip(1);
    for line in objects.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        for score in object["scores"].as_array().unwrap() {
            let cells: Vec<&str> = rows.next().unwrap().split('\t').collect();
            assert_eq!([object["request_id"].to_string(), score["ad_id"].to_string()], cells[..2]);
            let (number, expected) = (score["score"].as_f64().unwrap(), cells[2].parse::<f64>().unwrap());
            // A JSON reader may be off by the last bit of an eCPM.
            assert!((number - expected).abs() <= 1e-9 * expected.abs(), "{number}, {expected}");
            assert_eq!(u8::from(score["ad_id"] == object["chosen"]).to_string(), cells[3]);
        }
    }
    assert_eq!(rows.next(), None);
}

#[test]
fn bad_lines_are_reported_and_skipped() {
    let setting = setting();
    let control = setting.day.join("control.tsv");
    let arguments = ["--policy", "baseline:auction-only", "--format", "jsonl", "--control", control.to_str().unwrap()];
    let ts = setting.rows()[0].ts_ms;
    let good = |id: u64, ts: u64| {
        format!(
            r#"{{"request_id":{id},"ts_ms":{ts},"slot_id":1,"region":1,"gender":1,"age":1,"queue":[{{"ad_id":5000,"type":"A","ecpm":100,"pctr":0.1,"filter":0}}]}}"#
        )
    };
    let lines = [
        "{".to_owned(),
        good(1, ts),
        good(1, ts),
        good(2, ts + 86_400_000),
        good(3, ts).replace("100", "1e400"),
        good(4, ts).replace("100", "NaN"),
        good(5, ts).replace("100", "-1"),
        good(6, ts).replace("\"A\"", "\"C\""),
        good(7, ts).replace("\"gender\":1", "\"gender\":7"),
        "\u{0}\u{1}".to_owned(),
        "[]".to_owned(),
        good(8, ts),
    ];
    let (out, told) = run_score(&arguments, lines.join("\n").as_bytes());
    let ids: Vec<u64> =
        out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["request_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 8]);
    for line in [1, 3, 4, 5, 6, 7, 8, 9, 10, 11] {
        assert!(told.contains(&format!("line {line} skipped")), "line {line}: {told}");
    }
    assert!(told.contains("10 of 12 lines were skipped"), "{told}");
}

/// A line of any length was read into memory whole.
#[test]
fn a_line_that_is_too_long_is_skipped() {
    let setting = setting();
    let mut arguments = files(&setting.day);
    arguments.extend(["--policy", "baseline:pid", "--format", "jsonl", "--plan"].map(str::to_owned));
    arguments.push(setting.plan.to_str().unwrap().to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let rows = setting.rows();
    let good = jsonl(&rows[..3]).unwrap();
    let lines: Vec<&str> = std::str::from_utf8(&good).unwrap().lines().collect();
    // It is a request but for its length.
    let long = lines[1].replacen('{', &format!("{{\"more\":\"{}\",", "x".repeat(6 << 20)), 1);
    let (out, said) = run_score(&arguments, [lines[0], &long, lines[2]].join("\n").as_bytes());
    assert!(said.contains("line 2 skipped") && said.contains("1 row_too_long"), "{said}");
    let (expected, _) = run_score(&arguments, [lines[0], lines[2]].join("\n").as_bytes());
    assert!(out == expected && out.lines().count() == 2, "{out}");
}

/// One of two was ignored, or moved a state that should have stood still.
#[test]
fn options_that_contradict_each_other_are_refused() {
    for (options, word) in [
        (&["--state", "state", "--delivered", "delivered.tsv"][..], "--delivered"),
        (&["--stateless", "--exposures", "exposures.tsv"][..], "--exposures"),
        (&["--stateless", "--exposures", "exposures.tsv", "--confirm-within", "60"][..], "--stateless"),
    ] {
        let mut command = admix();
        command.args(["score", "--policy", "policy", "--control", "control.tsv"]).args(options);
        let output = command.assert().code(2);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(said.contains("cannot be used with") && said.contains(word), "{said}");
    }
}

/// A state of 1970-01-01 was saved, and the next call failed.
#[test]
fn no_state_is_saved_of_a_day_that_nobody_named() {
    let setting = setting();
    let state = setting.scratch.path().join("state");
    let empty = b"request_id\tts_ms\tslot_id\tregion\tgender\tage\tqueue\n";
    let score = |more: &[&str]| {
        let mut command = admix();
        command.args(["score", "--policy", "baseline:auction-only", "--control"]).arg(setting.day.join("control.tsv"));
        command.arg("--save-state").arg(&state).args(more).write_stdin(&empty[..]);
        command.assert()
    };
    let output = score(&[]).code(2);
    let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(said.contains("no state is saved") && !state.exists(), "{said}");
    score(&["--day", setting.day.join("day.toml").to_str().unwrap()]).success();
    assert!(state.is_file());
}

/// A whole day was scored, or a dictionary made, before the file turned out not to be writable.
#[test]
fn a_file_that_cannot_be_written_ends_the_command_before_its_work() {
    let scratch = tempfile::tempdir().unwrap();
    let (nowhere, dictionary) = (scratch.path().join("missing/file"), scratch.path().join("dictionary.tsv"));
    // The state goes beside the dictionary.
    std::fs::create_dir(scratch.path().join("dictionary.tsv.state")).unwrap();
    let fails = |arguments: &[&str], out: &Path| {
        let output = admix().args(arguments).arg(out).assert().code(2);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(said.contains("cannot write"), "{said}");
    };
    // Nothing else is there either.
    fails(&["score", "--policy", "policy", "--control", "control.tsv", "--save-state"], &nowhere);
    fails(&["export", "--policy", "policy", "--log", "day", "--out"], &nowhere);
    fails(&["export", "--policy", "policy", "--log", "day", "--out"], &dictionary);
}

/// The name of an ad of the control table is changed: nobody planned for it.
#[test]
fn contracts_that_no_training_day_had_are_told() {
    let setting = setting();
    let learned = setting.learned[0].to_str().unwrap();
    let date = setting.day.join("day.toml");
    let run = |control: &Path| {
        let files = ["--control", control.to_str().unwrap(), "--day", date.to_str().unwrap()];
        run_score(&[&["--policy", learned, "--format", "jsonl"][..], &files].concat(), b"").1
    };
    let known = setting.day.join("control.tsv");
    assert!(!run(&known).contains("unknown to the policy"));
    let text = std::fs::read_to_string(&known).unwrap();
    let owing = setting.served().contracts.into_iter().find(|c| c.required > c.delivered0).unwrap();
    let id = owing.ad_id.to_string();
    let renamed: Vec<String> = text
        .lines()
        .map(|line| {
            line.split('\t').map(|cell| if cell == id { "987654" } else { cell }).collect::<Vec<_>>().join("\t")
        })
        .collect();
    let path = setting.scratch.path().join("renamed.tsv");
    std::fs::write(&path, renamed.join("\n") + "\n").unwrap();
    let told = run(&path);
    assert!(told.contains("1 of ") && told.contains("contracts are unknown to the policy"), "{told}");
}

#[test]
fn input_of_which_nothing_can_be_decided_is_an_error() {
    let setting = setting();
    let mut arguments = files(&setting.day);
    arguments.extend(["--policy", "baseline:pid", "--plan", setting.plan.to_str().unwrap()].map(str::to_owned));
    let fails = |input: &[u8], words: &[&str]| {
        let output = admix().arg("score").args(&arguments).write_stdin(input).assert().code(2);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        words.iter().for_each(|word| assert!(said.contains(word), "no `{word}` in {said}"));
    };
    let header = "request_id\tts_ms\tslot_id\tregion\tgender\tage\tqueue\n";
    fails(format!("{header}1\t0\t1\t1\t1\t1\t7,A,2000,0.01,0\n").as_bytes(), &["no request was decided", "--day FILE"]);
    fails(b"PAR1\x15\x04", &["Parquet", "TSV or JSON lines"]);
    fails(b"{\"request_id\": 1}\n", &["--format jsonl"]);
}
