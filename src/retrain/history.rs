//! The history of promotions with their reasons, and the served file.
//!
//! The jobs' folder holds `history.jsonl`, one entry per line; `promoted/NNNN.safetensors`, every promoted policy, by the number
//! of its entry; and `current.safetensors`, the served policy. The history is authoritative: an entry is appended after its policy
//! is in `promoted/` and before `current` is replaced, and opening the history repairs `current` if a crash came between.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::policy::stored::Stored;

use super::judge::{Comparison, ValueComparison};

/// Outcome of a night or of a manual promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Promoted,
    Kept,
    /// The newest day cannot be trusted; the served policy is kept.
    DataSuspect,
    Failed,
    Interrupted,
    /// The night was killed before its end; recorded by the next start.
    Killed,
    /// Promoted with `admix promote --to`.
    PromotedByHand,
    /// Rolled back with `admix promote --rollback`.
    RolledBack,
}

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub n: u64,
    /// Time of the entry, UTC.
    pub time: String,
    /// Date of the newest day, for a night.
    pub night: Option<String>,
    /// Length of the windows, for a refresh during the day; `night` is then the newest window's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    pub outcome: Outcome,
    /// Number of the promoted policy that is served from this entry on.
    pub serves: Option<u64>,
    /// `learned`, or a baseline's name.
    pub policy: Option<String>,
    pub reason: String,
    #[serde(default)]
    pub train: Vec<String>,
    #[serde(default)]
    pub validation: Vec<String>,
    #[serde(default)]
    pub heldout: Vec<String>,
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// Comparison of the night's value model with the values served before, for a night that trained one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<ValueComparison>,
    /// Results of the check for days that were left out, and drift.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl HistoryEntry {
    /// Creates an entry without changes; the history numbers it.
    pub fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Self {
            n: 0,
            time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            night: None,
            window: None,
            outcome,
            serves: None,
            policy: None,
            reason: reason.into(),
            train: vec![],
            validation: vec![],
            heldout: vec![],
            comparisons: vec![],
            values: None,
            notes: vec![],
        }
    }
}

/// What to do about an archived policy that cannot be served.
const REMEDY: &str = "serve another one with `admix promote --to N` or --rollback";

/// The jobs' folder, locked.
#[derive(Debug)]
pub struct History {
    root: PathBuf,
    entries: Vec<HistoryEntry>,
    /// Why the served file is not what the last entry says.
    behind: Option<anyhow::Error>,
    _lock: Flock<File>,
}

