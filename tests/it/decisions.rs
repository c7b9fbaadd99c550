//! The real program's decision files: with the log's text alone they give every number that it reports.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admix::env::Vocabulary;
use admix::evaluate::compare::compare_day;
use admix::log::schema::AdType;
use admix::plan::Plan;
use admix::policy::baselines::{NAMES, known};
use admix::policy::file::PolicyFile;
use admix::policy::{PolicySpec, ReplayOptions};
use admix::settings::{self, ScoreMode};
use proptest::prelude::*;
use rand::SeedableRng as _;
use serde_json::Value;
use tempfile::TempDir;

use super::support::{admix, real_logs};
use super::worlds::{Decision, Loaded, PlainLog, cases, close, open, table, text_of, world};

pub const SMALL: &str = "requests = 1500\nqueue = 8\nregions = 4\nslots = 2\nusers = 500\nauction_ads = 60\n";
/// A world with all that the rules of showing know.
pub const TWISTED: &str = "contracts = 7\ncontracts_per_queue = 2.5\ncompress = \"none\"\ncap_slack = 0.3\n\
                       delivered0_share = 0.15\nrate = 0.8\nboost_share = 0.2\nfilter_share = 0.2\n\
                       part_day_share = 0.5\n";

/// Writes days of a synthetic world.
pub fn synth(folder: &Path, world: &str, days: usize) -> Vec<PathBuf> {
    let config = folder.join("world.toml");
    std::fs::write(&config, world).unwrap();
    let out = folder.join("days");
    admix()
        .args(["data", "synth", "--config"])
        .arg(&config)
        .arg("--out")
        .arg(&out)
        .args(["--days", &days.to_string()])
        .assert()
        .success();
    (0..days).map(|d| out.join(format!("day-{d}"))).collect()
}

pub fn plan(folder: &Path, days: &[PathBuf]) -> PathBuf {
    let out = folder.join("plan.json");
    admix().arg("plan").args(days).arg("--out").arg(&out).assert().success();
    out
}

/// Policy files with random weights, one for each score mode.
pub fn policies(folder: &Path, plan: &Path, day: &Path) -> Vec<PathBuf> {
    let plan = Plan::read(plan).unwrap();
    let log = open(day);
    [("by-contract", ScoreMode::Contract), ("by-all", ScoreMode::All)]
        .map(|(name, score_mode)| {
            let policy = settings::Policy { hidden: 8, ..settings::Policy::default() };
            let spec = PolicySpec { score_mode, policy, vocabulary: Vocabulary::of_days(&[&log], true) };
            let actor = spec.actor_shape().initial(&mut rand_chacha::ChaCha8Rng::seed_from_u64(9), 1.0, 0.0);
            let path = folder.join(format!("{name}.safetensors"));
            PolicyFile { spec: Arc::new(spec), plan: plan.clone(), actor, updates: 0 }.write(&path).unwrap();
            path
        })
        .into()
}

pub struct Evaluation {
    pub reports: Vec<Value>,
    pub folder: TempDir,
}

/// Runs `eval` with decisions; every line on stdout is a report.
pub fn evaluate(logs: &[PathBuf], arguments: &[&str]) -> Evaluation {
    let folder = tempfile::tempdir().unwrap();
    let output = admix()
        .arg("eval")
        .arg("--log")
        .args(logs)
        .arg("--json")
        .arg("--decisions")
        .arg(folder.path())
        .args(arguments)
        .assert()
        .success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let mut reports: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    reports.retain(|line| line["verdict"].is_null());
    assert_eq!(reports.len(), logs.len());
    Evaluation { reports, folder }
}

/// The decisions of one policy, as its file says.
pub fn decisions(folder: &Path, policy: &str) -> Vec<Decision> {
    let text = text_of(folder, &format!("decisions.{policy}"));
    table(&text)
        .map(|row| {
            let ad: u64 = row["ad_id"].parse().unwrap();
            let shown = match row["type"] {
                "-" => None,
                kind => Some((ad, kind.parse().unwrap())),
            };
            assert!(shown.is_some() || ad == 0, "{row:?}");
            (row["request_id"].parse().unwrap(), shown)
        })
        .collect()
}

