//! Leakage: a day that is used in two roles makes a policy look better than it is. One that is used twice in a role makes figures look surer.
//!
//! Validating or testing on a training day measures memory. Days are compared by content, because the usual cause is a directory
//! that was copied, linked or renamed.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::log::CompiledLog;
use crate::plan::{Seen, Use};

/// Days with their roles.
#[derive(Debug, Default)]
pub struct Roles(HashMap<String, (String, PathBuf)>);

impl Roles {
    /// Adds a day in a role, for example `data.train`.
    ///
    /// # Errors
    /// [`Leak`] where the same day has a role already.
    pub fn add(&mut self, role: &str, dir: &Path, log: &CompiledLog) -> Result<(), Leak> {
        let Some(content) = log.content() else { return Ok(()) };
        match self.0.get(&content) {
            Some((other, first)) => Err(Leak {
                first: (other.clone(), first.clone()),
                second: (role.to_owned(), dir.to_owned()),
                date: log.day().date.clone(),
            }),
            None => {
                self.0.insert(content, (role.to_owned(), dir.to_owned()));
                Ok(())
            }
        }
    }

    /// Checks directories and their compiled logs, given by role.
    ///
    /// # Errors
    /// [`Leak`].
    pub fn check(days: &[(&str, &[PathBuf], &[CompiledLog])]) -> Result<(), Leak> {
        let mut roles = Self::default();
        for (role, dirs, logs) in days {
            for (dir, log) in dirs.iter().zip(*logs) {
                roles.add(role, dir, log)?;
            }
        }
        Ok(())
    }
}

/// The same day in two roles, or twice in one.
#[derive(Debug)]
pub struct Leak {
    /// Role and directory of the first use.
    first: (String, PathBuf),
    second: (String, PathBuf),
    date: String,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((role, dir), (other_role, other)) = (&self.first, &self.second);
        if role == other_role {
            if dir == other {
                write!(f, "{} stands in {role} twice", dir.display())?;
            } else {
                write!(f, "{} and {} ({role}) hold the same day, {}", dir.display(), other.display(), self.date)?;
            }
            return write!(f, ". Counted twice, it makes figures look surer than they are: name it once");
        }
        if dir == other {
            write!(f, "{} stands in {role} and in {other_role}", dir.display())?;
        } else {
            write!(
                f,
                "{} ({role}) and {} ({other_role}) hold the same day, {}: their requests are the same, whatever the directories are \
                 called",
                dir.display(),
                other.display(),
                self.date
            )?;
        }
        write!(
            f,
            ". A policy that is judged on a day it has seen looks better than it is. Take the day out of {role} or out of \
             {other_role}, or name another day there"
        )
    }
}

impl std::error::Error for Leak {}

/// Warns where `seen` has used days of `role` at least as strongly as `least`.
pub fn warn_of_seen(whose: &str, seen: &Seen, days: &[CompiledLog], role: &str, least: Use) {
    for log in days {
        let Some(before) = log.content().and_then(|content| seen.of(&content).cloned()) else { continue };
        if before.used >= least {
            let what = match before.used {
                Use::Train => "was made from",
                Use::Validation => "was chosen on",
            };
            tracing::warn!("{whose} {what} {} ({role}): figures on it are too good", log.name());
        }
    }
}
