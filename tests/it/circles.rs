//! Checks that files do not depend on each other in circles, directly or through others.
//!
//! A folder's `mod.rs` is a file like the others. What it only re-exports is no need of its own; a name that is taken from there
//! is followed to the file that defines it; a method call leads to the file with the method, if that is not its type's file and no
//! other file defines a method of that name. Test modules do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::sources;

/// A name that a file imports: its path, and whether others may take it from there.
#[derive(Debug)]
struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// A file of the crate as a module.
#[derive(Debug, Default)]
struct Module {
    file: String,
    imports: Vec<Import>,
    /// Code without imports, comments, texts and tests.
    body: String,
}

type Modules = BTreeMap<Vec<String>, Module>;
/// The modules that each module needs.
type Needs = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// Removes comments and the content of texts and characters.
fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let starts = |i: usize, text: &str| text.chars().enumerate().all(|(k, c)| chars.get(i + k) == Some(&c));
    let (mut out, mut i) = (String::new(), 0);
    while i < chars.len() {
        let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
        let begins_raw = chars[i] == 'r' && chars.get(i + 1 + hashes) == Some(&'"');
        if starts(i, "//") {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if starts(i, "/*") {
            while i < chars.len() && !starts(i, "*/") {
                i += 1;
            }
            i += 2;
        } else if begins_raw && !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            let end = format!("\"{}", "#".repeat(hashes));
            i += 2 + hashes;
            while i < chars.len() && !starts(i, &end) {
                i += 1;
            }
            i += end.len();
        } else if chars[i] == '"' {
            i += 1;
            while i < chars.len() && chars[i] != '"' {
                i += if chars[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if starts(i, "'\\") || (chars[i] == '\'' && chars.get(i + 2) == Some(&'\'')) {
            // A character; a lifetime has no second quote.
            i += 3;
            while i < chars.len() && chars[i - 1] != '\'' {
                i += 1;
            }
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}

/// Removes the items that only tests compile; returns the names of modules among them that are files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut out, mut files, mut rest) = (String::new(), vec![], code);
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        out.push_str(before);
        let mut depth = 0;
        let end = after.char_indices().find_map(|(i, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0 && matches!(c, ';' | '}')).then_some(i + 1)
        });
        let (item, left) = after.split_at(end.unwrap_or(after.len()));
        files.extend(item.trim().strip_prefix("mod ").and_then(|name| name.strip_suffix(';')).map(str::to_owned));
        rest = left;
    }
    (out + rest, files)
}

/// Adds the names of a use tree.
fn expand(prefix: &[String], tree: &str, is_public: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{').filter(|(head, _)| !head.contains(',')) {
        let path: Vec<String> = segments(head).map(str::to_owned).collect();
        let prefix = [prefix, &path].concat();
        let (mut depth, mut begin) = (0, 0);
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        for (i, c) in group.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                expand(&prefix, &group[begin..i], is_public, found);
                begin = i + 1;
            }
        }
        expand(&prefix, &group[begin..], is_public, found);
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
        let mut path = [prefix, &segments(path).map(str::to_owned).collect::<Vec<_>>()].concat();
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
        found.push(Import { name, path, is_public });
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split("::").map(str::trim).filter(|segment| !segment.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Takes the imports out of code.
fn imports(code: &str) -> (Vec<Import>, String) {
    let (mut found, mut body, mut rest) = (vec![], String::new(), code);
    while let Some(at) = rest.find("use ") {
        let (before, after) = rest.split_at(at);
        let line = before.rsplit(['\n', ';', '{', '}']).next().unwrap_or("").trim();
        let begins = line.is_empty() || (line.starts_with("pub") && !line.contains(' '));
        body.push_str(before);
        match after.split_once(';').filter(|_| begins) {
            Some((tree, left)) => {
                expand(&[], &tree["use ".len()..], line.starts_with("pub"), &mut found);
                rest = left;
            }
            None => {
                body.push_str("use ");
                rest = &after["use ".len()..];
            }
        }
    }
    (found, body + rest)
}

/// Finds the inherent impls in code: the name of each type, and those of its methods.
fn impls(body: &str) -> Vec<(String, Vec<String>)> {
    let mut found = vec![];
    for (at, _) in body.match_indices("impl") {
        let begins = body[..at].chars().next_back().is_none_or(|c| !is_word(c));
        let Some((head, inner)) = body[at + "impl".len()..].split_once('{').filter(|_| begins) else { continue };
        let head = after_generics(head.trim());
        let is_item = body[..at].trim_end().ends_with(['}', ';', ']']) || body[..at].trim().is_empty();
        if !is_item || head.contains([';', '(', '=']) || head.split_whitespace().any(|word| word == "for") {
            continue;
        }
        let name = head.split(['<', ' ', '\n']).next().unwrap_or_default();
        let mut depth = 1;
        let end = inner.char_indices().find_map(|(i, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0).then_some(i)
        });
        let words: Vec<&str> = inner[..end.unwrap_or(inner.len())].split(|c: char| !is_word(c)).collect();
        let methods = words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].to_owned()).collect();
        found.push((name.to_owned(), methods));
    }
    found
}

