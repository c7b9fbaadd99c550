//! Which days a plan, and whatever was trained or chosen with it, has seen.
//!
//! A policy that is judged on a day it was trained on looks better than it serves. Directories are copied and renamed, so days are
//! recognised by their content. The record is part of the plan because the plan is in every policy file, also in a baseline's.

use serde::{Deserialize, Serialize};

use crate::log::CompiledLog;

/// Days that are remembered, the newest ones: a policy that is trained on from night to night sees a day more each time.
const MOST: usize = 1000;

/// What a day was used for; the later one weighs more.
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

    /// Adds what another plan has seen.
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

    /// Returns the use that was made of the day of this content.
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
