//! Plans that are kept: taken again while everything that they depend on stays, never when something changed, and never believed
//! when they are damaged.

use std::path::{Path, PathBuf};

use admix::log::{self, CompileOptions};
use admix::plan::Plan;
use admix::settings::{Baselines, Env, Episodes, Policy};
use admix::supervisor::prepare::Planning;
use admix::values::Told;
use serde_json::{Value, json};

use super::decisions::synth;
use super::logs::LogRows;
use super::support::admix;

const WORLD: &str = "requests = 500\nqueue = 6\nregions = 3\nslots = 2\nages = 2\nusers = 300\nauction_ads = 40\n\
                     contracts = 4\ncontracts_per_queue = 2.0\nrate = 0.8\n";

/// What a plan depends on beside the days.
#[derive(Clone)]
struct Sections {
    env: Env,
    episodes: Episodes,
    baselines: Baselines,
    policy: Policy,
}

fn sections() -> Sections {
    Sections {
        env: Env::default(),
        episodes: Episodes::default(),
        baselines: Baselines { tuning_replays: 6, ..Baselines::default() },
        policy: Policy::default(),
    }
}

/// The plan as every start gets it, and as it is made without a look at what is kept.
fn plans(dirs: &[PathBuf], served: Option<&Path>, s: &Sections) -> (Plan, Plan) {
    plans_judged_on(&[], dirs, served, s)
}

fn plans_judged_on(validation: &[PathBuf], dirs: &[PathBuf], served: Option<&Path>, s: &Sections) -> (Plan, Plan) {
    let planning = || {
        let options =
            CompileOptions { complete_queues: s.env.complete_queues, max_bad_share: 1.0, ..CompileOptions::default() };
        let logs = dirs.iter().map(|dir| log::open(dir, options).unwrap()).collect();
        let Sections { env, episodes, baselines, policy } = s;
        let told = &Told::Logged;
        Planning { dirs, logs, served, validation, options, told, env, episodes, per_step: 30, baselines, policy }
    };
    let made = planning().make().unwrap().to_json();
    (planning().plan().unwrap(), serde_json::from_slice(&made).unwrap())
}

/// The plans that are kept beside a day.
fn kept(dir: &Path) -> Vec<PathBuf> {
    let files = dir.join(".admix").read_dir().unwrap().map(|file| file.unwrap().path());
    let mut plans: Vec<_> =
        files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("plan-")).collect();
    plans.sort();
    plans
}

#[test]
fn a_second_start_takes_the_plan_that_the_first_one_made() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 3);
    let config = scratch.path().join("config.toml");
    let list = |days: &[PathBuf]| toml::Value::from(days.iter().map(|d| d.to_str().unwrap()).collect::<Vec<_>>());
    let text = format!(
        "[data]\ntrain = {}\nvalidation = {}\n[baselines]\ntuning_replays = 6\n[budget]\nmax_updates = 1\n",
        list(&days[..2]),
        list(&days[2..])
    );
    std::fs::write(&config, text).unwrap();
    let plan = |out: &str| {
        let out = scratch.path().join(out);
        let mut command = admix();
        command.arg("plan").args(&days[..2]).arg("--validation").args(&days[2..]);
        let output = command.arg("--config").arg(&config).arg("--out").arg(&out).output().unwrap();
        assert!(output.status.success());
        (String::from_utf8(output.stderr).unwrap(), std::fs::read(out).unwrap())
    };
    let (words, first) = plan("first.json");
    assert!(words.contains("planning from 2 training days"), "{words}");
    let (words, second) = plan("second.json");
    assert!(words.contains("is taken from") && !words.contains("planning from"), "{words}");
    assert!(first == second, "the same plan to the last byte");
    let run = scratch.path().join("run");
    let output =
        admix().args(["train", "--serial", "--config"]).arg(&config).arg("--run-dir").arg(&run).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && words.contains("is taken from"), "train shares it: {words}");
    assert!(std::fs::read(run.join("plan/plan.json")).unwrap() == first);
}

#[test]
fn no_setting_gets_the_plan_of_another() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 2);
    let base = sections();
    let (usual, made) = plans(&days, None, &base);
    assert_eq!(usual, made);
    let tree =
        json!({ "env": base.env, "episodes": base.episodes, "baselines": base.baselines, "policy": base.policy });
    let mut changed_plans = 0;
    for (section, keys) in tree.as_object().unwrap() {
        for (key, value) in keys.as_object().unwrap() {
            let other = match value {
                Value::Bool(b) => json!(!b),
                Value::Number(n) if n.is_u64() => json!(n.as_u64().unwrap() + 2),
                Value::Number(n) => json!(if n.as_f64().unwrap() > 1.0 { 7200.0 } else { n.as_f64().unwrap() + 0.25 }),
                Value::Object(_) => json!({ "median_s": 600.0, "log_sd": 0.5, "max_s": 1800.0 }),
                _ => panic!("{section}.{key}: give this kind of value another one"),
            };
            let mut tree = tree.clone();
            tree[section][key] = other;
            let read = |name: &str| tree[name].clone();
            let changed = Sections {
                env: serde_json::from_value(read("env")).unwrap(),
                episodes: serde_json::from_value(read("episodes")).unwrap(),
                baselines: serde_json::from_value(read("baselines")).unwrap(),
                policy: serde_json::from_value(read("policy")).unwrap(),
            };
            let (got, made) = plans(&days, None, &changed);
            assert!(got == made, "{section}.{key}: a plan of other settings");
            changed_plans += usize::from(made != usual);
        }
    }
    assert!(changed_plans >= 5, "only {changed_plans} settings changed the plan: this test shows little");
}

