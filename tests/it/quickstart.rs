//! The README's promise: the shipped configuration, on the shipped data, ends above the baselines.

use serde_json::Value;

use crate::support::admix;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/quickstart.toml");

#[test]
fn quickstart_ends_above_the_baselines_on_days_it_never_saw() {
    let dir = tempfile::tempdir().unwrap();
    let output = admix()
        .args(["train", "--json", "--deterministic", "--config", CONFIG, "--run-dir"])
        .arg(dir.path().join("run"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut days: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let verdict = days.pop().unwrap();
    assert_eq!(verdict["verdict"]["decision"], "better", "{verdict}");
    assert_eq!(days.len(), 4);
    let share = |name: &str| {
        let of_day = |day: &Value| {
            let policies = day["policies"].as_array().unwrap();
            policies.iter().find(|p| p["name"] == name).unwrap()["share"].as_f64().unwrap()
        };
        days.iter().map(of_day).sum::<f64>() / days.len() as f64
    };
    let names = days[0]["policies"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap());
    let others: Vec<&str> =
        names.filter(|n| *n == "trained:untrained" || !n.starts_with("trained") && *n != "oracle").collect();
    assert!(others.len() > 10, "{others:?}");
    for other in others {
        assert!(share("trained") > share(other), "trained {} {other} {}", share("trained"), share(other));
    }
    assert!(share("oracle") > 0.999 && share("oracle") >= share("trained"));
}

#[test]
fn default_configuration_file_names_every_key_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/default.toml");
    let days = ["data.train=[\"a\"]".to_owned(), "data.validation=[\"b\"]".to_owned()];
    let mut loaded: admix::settings::Settings = admix::settings::load(std::path::Path::new(path), &days).unwrap();
    loaded.data = admix::settings::Data::default();
    assert_eq!(loaded, admix::settings::Settings::default());
    let written = std::fs::read_to_string(path).unwrap();
    let all = admix::settings::Settings::default().to_toml();
    for key in all.lines().filter_map(|l| l.split_once(" = ").map(|(k, _)| k)) {
        assert!(written.lines().any(|l| l.starts_with(&format!("{key} ="))), "{key} is not in configs/default.toml");
    }
}