impl History {
    /// Opens the folder for one job at a time; makes it if it does not exist.
    ///
    /// # Errors
    /// A folder that another job uses or that cannot be written; a history that cannot be read.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        let made = || -> std::io::Result<File> {
            std::fs::create_dir_all(root.join("promoted"))?;
            std::fs::create_dir_all(root.join("nights"))?;
            File::create(root.join("lock"))
        };
        let file = made().with_context(|| format!("cannot use {} as the jobs' folder", root.display()))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => {
                bail!("{} is in use by a running `admix retrain` or `admix promote`; wait for it", root.display())
            }
            Err((_, e)) => return Err(e).with_context(|| format!("cannot lock {}", root.display())),
        };
        let root = root.canonicalize().with_context(|| format!("cannot use {}", root.display()))?;
        let entries = read(&root)?;
        let history = Self { root, entries, behind: None, _lock: lock };
        if let Err(e) = history.settle() {
            tracing::warn!("{e:#}; {} stays as it is", history.current().display());
        }
        Ok(history)
    }

    /// Returns the jobs' folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all entries, oldest first.
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    /// Returns the number of the served policy; `None` before the first promotion.
    pub fn serves(&self) -> Option<u64> {
        self.entries.last()?.serves
    }

    /// Returns the path of a promoted policy.
    pub fn archived(&self, n: u64) -> PathBuf {
        self.root.join("promoted").join(format!("{n:04}.safetensors"))
    }

    /// Returns the path of the served policy.
    pub fn current(&self) -> PathBuf {
        self.root.join("current.safetensors")
    }

    /// Reads the served policy; `None` before the first promotion.
    ///
    /// # Errors
    /// A policy that this program cannot serve.
    pub fn incumbent(&self) -> anyhow::Result<Option<Stored>> {
        self.serves().map(|n| Stored::read(&self.archived(n))).transpose()
    }

    /// Returns the number of the policy that a rollback serves: the one before the present one. A policy that was rolled back
    /// no longer counts, so repeated rollbacks go further back.
    pub fn previous(&self) -> Option<u64> {
        let mut served: Vec<u64> = Vec::new();
        for entry in &self.entries {
            let Some(n) = entry.serves.filter(|n| served.last() != Some(n)) else { continue };
            let earlier = served.iter().rposition(|&m| m == n).filter(|_| entry.outcome == Outcome::RolledBack);
            match earlier {
                Some(at) => served.truncate(at + 1),
                None => served.push(n),
            }
        }
        served.iter().rev().nth(1).copied()
    }

    /// Returns the number of the policy with these bytes if it was replaced by hand and not served by hand since.
    pub fn withdrawn(&self, bytes: &[u8]) -> Option<u64> {
        let mut withdrawn: Vec<u64> = Vec::new();
        let mut before = None;
        for entry in &self.entries {
            if matches!(entry.outcome, Outcome::RolledBack | Outcome::PromotedByHand) && entry.serves != before {
                withdrawn.extend(before);
                withdrawn.retain(|&n| Some(n) != entry.serves);
            }
            before = entry.serves;
        }
        withdrawn.into_iter().find(|&n| std::fs::read(self.archived(n)).is_ok_and(|archived| archived == bytes))
    }

    /// Promotes a policy: archives it under the entry's number, appends the entry, replaces the served file.
    ///
    /// # Errors
    /// An archive or an entry that cannot be written; the served policy stays.
    pub fn promote(&mut self, mut entry: HistoryEntry, bytes: &[u8]) -> anyhow::Result<HistoryEntry> {
        let n = self.next();
        let path = self.archived(n);
        files::replace_synced(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        entry.serves = Some(n);
        self.note(entry)
    }

    /// Serves an archived policy again.
    ///
    /// # Errors
    /// A policy that is not in the archive or that this program cannot serve.
    pub fn promote_again(&mut self, n: u64, outcome: Outcome) -> anyhow::Result<HistoryEntry> {
        let path = self.archived(n);
        if !path.is_file() {
            let there: Vec<String> = self.archive()?.iter().map(u64::to_string).collect();
            let there = match &there[..] {
                [] => "none was promoted yet".to_owned(),
                some => format!("there are {}", some.join(", ")),
            };
            bail!("no promoted policy {n} in {}; {there}", self.root.display());
        }
        let stored = Stored::read(&path)?;
        let mut entry = HistoryEntry::new(outcome, format!("policy {n}, by hand"));
        entry.policy = Some(stored.title().to_owned());
        entry.serves = Some(n);
        self.note(entry)
    }

    /// Appends an entry; an entry without a policy leaves the served one as it is. The entry stands even if the served file cannot be replaced:
    /// [`settled`](Self::settled) tells.
    ///
    /// # Errors
    /// An entry that cannot be written; nothing has changed then.
    pub fn note(&mut self, mut entry: HistoryEntry) -> anyhow::Result<HistoryEntry> {
        entry.n = self.next();
        entry.serves = entry.serves.or(self.serves());
        let path = self.root.join("history.jsonl");
        let append = || -> anyhow::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            file.write_all(&line)?;
            Ok(file.sync_all()?)
        };
        append().with_context(|| format!("cannot write {}", path.display()))?;
        self.entries.push(entry.clone());
        self.behind = self.settle().err();
        Ok(entry)
    }

    /// Checks that what serves is what the last entry says.
    ///
    /// # Errors
    /// Why it is not.
    pub fn settled(&mut self) -> anyhow::Result<()> {
        let Some(e) = self.behind.take() else { return Ok(()) };
        Err(e.context(format!(
            "the history has the new entry, but {} is still what it was; it follows with the next night, or with the next `admix promote --to N`",
            self.current().display()
        )))
    }

    /// Removes the oldest promoted policies beyond `keep`, but never the served one and the one before it.
    ///
    /// # Errors
    /// A folder that cannot be read or written.
    pub fn prune(&self, keep: usize) -> anyhow::Result<()> {
        let mut all = self.archive()?;
        all.retain(|n| Some(*n) != self.serves() && Some(*n) != self.previous());
        for n in all.iter().rev().skip(keep.saturating_sub(2)) {
            std::fs::remove_file(self.archived(*n))?;
        }
        Ok(())
    }

    /// Returns the numbers of the archived policies, ascending.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn archive(&self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.root.join("promoted"))? {
            let name = entry?.file_name();
            all.extend(name.to_str().and_then(|name| name.strip_suffix(".safetensors")?.parse::<u64>().ok()));
        }
        all.sort_unstable();
        Ok(all)
    }

    fn next(&self) -> u64 {
        self.entries.last().map_or(1, |e| e.n + 1)
    }

    /// Makes `current` the policy that the history says is served.
    fn settle(&self) -> anyhow::Result<()> {
        let Some(n) = self.serves() else { return Ok(()) };
        let path = self.archived(n);
        let bytes = std::fs::read(&path)
            .with_context(|| format!("the archive of the served policy is gone: {}; {REMEDY}", path.display()))?;
        if std::fs::read(self.current()).is_ok_and(|current| current == bytes) {
            return Ok(());
        }
        // A file that was damaged in the archive must not take the place of one that serves.
        if let Err(e) = Stored::read(&path)
            && Stored::read(&self.current()).is_ok()
        {
            return Err(e.context(format!("the archive of the served policy is damaged; {REMEDY}")));
        }
        files::replace_synced(&self.current(), &bytes)
            .with_context(|| format!("cannot write {}", self.current().display()))
    }
}

