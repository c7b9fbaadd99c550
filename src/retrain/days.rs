//! Day directories by their dates, and what each is for tonight.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use jiff::civil::Date;

use super::config::Days;
use super::window;

/// A day directory, or a window of a day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayDir {
    pub date: Date,
    /// Minute of the day that a window begins at; `None` for a whole day.
    pub minute: Option<u64>,
    pub dir: PathBuf,
}

impl DayDir {
    /// Returns the date, for a window with the time that it begins at.
    pub fn label(&self) -> String {
        self.minute.map_or_else(|| self.date.to_string(), |minute| window::label(self.date, minute))
    }
}

/// Parses the name of a day directory.
fn date_of(name: &str, pattern: &str) -> Option<Date> {
    Date::strptime(pattern, name).ok()
}

/// Checks that a pattern gives a date and that the date gives the name again.
///
/// # Errors
/// A pattern that does not name a day.
pub fn check_pattern(pattern: &str) -> anyhow::Result<()> {
    let date = Date::constant(2026, 11, 23);
    let name = jiff::fmt::strtime::format(pattern, date).with_context(|| format!("`days.pattern` = \"{pattern}\""))?;
    ensure!(
        date_of(&name, pattern) == Some(date),
        "`days.pattern` = \"{pattern}\" does not name a day; use %Y, %m and %d, for example \"day=%Y-%m-%d\""
    );
    Ok(())
}

/// Finds the day directories in `folder`, oldest first; other entries are left aside.
///
/// # Errors
/// A folder that cannot be listed.
pub fn find(folder: &Path, pattern: &str) -> anyhow::Result<Vec<DayDir>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list `days.dir`, {}", folder.display()))?;
    let mut days = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let dir = entry.path();
        if let Some(date) = entry.file_name().to_str().and_then(|name| date_of(name, pattern))
            && dir.is_dir()
        {
            days.push(DayDir { date, minute: None, dir });
        }
    }
    days.sort();
    Ok(days)
}

/// Tonight's days by role. The newest are held out: neither tonight's candidate nor an incumbent of an earlier night was
/// trained on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    pub train: Vec<DayDir>,
    pub validation: Vec<DayDir>,
    pub heldout: Vec<DayDir>,
}

impl Roles {
    /// Fewer days than this cannot be split.
    pub const LEAST: usize = 3;

    /// Splits valid days, oldest first; `None` where there are too few. A third of few days is held out, and a quarter of the rest
    /// chooses.
    pub fn of(valid: &[DayDir], most: &Days) -> Option<Self> {
        let n = valid.len();
        if n < Self::LEAST {
            return None;
        }
        let heldout = (n / 3).clamp(1, most.heldout);
        let validation = ((n - heldout) / 4).clamp(1, most.validation);
        let train = (n - heldout - validation).min(most.train);
        let (rest, heldout) = valid.split_at(n - heldout);
        let (rest, validation) = rest.split_at(rest.len() - validation);
        Some(Self {
            train: rest[rest.len() - train..].to_vec(),
            validation: validation.to_vec(),
            heldout: heldout.to_vec(),
        })
    }

    /// Returns the directories of a role.
    pub fn dirs(days: &[DayDir]) -> Vec<PathBuf> {
        days.iter().map(|day| day.dir.clone()).collect()
    }

    /// Returns the labels of a role.
    pub fn labels(days: &[DayDir]) -> Vec<String> {
        days.iter().map(DayDir::label).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(n: i8) -> Vec<DayDir> {
        (1..=n)
            .map(|d| DayDir { date: Date::constant(2026, 11, d), minute: None, dir: format!("2026-11-{d:02}").into() })
            .collect()
    }

    fn most() -> Days {
        Days { dir: ".".into(), pattern: "%Y-%m-%d".into(), train: 7, validation: 2, heldout: 5, accept: vec![] }
    }

    #[test]
    fn roles_are_disjoint_in_order_and_the_newest_days_are_held_out() {
        assert_eq!(Roles::of(&days(2), &most()), None);
        for n in 3..=28 {
            let all = days(n);
            let roles = Roles::of(&all, &most()).unwrap();
            let joined = [roles.train.clone(), roles.validation.clone(), roles.heldout.clone()].concat();
            assert_eq!(joined, all[all.len() - joined.len()..], "{n}");
            assert!(!roles.train.is_empty() && !roles.validation.is_empty() && !roles.heldout.is_empty());
            assert!(roles.train.len() <= 7 && roles.validation.len() <= 2 && roles.heldout.len() <= 5);
        }
        let many = Roles::of(&days(20), &most()).unwrap();
        assert_eq!((many.train.len(), many.validation.len(), many.heldout.len()), (7, 2, 5));
    }

    #[test]
    fn a_pattern_has_to_name_a_day() {
        for good in ["%Y-%m-%d", "day=%Y%m%d", "%Y_%m_%d"] {
            check_pattern(good).unwrap();
        }
        for bad in ["%Y-%m", "logs", "", "%H"] {
            assert!(check_pattern(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_entries_are_left_aside() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["2026-11-02", "2026-11-01", "2026-11-31", "readme", ".admix", "2026-11-03.tmp"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("2026-11-04"), "a file").unwrap();
        let found = find(folder.path(), "%Y-%m-%d").unwrap();
        let dates: Vec<String> = found.iter().map(|day| day.date.to_string()).collect();
        assert_eq!(dates, ["2026-11-01", "2026-11-02"]);
    }
}
