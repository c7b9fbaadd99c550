//! What the program says of itself: every command's help, and the pages of docs/.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use admix::env::FEATURE_NAMES;
use admix::evaluate::logged;
use admix::policy::baselines::NAMES;

use crate::harness::train;
use crate::support::admix;

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

/// The keys of a value, with those inside; what is named by a policy or an hour is data.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                found.insert(key.clone());
                if !["hours", "delivered", "bids"].contains(&key.as_str()) || !inner.is_object() {
                    keys(inner, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| keys(v, found)),
        _ => {}
    }
}

#[test]
fn the_metrics_reference_names_every_key_that_a_run_writes() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/metrics.md")).unwrap();
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
    let missing: Vec<&String> = found.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
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
