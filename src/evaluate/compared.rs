//! Rows of learned policies in a comparison: the chosen policy and its references.
//!
//! Most of a share comes from planner and controller without learning. Each learned policy is therefore replayed together with
//! `NAME:untrained` (its own planner and controller under a zero network, without the learned volume), and a run's policy also
//! with `NAME:start` and `NAME:last`, so that the table shows what learning added and whether it lasted.

use std::path::{Path, PathBuf};

use crate::policy::file::PolicyFile;
use crate::policy::stored::Stored;

use super::report::Kind;

/// Suffixes of the reference rows of a chosen policy.
pub const START: &str = ":start";
pub const UNTRAINED: &str = ":untrained";
pub const LAST: &str = ":last";

/// A learned policy that takes part in a comparison.
#[derive(Debug, Clone)]
pub struct ComparedPolicy {
    pub name: String,
    pub kind: Kind,
    pub policy: Stored,
    /// Whether the chosen policy has the weights that its run started from.
    pub is_start: bool,
}

impl ComparedPolicy {
    fn new(name: String, kind: Kind, file: PolicyFile) -> Self {
        Self { name, kind, policy: Stored::Learned(file), is_start: false }
    }

    /// Names one policy, whatever its file says.
    pub fn stored(name: &str, kind: Kind, policy: Stored) -> Self {
        Self { name: name.to_owned(), kind, policy, is_start: false }
    }

    /// Returns a policy and its untrained counterpart.
    pub fn of_file(name: &str, file: PolicyFile) -> Vec<Self> {
        let untrained = file.untrained();
        vec![
            Self::new(name.to_owned(), Kind::Trained, file),
            Self::new(format!("{name}{UNTRAINED}"), Kind::Untrained, untrained),
        ]
    }

    /// Reads the policies of a run directory: chosen, start, untrained and last. A run of an older program has no start,
    /// a killed one no last.
    ///
    /// # Errors
    /// If a policy cannot be read, or there is no chosen one.
    pub fn of_run(name: &str, dir: &Path) -> anyhow::Result<Vec<Self>> {
        let chosen = PolicyFile::read(dir)?;
        let mut entries = Self::of_file(name, chosen.clone());
        let policies = dir.join("policy");
        let optional = |file: &str| -> anyhow::Result<Option<PolicyFile>> {
            let path = policies.join(file);
            if path.is_file() { PolicyFile::read(&path).map(Some) } else { Ok(None) }
        };
        if let Some(start) = optional("start.safetensors")? {
            entries[0].is_start = chosen.has_weights_of(&start);
            entries.insert(1, Self::new(format!("{name}{START}"), Kind::Start, start));
        }
        if let Some(last) = optional("last.safetensors")? {
            entries.push(Self::new(format!("{name}{LAST}"), Kind::Last, last));
        }
        Ok(entries)
    }

    /// Reads the policies of `path`, a run directory or a policy file.
    ///
    /// # Errors
    /// If a policy cannot be read.
    pub fn read(name: &str, path: &Path) -> anyhow::Result<Vec<Self>> {
        if path.join("policy").is_dir() || !PolicyFile::locate(path).is_file() {
            return Self::of_run(name, path);
        }
        Ok(match Stored::read(path)? {
            Stored::Learned(file) => Self::of_file(name, file),
            baseline => vec![Self::stored(name, Kind::Baseline, baseline)],
        })
    }
}

/// Names policies after their run directories or files: by the last component of the path, and if that is ambiguous, by as
/// many more as make them unique.
pub fn names_of(paths: &[PathBuf]) -> Vec<String> {
    let parts: Vec<Vec<String>> = paths
        .iter()
        .map(|path| {
            let full = path.canonicalize().unwrap_or_else(|_| path.clone());
            let named = if path.is_dir() { full } else { full.with_extension("") };
            named.iter().map(|part| part.to_string_lossy().into_owned()).collect()
        })
        .collect();
    let name = |parts: &[String], depth: usize| parts[parts.len().saturating_sub(depth)..].join("/");
    let deepest = parts.iter().map(Vec::len).max().unwrap_or(1);
    parts
        .iter()
        .map(|own| {
            let shared = |depth: usize| parts.iter().filter(|p| name(p, depth) == name(own, depth)).count() > 1;
            let depth = (1..=deepest).find(|&depth| !shared(depth)).unwrap_or(1);
            name(own, depth)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_the_same_name_are_told_apart_by_their_folders() {
        let paths = ["/runs/monday/policy/best.safetensors", "/runs/tuesday/policy/best.safetensors", "/x/other.st"];
        let names = names_of(&paths.map(PathBuf::from));
        assert_eq!(names, ["monday/policy/best", "tuesday/policy/best", "other"]);
    }
}