#[test]
fn changed_inputs_are_planned_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 3);
    let (train, served) = (&days[..2], &days[2]);
    let s = sections();
    let check = |what: &str, dirs: &[PathBuf], served: Option<&Path>| {
        let (got, made) = plans(dirs, served, &s);
        assert!(got == made, "{what}");
        got
    };
    let mut seen = vec![check("as generated", train, None)];
    let mut new = |what: &str, plan: Plan| {
        assert!(!seen.contains(&plan), "{what} makes no other plan");
        seen.push(plan);
    };
    new("the other order", check("order", &[train[1].clone(), train[0].clone()], None));
    new("one day", check("one day", &train[..1], None));
    new("a day to be served", check("served", train, Some(served)));
    let control = served.join("control.tsv");
    let rows = LogRows::read(served);
    let penalties: Vec<f64> = rows.contracts.iter().map(|c| c.penalty).collect();
    let text = std::fs::read_to_string(&control).unwrap();
    std::fs::remove_file(&control).unwrap();
    let mut altered = rows.contracts.clone();
    altered[0].required += 40;
    altered[0].cap += 40;
    admix::log::write::control(&control, &altered, (rows.day.start_ms, rows.day.end_ms())).unwrap();
    new("its control table", check("served control", train, Some(served)));
    std::fs::write(&control, text).unwrap();
    std::fs::remove_file(served.join("inventory.tsv")).unwrap();
    new("its missing forecast", check("served inventory", train, Some(served)));

    let mut rows = LogRows::read(&train[1]);
    let inventory = train[1].join("inventory.tsv");
    rows.inventory.as_mut().unwrap().iter_mut().for_each(|node| node.pv *= 0.5);
    admix::log::write::inventory(&inventory, rows.inventory.as_ref().unwrap()).unwrap();
    check("a training day's forecast", train, None);
    std::fs::remove_file(&inventory).unwrap();
    check("no forecast", train, None);
    rows.contracts[0].penalty = 2.0 * penalties[0];
    admix::log::write::control(&train[1].join("control.tsv"), &rows.contracts, (rows.day.start_ms, rows.day.end_ms()))
        .unwrap();
    new("a training day's control table", check("control", train, None));
}

/// Baselines are tuned on the validation days too, which choose the learner's parameters.
#[test]
fn validation_days_take_part_in_the_plan() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 4);
    let s = Sections { baselines: Baselines { tuning_replays: 24, ..Baselines::default() }, ..sections() };
    let check = |validation: &[PathBuf], train: &[PathBuf]| {
        let (got, made) = plans_judged_on(validation, train, None, &s);
        assert!(got == made, "{validation:?}");
        got
    };
    let alone = check(&[], &days[..1]);
    let judged = check(&days[2..], &days[..1]);
    assert!(alone != judged);
    // Another day of the same name.
    std::fs::remove_dir_all(&days[2]).unwrap();
    std::fs::rename(&days[1], &days[2]).unwrap();
    check(&days[2..], &days[..1]);
    let several = [days[0].clone(), days[3].clone()];
    assert!(check(&days[2..3], &several) != check(&[], &several));
}

#[test]
fn a_damaged_plan_is_made_again_and_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 2);
    let s = sections();
    let (_, made) = plans(&days, None, &s);
    let [path] = &kept(&days[1])[..] else { panic!("one plan is kept, beside the last day") };
    assert!(kept(&days[0]).is_empty());
    let whole = std::fs::read(path).unwrap();
    let at = |share: usize| whole.len() * share / 10;
    let mut damaged: Vec<Vec<u8>> = vec![vec![], whole[..at(5)].to_vec(), [&whole[..], b"}"].concat()];
    for byte in [0, 8, 20, 32, at(3), at(9), whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[byte] ^= 4;
        damaged.push(bytes);
    }
    for (i, bytes) in damaged.iter().enumerate() {
        std::fs::write(path, bytes).unwrap();
        assert!(plans(&days, None, &s).0 == made, "damage {i}");
        assert!(std::fs::read(path).unwrap() == whole, "damage {i} is mended");
    }
}

#[test]
fn where_a_plan_cannot_be_kept_it_is_made_each_time() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 2);
    let s = sections();
    let (_, made) = plans(&days, None, &s);
    let path = &kept(&days[1])[0];
    // A folder stands where the file would be: even root cannot replace it.
    std::fs::remove_file(path).unwrap();
    std::fs::create_dir_all(path.join("in the way")).unwrap();
    for _ in 0..2 {
        assert!(plans(&days, None, &s).0 == made);
    }
    assert!(path.is_dir());
    let left: Vec<_> = days[1].join(".admix").read_dir().unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no temporary file is left: {left:?}");
}
