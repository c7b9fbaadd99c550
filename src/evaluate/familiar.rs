//! What a policy knows of a day before it is replayed: the day itself, which makes its figures too good, or too little of the day's
//! contracts and traffic, which makes them say little of the policy.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use crate::env::Vocabulary;
use crate::log::CompiledLog;
use crate::plan::{Plan, Use};

use super::report::{DayReport, Seen, Unknown};

/// Name of the baselines' plan among the policies.
pub const BASELINES: &str = "baselines";
/// Share of a day's requests that may be of unknown kinds before it is told.
const UNKNOWN_TRAFFIC: f64 = 0.01;

/// Tells whether `plan`, and whatever was trained with it, has used the day of this content.
pub fn seen(policy: &str, plan: &Plan, content: Option<&str>) -> Option<Seen> {
    let day = plan.seen.of(content?)?;
    Some(Seen { policy: policy.to_owned(), used: day.used, log: day.log.clone() })
}

/// Says how much of a day is new to a policy; `None` where nothing that matters is.
pub fn unknown(policy: &str, plan: &Plan, vocabulary: &Vocabulary, log: &CompiledLog) -> Option<Unknown> {
    // A plan without forecast knows no world: there is nothing to compare.
    if plan.forecast.nodes.is_empty() {
        return None;
    }
    let owing: Vec<_> = log.contracts().iter().filter(|c| c.owed() > 0).collect();
    let is_new = |id: u64| !plan.contracts.contains_key(&id) && !vocabulary.ads.contains_key(&id);
    let new: Vec<_> = owing.iter().filter(|c| is_new(c.ad_id)).collect();
    let all: u64 = owing.iter().map(|c| c.owed()).sum();
    let slots: HashSet<u32> = plan.forecast.nodes.iter().map(|n| n.slot_id).collect();
    let regions: HashSet<u32> = plan.forecast.nodes.iter().map(|n| n.region).collect();
    let strange = log.requests().iter().filter(|r| !slots.contains(&r.slot_id) || !regions.contains(&r.region)).count();
    let found = Unknown {
        policy: policy.to_owned(),
        contracts: owing.len(),
        unknown_contracts: new.len(),
        owed_share: if all > 0 { new.iter().map(|c| c.owed()).sum::<u64>() as f64 / all as f64 } else { 0.0 },
        traffic_share: strange as f64 / log.requests().len().max(1) as f64,
    };
    (found.unknown_contracts > 0 || found.traffic_share > UNKNOWN_TRAFFIC).then_some(found)
}

/// Names reported days by what they are to the policies.
pub fn heading(days: &[DayReport]) -> &'static str {
    if days.iter().any(|day| !day.seen.is_empty()) { "Reported days" } else { "Days that were not trained on" }
}

/// Says above a table what its reader has to know of these days first; empty where there is nothing.
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
        // Policies of one run know the same.
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