/// Checks every number of a report against its decision files and the text of the log; the names of its policies.
fn check(report: &Value, decided: &Path, plain: &PlainLog, rate_seed: u64) -> Vec<String> {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {report}"));
    let near = |what: &str, claimed: &Value, counted: f64| {
        let claimed = number(claimed);
        assert!(
            (claimed - counted).abs() <= 1e-6 * counted.abs().max(1e-3),
            "{what}: {claimed} claimed, {counted} counted"
        );
    };
    let folder = decided.join(report["log"].as_str().unwrap());
    assert_eq!(report["requests"], plain.requests.len());
    assert_eq!(report["rate_seed"], rate_seed);
    assert_eq!(report["unfilled"], plain.unfillable(rate_seed));
    let (upper, stake) = (number(&report["bound"]["ub"]), plain.stake());
    near("stake", &report["bound"]["stake"], stake);
    let mut names = Vec::new();
    for policy in report["policies"].as_array().unwrap() {
        let name = policy["name"].as_str().unwrap();
        let verdict = match name {
            // It drew its own rates, and may have left empty what could be filled.
            "logged" => plain.earned(&decisions(&folder, name)),
            _ => plain.judge(rate_seed, &decisions(&folder, name)).unwrap_or_else(|e| panic!("{name}: {e}")),
        };
        let mean = |sum: f64, n: u64| if n == 0 { 0.0 } else { sum / n as f64 };
        near("j", &policy["j"], verdict.j);
        near("auction revenue", &policy["auction_revenue"], verdict.auction_revenue);
        near(
            "shortage",
            &policy["shortage_rate"],
            if verdict.owed > 0.0 { verdict.missing / verdict.owed } else { 0.0 },
        );
        near(
            "mean ecpm",
            &policy["mean_auction_ecpm"],
            1000.0 * mean(verdict.auction_revenue, verdict.auction_impressions),
        );
        near("mean ctr", &policy["mean_contract_ctr"], mean(verdict.contract_pctr, verdict.contract_impressions));
        near("share", &policy["share"], (verdict.j + stake) / (upper + stake));
        near("gap", &policy["gap"], 1.0 - (verdict.j + stake) / (upper + stake));
        assert_eq!(policy["contract_impressions"], verdict.contract_impressions, "{name}");
        assert_eq!(policy["auction_impressions"], verdict.auction_impressions, "{name}");
        assert_eq!(policy["unfilled"], verdict.unfilled, "{name}");
        if name != "logged" || plain.contracts.values().all(|c| c.rate == 1.0) {
            assert!(verdict.j <= upper + 1e-9 * upper.abs(), "{name} is above the bound");
        }
        if name == "oracle" {
            assert_eq!(policy["kind"], "oracle");
            near("primal", &report["bound"]["primal"], verdict.j);
        }
        names.push(name.to_owned());
    }
    let files: BTreeSet<_> =
        folder.read_dir().unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, names.iter().map(|n| format!("decisions.{n}.tsv")).collect());
    names
}

