//! Record of the days that a plan, and policies trained or chosen with it, have used.
//!
//! A policy that is judged on one of its training days looks better than it serves. Directories are copied and renamed, so days
//! are identified by their content. The record is part of the plan because every policy file contains the plan, also a
//! baseline's.

use serde::{Deserialize, Serialize};

use crate::log::CompiledLog;

/// Maximum number of days kept, the newest ones: a policy that is retrained every night uses one more day each time.
const MOST: usize = 1000;

/// Use of a day; of two uses, the later variant is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Chose parameters, or tuned baselines.
    Validation,
    /// Planned from or trained on.
    Train,
}

/// A day that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenDay {
    pub log: String,
    pub date: String,
    /// [`CompiledLog::content`], as text.
    pub content: String,
    pub used: Use,
}

/// All days that were used, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seen(Vec<SeenDay>);

impl Seen {
    /// Adds a day. A day without requests tells nothing and is not kept.
    pub fn add(&mut self, log: &CompiledLog, used: Use) {
        if let Some(content) = log.content() {
            let (log, date) = (log.name().to_owned(), log.day().date.clone());
            self.add_day(SeenDay { log, date, content, used });
        }
    }

    /// Adds the days of another plan.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|day| self.add_day(day.clone()));
    }

    fn add_day(&mut self, day: SeenDay) {
        match self.0.iter_mut().find(|known| known.content == day.content) {
            Some(known) if known.used < day.used => *known = day,
            Some(_) => {}
            None => self.0.push(day),
        }
        if self.0.len() > MOST {
            let oldest = self.0.iter().enumerate().min_by(|a, b| a.1.date.cmp(&b.1.date)).map(|(i, _)| i);
            self.0.remove(oldest.unwrap_or(0));
        }
    }

    /// Returns the record of the day with this content.
    pub fn of(&self, content: &str) -> Option<&SeenDay> {
        self.0.iter().find(|day| day.content == content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(i: usize, used: Use) -> SeenDay {
        SeenDay { log: format!("day-{i}"), date: format!("{i:05}"), content: format!("{i:032x}"), used }
    }

    #[test]
    fn a_day_is_kept_once_with_the_use_that_weighs_more_and_the_oldest_are_forgotten() {
        let mut seen = Seen::default();
        seen.add_day(day(7, Use::Validation));
        seen.add_day(day(7, Use::Train));
        seen.add_day(day(7, Use::Validation));
        assert_eq!(seen.0, [day(7, Use::Train)]);
        (0..MOST + 10).for_each(|i| seen.add_day(day(i, Use::Validation)));
        assert_eq!(seen.0.len(), MOST);
        assert!(
            seen.of(&day(7, Use::Train).content).is_none() && seen.of(&day(MOST + 9, Use::Train).content).is_some()
        );
    }
}
