//! `scripts/export_day.py`, the exporter of docs/formats.md: what it writes is a log directory, and what it cannot read is named.

use std::path::Path;

use admix::log::{CompileOptions, RawDay};

use crate::small_logs::admix;

/// The exporter of docs/formats.md, as a user runs it. `ADMIX_PYTHON` names another interpreter, one with pyarrow, say.
#[test]
fn the_exporter_writes_a_log_directory_that_checks_out() {
    let python = std::env::var("ADMIX_PYTHON").unwrap_or_else(|_| "python3".into());
    let runs =
        |code: &str| std::process::Command::new(&python).args(["-c", code]).output().is_ok_and(|o| o.status.success());
    if !runs("import csv") {
        eprintln!("the_exporter_..: skipped, there is no {python}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(
        path("requests.csv"),
        "request,time,placement,region,sex,age_band,user\n1,2026-01-05T00:00:01.250+08:00,3,21,m,4,99\n\
         2,2026-01-05T23:59:59+08:00,3,22,,,\n3,2026-01-05T12:00:00+08:00,3,22,f,2,97\n",
    )
    .unwrap();
    std::fs::write(
        path("candidates.csv"),
        "request,ad,deal,cpm_yuan,p_click,blocked\n1,501,guaranteed,0,0.012,0\n1,7012,open,18.405,0.009,0\n\
         2,7012,open,9.1,0.02,4\n2,7313,pmp,2.5,0.004,0\n",
    )
    .unwrap();
    std::fs::write(
        path("contracts.csv"),
        "ad,impressions,regions,penalty_yuan_per_1000,click_yuan\n501,80,\"21,22\",12,0.3\n502,8,,12,0.3\n",
    )
    .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/export_day.py");
    let day = path("day");
    let export = |requests: &str| {
        let tables = [requests, "candidates.csv", "contracts.csv"].map(path);
        std::process::Command::new(&python).arg(&script).args(tables).arg(&day).output().unwrap()
    };
    for (name, row, words) in [
        ("no_offset.csv", "1,2026-01-05T00:00:01,3,21,m,4,99", ["line 2, column `time`", "UTC offset"]),
        ("text_id.csv", "1,2026-01-05T00:00:01+08:00,3,21,m,4,u-99", ["line 2, column `user`", "hash"]),
    ] {
        std::fs::write(path(name), format!("request,time,placement,region,sex,age_band,user\n{row}\n")).unwrap();
        let output = export(name);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.iter().all(|word| said.contains(word)), "{said}");
    }
    let output = export("requests.csv");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ending = if runs("import pyarrow.parquet") { "parquet" } else { "tsv" };
    assert!(day.join(format!("track_log.{ending}")).is_file());
    if ending == "tsv" {
        eprintln!("the_exporter_..: Parquet skipped, {python} has no pyarrow");
    }
    let raw = RawDay::read(&day, CompileOptions::default()).unwrap();
    assert_eq!((raw.day.date.as_str(), raw.day.start_ms), ("2026-01-05", 1_767_542_400_000));
    let [first, second] = &raw.rows[..] else { panic!("{:?}", raw.rows) };
    assert_eq!((first.request_id, first.ts_ms, first.gender, first.age), (1, 1_767_542_401_250, 1, 4));
    assert_eq!((first.queue[1].ecpm, first.queue[1].pctr), (1840.5, 0.009));
    assert_eq!((second.region, second.age, second.queue[0].filter), (22, 0, 4));
    let contract = &raw.contracts[0];
    assert_eq!((contract.ad_id, contract.penalty, contract.click_value), (501, 1.2, 30.0));
    assert_eq!(contract.targeting.to_string(), "region:21,22");
    // An empty user and a contract without targeting are legal.
    assert_eq!(
        (first.user_id, second.user_id, raw.contracts[1].targeting.to_string()),
        (Some(99), None, String::new())
    );
    admix(&["data", "check", day.to_str().unwrap()]).expect(0, &[]);
}