/// Reads the history; an incomplete last line, left by a crash, is removed.
fn read(root: &Path) -> anyhow::Result<Vec<HistoryEntry>> {
    let (text, whole) = text_of(root)?;
    if whole < text.len() {
        let path = root.join("history.jsonl");
        files::replace_synced(&path, &text[..whole]).with_context(|| format!("cannot mend {}", path.display()))?;
    }
    parse(root, &text[..whole])
}

/// Returns all entries of a jobs' folder, oldest first. Changes nothing, so a night may be under way.
///
/// # Errors
/// A history that cannot be read.
pub fn entries(root: &Path) -> anyhow::Result<Vec<HistoryEntry>> {
    let (text, whole) = text_of(root)?;
    parse(root, &text[..whole])
}

/// The history, and where its last whole line ends.
fn text_of(root: &Path) -> anyhow::Result<(Vec<u8>, usize)> {
    let path = root.join("history.jsonl");
    let text = match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => vec![],
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    Ok((text, whole))
}

fn parse(root: &Path, text: &[u8]) -> anyhow::Result<Vec<HistoryEntry>> {
    let malformed = |i: usize| {
        format!("{}: line {} is malformed; mend it, or remove it", root.join("history.jsonl").display(), i + 1)
    };
    let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    lines.enumerate().map(|(i, line)| serde_json::from_slice(line).with_context(|| malformed(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::policy::stored::BaselineFile;

    fn note(history: &mut History, outcome: Outcome) -> HistoryEntry {
        history.note(HistoryEntry::new(outcome, "a test")).unwrap()
    }

    #[test]
    fn what_is_served_is_what_the_history_says_wherever_a_crash_came() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        assert_eq!((history.serves(), history.current().exists()), (None, false));
        assert_eq!(note(&mut history, Outcome::DataSuspect).serves, None);
        history.promote(HistoryEntry::new(Outcome::Promoted, "first"), b"one").unwrap();
        history.promote(HistoryEntry::new(Outcome::Promoted, "second"), b"two").unwrap();
        note(&mut history, Outcome::Kept);
        assert_eq!((history.serves(), history.previous()), (Some(3), Some(2)));
        let current = history.current();
        assert_eq!(std::fs::read(&current).unwrap(), b"two");
        drop(history);
        // As if killed before `current` was replaced, and in the middle of a line.
        std::fs::write(&current, b"one").unwrap();
        let lines = folder.path().join("history.jsonl");
        let whole = std::fs::read(&lines).unwrap();
        std::fs::write(&lines, [&whole[..], b"{\"n\":5,\"ti"].concat()).unwrap();
        let history = History::open(folder.path()).unwrap();
        assert_eq!(std::fs::read(&current).unwrap(), b"two");
        assert_eq!(history.entries().len(), 4);
        assert_eq!(std::fs::read(&lines).unwrap(), whole);
        assert!(History::open(folder.path()).unwrap_err().to_string().contains("in use"));
    }

    /// A damaged archive replaced the policy that served.
    #[test]
    fn a_damaged_or_missing_archive_leaves_what_serves() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::empty();
        let policy = BaselineFile::new("contract-first", plan).unwrap().encode().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        history.promote(HistoryEntry::new(Outcome::Promoted, "first"), &policy).unwrap();
        let (current, archived) = (history.current(), history.archived(1));
        drop(history);
        std::fs::write(&archived, &policy[..policy.len() / 2]).unwrap();
        let history = History::open(folder.path()).unwrap();
        assert!(std::fs::read(&current).unwrap() == policy && history.serves() == Some(1));
        drop(history);
        std::fs::remove_file(&archived).unwrap();
        let mut history = History::open(folder.path()).unwrap();
        assert!(std::fs::read(&current).unwrap() == policy);
        // It can be shown while a night is under way, and another policy can be promoted.
        assert_eq!(entries(folder.path()).unwrap().len(), 1);
        history.promote(HistoryEntry::new(Outcome::Promoted, "second"), &policy).unwrap();
        assert_eq!((history.serves(), entries(folder.path()).unwrap().len()), (Some(2), 2));
    }

    #[test]
    fn a_second_rollback_goes_further_back_and_what_was_taken_back_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        for bytes in [b"one", b"two", b"six"] {
            history.promote(HistoryEntry::new(Outcome::Promoted, "p"), bytes).unwrap();
        }
        let serve = |history: &mut History, n: u64, outcome: Outcome| {
            let mut entry = HistoryEntry::new(outcome, "by hand");
            entry.serves = Some(n);
            history.note(entry).unwrap();
        };
        assert_eq!((history.previous(), history.withdrawn(b"six")), (Some(2), None));
        serve(&mut history, 2, Outcome::RolledBack);
        assert_eq!((history.previous(), history.withdrawn(b"six")), (Some(1), Some(3)));
        note(&mut history, Outcome::Kept);
        serve(&mut history, 1, Outcome::RolledBack);
        assert_eq!((history.previous(), history.withdrawn(b"two")), (None, Some(2)));
        // Served by hand again, it is one to go back from and no longer withdrawn.
        serve(&mut history, 3, Outcome::PromotedByHand);
        assert_eq!(
            (history.previous(), history.withdrawn(b"six"), history.withdrawn(b"two")),
            (Some(1), None, Some(2))
        );
        assert_eq!((history.withdrawn(b"one"), history.withdrawn(b"new")), (Some(1), None));
    }

    /// The error ended with "there are".
    #[test]
    fn a_number_is_refused_in_words_where_nothing_was_promoted() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        note(&mut history, Outcome::Failed);
        let why = history.promote_again(5, Outcome::PromotedByHand).unwrap_err().to_string();
        assert!(why.ends_with("none was promoted yet"), "{why}");
        history.promote(HistoryEntry::new(Outcome::Promoted, "p"), b"one").unwrap();
        let why = history.promote_again(5, Outcome::PromotedByHand).unwrap_err().to_string();
        assert!(why.ends_with("there are 2"), "{why}");
    }

    #[test]
    fn pruning_leaves_what_is_served_and_what_was_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path()).unwrap();
        for i in 0..6u8 {
            history.promote(HistoryEntry::new(Outcome::Promoted, "p"), &[i]).unwrap();
        }
        history.prune(3).unwrap();
        assert_eq!(history.archive().unwrap(), [4, 5, 6]);
        history.prune(1).unwrap();
        assert_eq!(history.archive().unwrap(), [5, 6]);
    }
}