/// Removes the generics that a text begins with.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        (depth == 0).then_some(if c == '>' { i + 1 } else { i })
    });
    text[end.unwrap_or(0)..].trim_start()
}

/// Paths of at least two segments in code, where they begin.
fn paths(body: &str) -> Vec<Vec<String>> {
    let words = body.split(|c: char| !is_word(c) && c != ':');
    words
        .filter(|word| word.contains("::") && !word.starts_with(':'))
        .map(|word| segments(word).map(str::to_owned).collect())
        .collect()
}

/// Modules of sources by their path below `src`; the crate's root is none.
fn modules(sources: &[(String, String)]) -> Modules {
    let mut found = Modules::new();
    let mut tests = BTreeSet::new();
    for (file, source) in sources {
        let mut path: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        path.pop_if(|last| last == "mod");
        if ["lib", "main"].contains(&path[0].as_str()) {
            continue;
        }
        let (code, files) = without_tests(&code(source));
        tests.extend(files.into_iter().map(|name| [&path[..], &[name]].concat()));
        let (imports, body) = imports(&code);
        found.insert(path, Module { file: file.clone(), imports, body });
    }
    found.retain(|path, _| !tests.contains(path));
    found
}

/// The path from the crate's root of what `path` means in a module; `None` for other crates.
fn absolute(all: &Modules, module: &[String], path: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([module.get(..module.len().checked_sub(supers)?)?, &path[supers..]].concat()),
        first => all.contains_key(&[module, &[first.to_owned()]].concat()).then(|| [module, path].concat()),
    }
}

/// The module that defines what a path from the root names; follows what modules import and re-export.
fn definer(all: &Modules, path: &[String], hops: usize) -> Option<Vec<String>> {
    let split = (1..=path.len()).rev().find(|&n| all.contains_key(&path[..n]))?;
    let (at, rest) = path.split_at(split);
    let Some(name) = rest.first().filter(|_| hops > 0) else { return Some(at.to_vec()) };
    let module = &all[at];
    let through = |import: &Import, rest: &[String]| {
        let target = [&absolute(all, at, &import.path)?[..], rest].concat();
        definer(all, &target, hops - 1)
    };
    if let Some(import) = module.imports.iter().find(|import| import.name == *name)
        && let Some(found) = through(import, &rest[1..])
    {
        return Some(found);
    }
    let globs = module.imports.iter().filter(|import| import.name == "*");
    let defines = |path: &Vec<String>| defines(&all[path], name);
    let behind = globs.filter_map(|glob| definer(all, &absolute(all, at, &glob.path[..glob.path.len() - 1])?, 0));
    Some(behind.into_iter().find(defines).unwrap_or_else(|| at.to_vec()))
}

fn defines(module: &Module, name: &str) -> bool {
    let kinds = ["struct", "enum", "fn", "trait", "type", "const", "static", "union"];
    let mut words = module.body.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
    let mut last = "";
    words.any(|word| {
        word == name && kinds.contains(&std::mem::replace(&mut last, word)) || {
            last = word;
            false
        }
    })
}

/// The modules that a module needs.
fn needs(all: &Modules, path: &[String], module: &Module) -> BTreeSet<Vec<String>> {
    let words: BTreeSet<&str> = module.body.split(|c: char| !is_word(c)).collect();
    let mut named: Vec<Vec<String>> = vec![];
    for import in &module.imports {
        if !import.is_public || words.contains(import.name.as_str()) {
            named.extend(absolute(all, path, &import.path));
        }
    }
    for written in paths(&module.body) {
        let imported = module.imports.iter().find(|import| import.name == written[0]);
        named.extend(match imported {
            Some(import) => absolute(all, path, &import.path).map(|begin| [&begin[..], &written[1..]].concat()),
            None => absolute(all, path, &written),
        });
    }
    let mut found: BTreeSet<Vec<String>> = named.iter().filter_map(|path| definer(all, path, 8)).collect();
    found.remove(path);
    found
}