#[test]
fn decisions_and_the_log_alone_give_every_reported_number() {
    for (world, options) in [
        (format!("{SMALL}{TWISTED}"), vec!["--rate-seed", "11", "--feedback-delay", "600"]),
        (format!("{SMALL}contracts = 5\ncontracts_per_queue = 3\nfill = 0.8\n"), vec![]),
        (format!("{SMALL}contracts = 0\ncompress = \"gz\"\n"), vec!["--rate-seed", "3"]),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let days = synth(scratch.path(), &world, 3);
        let plan = plan(scratch.path(), &days[..1]);
        let files = policies(scratch.path(), &plan, &days[0]);
        let mut arguments = vec!["--plan", plan.to_str().unwrap(), "--policy"];
        arguments.extend(files.iter().map(|f| f.to_str().unwrap()));
        arguments.extend(&options);
        let evaluation = evaluate(&days[1..], &arguments);
        let seed = options.iter().position(|o| *o == "--rate-seed").map_or(0, |i| options[i + 1].parse().unwrap());
        for (day, report) in days[1..].iter().zip(&evaluation.reports) {
            assert_eq!(report["log"], day.file_name().unwrap().to_str().unwrap());
            assert_eq!(report["quarantined"], 0);
            let names = check(report, evaluation.folder.path(), &PlainLog::read(day), seed);
            let others = ["logged", "by-contract", "by-contract:untrained", "by-all", "by-all:untrained", "oracle"];
            let delayed = options.contains(&"--feedback-delay");
            let baselines = if delayed { known() } else { NAMES.map(String::from).to_vec() };
            assert_eq!(names, baselines.into_iter().chain(others.map(String::from)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn bad_rows_are_counted_and_leave_no_trace_in_decisions_or_j() {
    let scratch = tempfile::tempdir().unwrap();
    let day = &synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 1)[0];
    let plain = PlainLog::read(day);
    let before = evaluate(std::slice::from_ref(day), &[]);
    let path = day.join("track_log.tsv");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let (id, ts) = (plain.requests[0].id, plain.requests[0].ts);
    for (id, ts, queue) in [
        (9_000_001, ts, "77,C,0,0.1,0"),
        (id, ts, "5000,A,100,0.1,0"),
        (9_000_002, ts, "5000,A,-1,0.1,0"),
        (9_000_003, ts - 86_400_000, "5000,A,100,0.1,0"),
    ] {
        let columns = text.lines().next().unwrap().split('\t');
        let cells = columns.map(|column| match column {
            "request_id" => id.to_string(),
            "ts_ms" => ts.to_string(),
            "queue" => queue.to_owned(),
            _ => "1".to_owned(),
        });
        let row = cells.collect::<Vec<_>>().join("\t");
        writeln!(text, "{row}").unwrap();
    }
    std::fs::write(&path, text).unwrap();
    let after = evaluate(std::slice::from_ref(day), &[]);
    assert_eq!(after.reports[0]["quarantined"], 4);
    check(&after.reports[0], after.folder.path(), &plain, 0);
    assert_eq!(after.reports[0]["policies"], before.reports[0]["policies"]);
}

/// Without a plan there is no knowledge of other days, and none of this day's future either.
#[test]
fn without_a_plan_the_rest_of_the_day_moves_no_decision() {
    let scratch = tempfile::tempdir().unwrap();
    let day = &synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 1)[0];
    for inventory in [true, false] {
        if !inventory {
            std::fs::remove_file(day.join("inventory.tsv")).unwrap();
        }
        let whole = evaluate(std::slice::from_ref(day), &[]);
        let requests = PlainLog::read(day).requests;
        let time = requests[requests.len() / 2].ts;
        let morning: Vec<u64> = requests.iter().filter(|r| r.ts < time).map(|r| r.id).collect();
        let path = day.join("track_log.tsv");
        let text = std::fs::read_to_string(&path).unwrap();
        let column = text.lines().next().unwrap().split('\t').position(|c| c == "ts_ms").unwrap();
        let early = |line: &&str| line.split('\t').nth(column).unwrap().parse::<u64>().unwrap() < time;
        let cut: Vec<&str> = text.lines().take(1).chain(text.lines().skip(1).filter(early)).collect();
        assert_eq!(cut.len(), morning.len() + 1);
        std::fs::write(&path, cut.join("\n") + "\n").unwrap();
        let half = evaluate(std::slice::from_ref(day), &[]);
        std::fs::write(&path, text).unwrap();
        let policies = |e: &Evaluation| {
            e.reports[0]["policies"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(policies(&whole), policies(&half));
        for name in policies(&whole).iter().filter(|n| !["oracle", "logged"].contains(&n.as_str())) {
            let of =
                |e: &Evaluation| decisions(&e.folder.path().join("day-0"), name).into_iter().collect::<HashMap<_, _>>();
            let (whole, half) = (of(&whole), of(&half));
            let moved: Vec<_> = morning.iter().filter(|id| whole[id] != half[id]).collect();
            assert!(
                moved.is_empty(),
                "{name}, inventory {inventory}: {} of {} decisions moved",
                moved.len(),
                morning.len()
            );
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_report_counts_what_nobody_could_fill_and_its_primal_is_what_the_oracle_earns(
        world in world(),
        rate_seed in 0u64..4,
    ) {
        let Loaded { day, plain, dir: _dir, .. } = world.load();
        let mut shown: Vec<Decision> = Vec::new();
        let options = ReplayOptions { rate_seed, delay: admix::env::Delay::fixed(0.0) };
        let report = compare_day(&day, &mut [], options, &mut |_, s| {
            let letter = |ad_type| if ad_type == AdType::Contract { 'C' } else { 'A' };
            shown.push((s.request_id, s.ad.map(|(ad, ad_type)| (ad, letter(ad_type)))));
            Ok(())
        });
        let report = report.unwrap();
        prop_assert_eq!(report.unfilled, plain.unfillable(rate_seed));
        let verdict = plain.judge(rate_seed, &shown).map_err(TestCaseError::fail)?;
        prop_assert!(close(report.bound.primal, verdict.j) && close(report.bound.stake, plain.stake()));
        prop_assert!(verdict.unfilled >= report.unfilled);
    }
}

#[test]
fn two_logs_of_one_name_do_not_share_a_decision_file() {
    let scratch = tempfile::tempdir().unwrap();
    let days = ["a", "b"].map(|name| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        synth(&folder, SMALL, 1).remove(0)
    });
    let out = scratch.path().join("decisions");
    let run =
        |logs: &[PathBuf]| admix().args(["eval", "--json", "--decisions"]).arg(&out).arg("--log").args(logs).assert();
    let refused = run(&days).code(2);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("day-0"));
    run(&days[..1]).success();
}

#[test]
fn a_policy_that_predicts_deliveries_decides_as_without_a_delay() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), SMALL, 2);
    let plan = plan(scratch.path(), &days[..1]);
    let predicting = policies(scratch.path(), &plan, &days[0]).swap_remove(0);
    let mut file = PolicyFile::read(&predicting).unwrap();
    let policy = settings::Policy { predict: false, ..file.spec.policy.clone() };
    file.spec = Arc::new(PolicySpec { policy, ..PolicySpec::clone(&file.spec) });
    let waiting = scratch.path().join("waiting.safetensors");
    file.write(&waiting).unwrap();
    let of = |delay: &str| {
        let mut arguments = vec!["--plan", plan.to_str().unwrap(), "--feedback-delay", delay, "--policy"];
        arguments.extend([&predicting, &waiting].map(|path| path.to_str().unwrap()));
        let evaluation = evaluate(&days[1..], &arguments);
        let folder = evaluation.folder.path().join("day-1");
        ["by-contract", "waiting"].map(|name| decisions(&folder, name))
    };
    let [at_once, also_at_once] = of("0");
    let [predicts, waits] = of("3600");
    assert!(at_once == also_at_once, "there is nothing to predict without a delay");
    assert!(predicts == at_once && waits != at_once);
}

#[test]
fn decisions_of_real_impressions_give_every_reported_number() {
    let Some(real) = real_logs("decisions_of_real_impressions") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let files = [0, 1, 2].map(|d| real.join(format!("ipinyou/imp.weekday{d}.csv.gz")));
    let out = scratch.path().join("ipinyou");
    let mut import = admix();
    import.args(["data", "import", "ipinyou", "--impressions"]).args(files);
    import.arg("--control").arg(real.join("ipinyou/contracts.tsv")).arg("--out").arg(&out).assert().success();
    let days = [0, 1, 2].map(|d| out.join(format!("weekday-{d}")));
    let plan = plan(scratch.path(), &days[..1]);
    let files = policies(scratch.path(), &plan, &days[0]);
    let mut arguments = vec!["--plan", plan.to_str().unwrap(), "--feedback-delay", "300", "--policy"];
    arguments.extend(files.iter().map(|f| f.to_str().unwrap()));
    let evaluation = evaluate(&days[1..], &arguments);
    for (day, report) in days[1..].iter().zip(&evaluation.reports) {
        let names = check(report, evaluation.folder.path(), &PlainLog::read(day), 0);
        // The oracle, and each policy with its untrained form; nobody logged what was shown.
        assert_eq!(names.len(), known().len() + 5);
    }
}

#[test]
fn decisions_of_a_real_queue_log_give_every_reported_number() {
    let Some(real) = real_logs("decisions_of_a_real_queue_log") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("tencent2019");
    let mut import = admix();
    import.args(["data", "import", "tencent2019", "--contracts-from-log", "8", "--split", "300", "--track-log"]);
    import.arg(real.join("tencent2019/track_log.20190424.first400.tsv.gz")).arg("--out").arg(&out).assert().success();
    let days = [out.join("part-0"), out.join("part-1")];
    let plan = plan(scratch.path(), &days[..1]);
    let evaluation = evaluate(&days, &["--plan", plan.to_str().unwrap()]);
    for (day, report) in days.iter().zip(&evaluation.reports) {
        let plain = PlainLog::read(day);
        assert_eq!(plain.contracts.len(), 8);
        assert_eq!(check(report, evaluation.folder.path(), &plain, 0).len(), NAMES.len() + 1);
    }
}
