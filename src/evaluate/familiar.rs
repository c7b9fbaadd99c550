//! A policy's prior knowledge of a test day: it may have used the day itself, which makes its results too good, or know too
//! little of the day's contracts and traffic, so that its results say little.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use crate::env::Vocabulary;
use crate::log::CompiledLog;
use crate::plan::{Plan, Use};

use super::report::{DayReport, Seen, Unknown};

/// Name of the baselines' plan among the policies.
pub const BASELINES: &str = "baselines";
/// Share of requests of unknown kinds above which a report mentions them.
const UNKNOWN_TRAFFIC: f64 = 0.01;

/// Contracts of a day that no training day had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewContracts {
    /// Number of contracts that owe impressions, and of the unknown ones among them.
    pub contracts: usize,
    pub unknown: usize,
    /// Share of the unknown ones in the owed impressions.
    pub owed_share: f64,
}

impl NewContracts {
    /// Counts them among contracts, given with the impressions that each owes.
    pub fn among(plan: &Plan, vocabulary: &Vocabulary, contracts: impl Iterator<Item = (u64, u64)>) -> Self {
        let is_new = |id: u64| !plan.contracts.contains_key(&id) && !vocabulary.ads.contains_key(&id);
        let (mut found, mut all, mut new) = (Self { contracts: 0, unknown: 0, owed_share: 0.0 }, 0, 0);
        for (id, owed) in contracts.filter(|(_, owed)| *owed > 0) {
            found.contracts += 1;
            all += owed;
            if is_new(id) {
                found.unknown += 1;
                new += owed;
            }
        }
        found.owed_share = if all > 0 { new as f64 / all as f64 } else { 0.0 };
        found
    }
}

impl std::fmt::Display for NewContracts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} contracts are unknown to the policy ({:.0} % of the owed impressions): no training day had them, and \
             it has no price of theirs to start from",
            self.unknown,
            self.contracts,
            100.0 * self.owed_share
        )
    }
}

/// Returns the use that `plan`, and any policy trained with it, made of the day with this content.
pub fn seen(policy: &str, plan: &Plan, content: Option<&str>) -> Option<Seen> {
    let day = plan.seen.of(content?)?;
    Some(Seen { policy: policy.to_owned(), used: day.used, log: day.log.clone() })
}

/// Returns the parts of a day that are new to a policy; `None` if they do not matter.
pub fn unknown(policy: &str, plan: &Plan, vocabulary: &Vocabulary, log: &CompiledLog) -> Option<Unknown> {
    // A plan without a forecast has nothing to compare with.
    if plan.forecast.nodes.is_empty() {
        return None;
    }
    let new = NewContracts::among(plan, vocabulary, log.contracts().iter().map(|c| (c.ad_id, c.owed())));
    let slots: HashSet<u32> = plan.forecast.nodes.iter().map(|n| n.slot_id).collect();
    let regions: HashSet<u32> = plan.forecast.nodes.iter().map(|n| n.region).collect();
    let strange = log.requests().iter().filter(|r| !slots.contains(&r.slot_id) || !regions.contains(&r.region)).count();
    let found = Unknown {
        policy: policy.to_owned(),
        contracts: new.contracts,
        unknown_contracts: new.unknown,
        owed_share: new.owed_share,
        traffic_share: strange as f64 / log.requests().len().max(1) as f64,
    };
    (found.unknown_contracts > 0 || found.traffic_share > UNKNOWN_TRAFFIC).then_some(found)
}

/// Returns the heading of reported days, which depends on whether policies used them.
pub fn heading(days: &[DayReport]) -> &'static str {
    if days.iter().any(|day| !day.seen.is_empty()) { "Reported days" } else { "Days that were not trained on" }
}

/// Returns warnings about these days to be printed above a table; empty if there are none.
pub fn title(days: &[DayReport]) -> String {
    let mut text = String::new();
    for day in days {
        for used in [Use::Train, Use::Validation] {
            let names: Vec<&str> = day.seen.iter().filter(|s| s.used == used).map(|s| s.policy.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            let (what, means) = match used {
                Use::Train => ("a TRAINING DAY", "their figures on it say what they remember, not how they will serve"),
                Use::Validation => ("a VALIDATION DAY", "they were chosen on it, so their figures on it are too good"),
            };
            let _ = writeln!(text, "{} is {what} of {}: {means}.", day.log, names.join(", "));
        }
        // Policies of one run have the same knowledge.
        let same = |a: &Unknown, b: &Unknown| {
            Unknown { policy: String::new(), ..a.clone() } == Unknown { policy: String::new(), ..b.clone() }
        };
        let mut told: BTreeSet<usize> = BTreeSet::new();
        for (i, found) in day.unknown.iter().enumerate() {
            if told.contains(&i) {
                continue;
            }
            let group: Vec<usize> = (i..day.unknown.len()).filter(|&k| same(&day.unknown[k], found)).collect();
            let names: Vec<&str> = group.iter().map(|&k| day.unknown[k].policy.as_str()).collect();
            told.extend(group);
            let _ = write!(text, "{} is partly new to {}:", day.log, names.join(", "));
            if found.unknown_contracts > 0 {
                let _ = write!(
                    text,
                    " {} of {} contracts, which owe {:.0} % of the impressions, were on no training day",
                    found.unknown_contracts,
                    found.contracts,
                    100.0 * found.owed_share
                );
            }
            if found.traffic_share > UNKNOWN_TRAFFIC {
                let and = if found.unknown_contracts > 0 { ";" } else { "" };
                let _ = write!(
                    text,
                    "{and} {:.0} % of the requests have a slot or region that was on no training day",
                    100.0 * found.traffic_share
                );
            }
            text.push_str(".\n");
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}
