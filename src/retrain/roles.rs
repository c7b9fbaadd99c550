//! Assigns the valid days to roles.

use std::path::PathBuf;

use super::config::Days;
use super::days::DayDir;

/// The days of this night by role. The newest are held out: neither this night's candidate nor an incumbent of an earlier night
/// was trained on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    pub train: Vec<DayDir>,
    pub validation: Vec<DayDir>,
    pub heldout: Vec<DayDir>,
}

impl Roles {
    /// Minimum number of days that can be split.
    pub const LEAST: usize = 3;

    /// Splits valid days, oldest first; `None` where there are too few. With few days a third is held out, and a quarter of the
    /// rest is for validation.
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
    use jiff::civil::Date;

    fn days(n: i8) -> Vec<DayDir> {
        (1..=n)
            .map(|d| DayDir { date: Date::constant(2026, 11, d), minute: None, dir: format!("2026-11-{d:02}").into() })
            .collect()
    }

    fn most() -> Days {
        Days {
            dir: ".".into(),
            pattern: "%Y-%m-%d".into(),
            train: 7,
            validation: 2,
            heldout: 5,
            accept: vec![],
            max_age_days: 0,
        }
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
}