/// Adds the files whose methods a file calls, where a method is not in its type's file. Names that several files define are skipped:
/// without types it is unknown whose they are.
fn add_methods(all: &Modules, needs: &mut Needs) {
    let named = needs.clone();
    let mut defined = BTreeMap::<&str, usize>::new();
    for module in all.values() {
        let words: Vec<&str> = module.body.split(|c: char| !is_word(c)).collect();
        let names: BTreeSet<&str> = words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1]).collect();
        names.into_iter().for_each(|name| *defined.entry(name).or_default() += 1);
    }
    for (path, module) in all {
        for (name, methods) in impls(&module.body) {
            let import = module.imports.iter().find(|import| import.name == name);
            let target = import.and_then(|import| absolute(all, path, &import.path));
            let Some(definer) = target.and_then(|target| definer(all, &target, 8)) else { continue };
            for (caller, needed) in named.iter().filter(|(caller, _)| *caller != path) {
                let calls = |method: &String| {
                    let body = &all[caller].body;
                    defined[method.as_str()] == 1
                        && (body.contains(&format!(".{method}(")) || body.contains(&format!("::{method}(")))
                };
                if (*caller == definer || needed.contains(&definer)) && methods.iter().any(calls) {
                    needs.get_mut(caller).expect("a module").insert(path.clone());
                }
            }
        }
    }
}

/// Returns what each module needs.
fn all_needs(all: &Modules) -> Needs {
    let mut found = all.iter().map(|(path, module)| (path.clone(), needs(all, path, module))).collect();
    add_methods(all, &mut found);
    found
}

/// Groups of files that need each other.
fn circles(sources: &[(String, String)]) -> Vec<Vec<String>> {
    let all = modules(sources);
    let needs = all_needs(&all);
    let reach = |from: &Vec<String>| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Vec<String>> = needs[from].iter().collect();
        while let Some(path) = next.pop() {
            if seen.insert(path) {
                next.extend(&needs[path]);
            }
        }
        seen
    };
    let reach: BTreeMap<_, _> = all.keys().map(|path| (path, reach(path))).collect();
    let mutual = |path: &Vec<String>| -> Vec<String> {
        let group = reach[path].iter().filter(|other| reach[**other].contains(path));
        group.map(|other| all[*other].file.clone()).collect()
    };
    let found: BTreeSet<Vec<String>> = all.keys().map(mutual).filter(|group| !group.is_empty()).collect();
    found.into_iter().collect()
}

#[test]
fn there_is_no_circle_between_files() {
    let found = circles(&sources());
    assert!(found.is_empty(), "move what closes a circle to a file of its own: {found:#?}");
    // It has looked at something.
    let all = modules(&sources());
    let needs: usize = all_needs(&all).values().map(BTreeSet::len).sum();
    assert!(all.len() > 400 && needs > 2000, "{} files, {needs} needs", all.len());
}

#[test]
fn a_planted_circle_is_found() {
    let file = |path: &str, source: &str| (path.to_owned(), source.to_owned());
    let good = [
        file("lib.rs", "pub mod a; pub mod b;"),
        file("a/mod.rs", "mod x; mod y; pub use x::X; pub use y::*;"),
        file("a/x.rs", "// use super::y::Y;\npub struct X; #[cfg(test)] mod tests { use super::super::Y; fn f() {} }"),
        file(
            "a/y.rs",
            "use super::X;\npub struct Y(X); const S: &str = \"crate::b::B\"; fn f<'a>(_: &'a str) -> char { '\"' }",
        ),
        file("b.rs", "use crate::a::{self, Y};\npub struct B(Y); fn f() { a::X; }"),
    ];
    assert!(circles(&good).is_empty(), "{:?}", circles(&good));
    let planted = [
        // By a name that the folder re-exports, one by one or all.
        ("a/x.rs", "use crate::a::Y;\npub struct X;", vec!["a/x.rs", "a/y.rs"]),
        ("a/x.rs", "use super::super::b::{B as Other};\npub struct X;", vec!["a/x.rs", "a/y.rs", "b.rs"]),
        // By a path in the code, from the root, from an import, or to a module below.
        ("a/x.rs", "pub struct X; fn f() { crate::b::B; }", vec!["a/x.rs", "a/y.rs", "b.rs"]),
        ("a/x.rs", "use crate::b;\npub struct X; fn f() { b::B; }", vec!["a/x.rs", "a/y.rs", "b.rs"]),
        ("a/mod.rs", "mod x; mod y; pub use x::X; pub use y::*; pub struct Z; fn f() { x::g(); }", vec![]),
        // By a method that another file has than its type's.
        (
            "b.rs",
            "use crate::a::X;\npub struct B; impl X { pub fn b(&self) {} } fn g() { crate::a::Y; } fn f(y: X) {}",
            vec![],
        ),
        ("a/x.rs", "pub struct X; fn f(x: &X) { x.b(); }", vec!["a/x.rs", "a/y.rs", "b.rs"]),
        // By what the folder itself defines from what it re-exports.
        ("a/x.rs", "use super::Z;\npub struct X;", vec!["a/mod.rs", "a/x.rs"]),
    ];
    let mut sources = good.to_vec();
    for (path, source, expected) in planted {
        let place = sources.iter().position(|(name, _)| name == path).unwrap();
        sources[place].1 = source.to_owned();
        if path == "a/mod.rs" {
            sources[2].1 = good[2].1.clone();
        }
        let found = circles(&sources);
        assert_eq!(found.concat(), expected, "{path}: {source}");
    }
}
