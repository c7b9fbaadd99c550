//! The layers: `src/lib.rs` says in a table which folder may import which, and the `use` lines have to agree.

use std::collections::BTreeMap;
use std::path::Path;

/// Processes of a run; they talk through shared memory and do not import each other.
const ROLES: [&str; 6] = ["actor", "learner", "checkpoint", "evaluator", "reader", "rank"];

/// Row and place in its row of each folder in the table of `lib.rs`.
fn table(lib: &str) -> BTreeMap<String, (usize, usize)> {
    let rows = lib.lines().filter_map(|line| line.strip_prefix("//! | [")).filter_map(|line| line.split('|').next());
    let mut places = BTreeMap::new();
    for (row, cell) in rows.enumerate() {
        for (place, name) in cell.split('`').skip(1).step_by(2).enumerate() {
            places.insert(name.to_owned(), (row, place));
        }
    }
    // The first name's bracket went with the prefix: cells begin with the backtick.
    places
}

/// Folders of the crate that a source names, in code.
fn imported(source: &str) -> Vec<String> {
    let code: String = source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut names = vec![];
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        match rest.strip_prefix('{') {
            None => names.push(name(rest)),
            // Names at the first level of `use crate::{a::b, c::{d, e}}`.
            Some(group) => {
                let mut depth = 0;
                let mut begins = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begins = true,
                        c if begins && depth == 0 && !c.is_whitespace() => {
                            names.push(name(&group[i..]));
                            begins = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

/// Imports that the table does not allow, of sources by their path below `src`.
fn violations(table: &BTreeMap<String, (usize, usize)>, sources: &[(String, String)]) -> Vec<String> {
    let mut found = vec![];
    for (path, source) in sources {
        let Some((folder, _)) = path.split_once('/') else { continue };
        let Some(from) = table.get(folder) else {
            found.push(format!("{path}: `{folder}` is in no row of the table"));
            continue;
        };
        for name in imported(source) {
            let Some(to) = table.get(&name) else { continue };
            let roles = ROLES.contains(&folder) && ROLES.contains(&name.as_str());
            let allowed = to.0 > from.0 || (to.0 == from.0 && to.1 < from.1 && !roles);
            if name != folder && !allowed {
                found.push(format!("{path} imports `{name}`"));
            }
        }
    }
    found
}

/// The sources of the crate by their path below `src`.
pub fn sources() -> Vec<(String, String)> {
    let mut found = vec![];
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    found
}

fn collect(folder: &Path, below: &str, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{below}{}", path.file_name().unwrap().to_string_lossy());
        if path.is_dir() {
            collect(&path, &format!("{name}/"), found);
        } else if name.ends_with(".rs") {
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn folders_import_only_what_the_table_allows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let table = table(&std::fs::read_to_string(root.join("lib.rs")).unwrap());
    let all = sources();
    assert!(all.len() > 100 && table.len() > 15, "{} files, {table:?}", all.len());
    assert_eq!(violations(&table, &all), Vec::<String>::new());
}

#[test]
fn a_planted_violation_is_found() {
    let roles = "[`actor`], [`learner`]; [`reader`], [`rank`]";
    let table = table(&format!("//! | [`top`] | x |\n//! | {roles} | x |\n//! | [`left`], [`right`] | x |\n"));
    assert_eq!((table["left"], table["rank"]), ((2, 0), (1, 3)));
    let file = |path: &str, source: &str| (path.to_owned(), source.to_owned());
    let good = [
        file("top/a.rs", "use crate::{left::X, learner::{self, Y}};"),
        file("right/a.rs", "use crate::left::X; // crate::top"),
        file("left/a.rs", "use crate::left::Y;"),
    ];
    assert!(violations(&table, &good).is_empty());
    for (path, source) in [
        ("left/a.rs", "use crate::right::X;"),
        ("left/a.rs", "fn f() { crate::top::g() }"),
        ("left/a.rs", "use crate::{\n    left::X,\n    top::{Y, Z},\n};"),
        ("learner/a.rs", "use crate::actor::X;"),
        ("rank/a.rs", "use crate::learner::X;"),
        ("rank/a.rs", "use crate::reader::X;"),
        ("unknown/a.rs", ""),
    ] {
        assert_eq!(violations(&table, &[file(path, source)]).len(), 1, "{path}: {source}");
    }
}
