//! What the program says of itself: every command's help, and the pages of docs/.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use admix::env::FEATURE_NAMES;
use admix::evaluate::logged;
use admix::policy::baselines::NAMES;
use admix::retrain::config::Job;
use admix::settings::{Settings, ValueSettings};
use admix::synth::{ErrorSettings, WorldSettings};

use crate::harness::train;
use crate::support::admix;
use crate::values::{Scene, manifest};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The help of a command, given by its words.
fn help(command: &[String]) -> String {
    let output = admix().args(command).arg("--help").assert().success();
    String::from_utf8_lossy(&output.get_output().stdout).into_owned()
}

/// The subcommands that a help lists.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // Descriptions that go on begin further right.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_help_of_every_command_ends_with_an_example() {
    let mut commands: Vec<Vec<String>> = vec![vec![]];
    let mut seen = 0;
    while let Some(command) = commands.pop() {
        let text = help(&command);
        for name in subcommands(&text) {
            commands.push([&command[..], &[name]].concat());
        }
        if command.is_empty() {
            continue;
        }
        seen += 1;
        let example = text.rfind("\nExample").unwrap_or_else(|| panic!("admix {}: no example", command.join(" ")));
        let rest = &text[example..];
        assert!(rest.contains("admix"), "admix {}: {rest}", command.join(" "));
        // What is pasted has to run: a line that is too long is broken by the help.
        for pair in rest.lines().collect::<Vec<_>>().windows(2) {
            let [line, next] = [pair[0].trim(), pair[1].trim()];
            let begins = ["admix", "curl", "mpirun", "#", "Example"].iter().any(|word| next.starts_with(word));
            let is_command = line.contains("admix ") || line.starts_with("--");
            let is_whole = line.ends_with('\\') || next.is_empty() || begins;
            assert!(line != "\\" && (!is_command || is_whole), "admix {}: broken: {line}", command.join(" "));
        }
        for section in ["\nOptions:", "\nArguments:", "\nCommands:", "Exit code"] {
            assert!(!rest.contains(section), "admix {}: `{section}` after the example", command.join(" "));
        }
    }
    assert!(seen > 30, "{seen} commands");
}

/// The keys of a value, with those inside; what is named by a policy, an hour or a path is data.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                found.insert(key.clone());
                if !["hours", "delivered", "bids", "inputs"].contains(&key.as_str()) || !inner.is_object() {
                    keys(inner, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| keys(v, found)),
        _ => {}
    }
}

/// Checks that a page of docs/ names all these keys.
fn assert_named(page: &str, found: &BTreeSet<String>) {
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs").join(page)).unwrap();
    let missing: Vec<&String> = found.iter().filter(|key| !text.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "not in docs/{page}: {missing:?}");
}

#[test]
fn the_metrics_reference_names_every_key_that_a_run_writes() {
    let ended = train(&["checkpoint.every_s=0.05"], &[]);
    let mut found = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for line in ended.metrics() {
        kinds.insert(line["kind"].as_str().unwrap().to_owned());
        keys(&line, &mut found);
    }
    assert!(["start", "run", "learner", "evaluation"].iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
    found.extend(kinds);
    let report: Value = serde_json::from_slice(&std::fs::read(ended.dir().join("report.json")).unwrap()).unwrap();
    keys(&report, &mut found);
    keys(&ended.manifest(), &mut found);
    assert!(found.len() > 80, "{found:?}");
    assert_named("metrics.md", &found);
}

/// Only a training of policies was compared with the page, and `values eval --json` with none.
#[test]
fn the_pages_name_every_key_of_a_value_training_and_its_evaluation() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.epochs=1", "values.weights=propensity"]);
    let mut found = BTreeSet::new();
    for line in std::fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines() {
        keys(&serde_json::from_str(line).unwrap(), &mut found);
    }
    let manifest = manifest(&run);
    keys(&manifest, &mut found);
    let some = ["samples_per_s", "outcome", "node", "charged_at_zero"];
    assert!(some.iter().all(|key| found.contains(*key)), "{found:?}");
    assert_named("metrics.md", &found);

    let mut eval = admix();
    eval.args(["values", "eval", "--json", "--values"]).arg(&run).arg("--log").arg(&scene.days[3]);
    let report: Value = serde_json::from_slice(&eval.assert().success().get_output().stdout).unwrap();
    let mut found = BTreeSet::new();
    keys(&report["click"], &mut found);
    keys(&report["charge"], &mut found);
    found.extend(report.as_object().unwrap().keys().cloned());
    assert!(found.contains("deviance_isotonic") && found.contains("deciles"), "{found:?}");
    assert_named("values.md", &found);
}

/// Every key of the configurations of trainings, of the nightly job and of worlds, as dotted paths.
fn known_keys() -> BTreeSet<String> {
    fn walk(table: &toml::Table, prefix: &str, found: &mut BTreeSet<String>) {
        for (key, value) in table {
            let path = format!("{prefix}{key}");
            if let toml::Value::Table(inner) = value {
                walk(inner, &format!("{path}."), found);
            }
            found.insert(path);
        }
    }
    let job: Job = toml::from_str("jobs = \"\"\nconfig = \"\"\n[days]\ndir = \"\"\n").unwrap();
    let world = WorldSettings { errors: Some(ErrorSettings::default()), ..WorldSettings::default() };
    let mut found = BTreeSet::new();
    for table in [
        toml::Table::try_from(Settings::default()),
        toml::Table::try_from(ValueSettings::default()),
        toml::Table::try_from(job),
        toml::Table::try_from(world),
    ] {
        walk(&table.unwrap(), "", &mut found);
    }
    found
}

/// `policy.score_mode` was named, which is `score_mode`.
#[test]
fn the_pages_name_no_key_that_a_section_does_not_have() {
    let known = known_keys();
    let sections: BTreeSet<&str> = known.iter().filter_map(|key| key.split_once('.')).map(|(name, _)| name).collect();
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for span in text.split('`').skip(1).step_by(2) {
            let words = span.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
            for word in words.map(|word| word.trim_matches('.')) {
                let Some((section, _)) = word.split_once('.').filter(|(section, _)| sections.contains(section)) else {
                    continue;
                };
                // Files may be named like sections.
                if ![".md", ".toml"].iter().any(|ending| word.ends_with(ending)) {
                    assert!(known.contains(word), "{}: `{section}` has no key `{word}`", path.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 50, "{seen}");
}

/// Relative links and paths of the pages lead somewhere.
#[test]
fn the_pages_link_to_what_is_there() {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    pages.extend(std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap().map(|e| e.unwrap().path()));
    let mut links = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.contains("://") {
                assert!(page.parent().unwrap().join(target).exists(), "{}: {target}", page.display());
                links += 1;
            }
        }
        for word in text.split(|c: char| c.is_whitespace() || "`(),;".contains(c)) {
            let word = word.split('#').next().unwrap_or(word).trim_end_matches(['.', ':']);
            let named = ["docs/", "configs/", "scripts/"].iter().any(|folder| word.starts_with(folder));
            if named && !word.contains(['*', '<', '{']) {
                assert!(Path::new(ROOT).join(word).exists(), "{}: {word}", page.display());
            }
        }
    }
    assert!(links > 5, "{links}");
}

/// The names in the first cells of a page's table rows, from a line that begins with `start` to the next heading.
fn first_cells(page: &str, start: &str) -> BTreeSet<String> {
    let lines = page.lines().skip_while(|line| !line.starts_with(start)).skip(1);
    let rows = lines.take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split('|').next());
    cells.flat_map(|cell| cell.split(',')).map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn the_concepts_page_explains_every_feature_and_every_baseline() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/concepts.md")).unwrap();
    let names = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&name| name.to_owned()).collect() };
    let header = names(&["feature"]);
    assert_eq!(first_cells(&page, "The features are"), &names(&FEATURE_NAMES) | &header);
    assert_eq!(first_cells(&page, "## Baselines"), &names(&NAMES) | &names(&["baseline", logged::NAME]));
}
