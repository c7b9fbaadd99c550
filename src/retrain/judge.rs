//! The rule of promotion, on days that neither policy was trained on: the interval of the difference in share (points) above
//! `promote.margin`, and a shortage rate (a fraction of 1) that rises by at most `promote.max_shortage_increase`.

use serde::{Deserialize, Serialize};

use crate::evaluate::DayReport;
use crate::evaluate::verdict::{self, ENOUGH_HOURS};
use crate::study::statistics;
use crate::values::report::LossDifference;

use super::config::Promote;

/// Number of held-out days from which the interval is over days; with fewer, hours are resampled within them.
pub const ENOUGH_DAYS: usize = 5;

/// Names in the comparison.
pub const CANDIDATE: &str = "candidate";
pub const INCUMBENT: &str = "incumbent";

/// A paired difference of mean shares, in points.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub policy: String,
    pub against: String,
    pub difference: f64,
    pub interval: [f64; 2],
    /// Units that the interval is over.
    pub over: String,
    /// Whether it is over too few hours to tell anything.
    #[serde(default)]
    pub too_few: bool,
}

impl Comparison {
    /// Compares two policies; `None` where a day has nothing at stake. `unit` names what the reports are of: days or windows.
    pub fn of(days: &[DayReport], policy: &str, against: &str, unit: &str) -> Option<Self> {
        let within = verdict::paired(days, policy, against)?;
        let share = |day: &DayReport, name: &str| day.policies.iter().find(|p| p.name == name)?.share;
        let daily = days.iter().map(|day| Some(100.0 * (share(day, policy)? - share(day, against)?)));
        let daily = daily.collect::<Option<Vec<f64>>>()?;
        let over_days = if days.len() >= ENOUGH_DAYS { statistics::interval(&daily) } else { None };
        let (interval, over, too_few) = match over_days {
            Some(interval) => (interval, format!("{} {unit}s", days.len()), false),
            None => {
                let over = format!("{} hours within {} {unit}(s)", within.hours, days.len());
                (within.interval, over, within.hours < ENOUGH_HOURS)
            }
        };
        Some(Self {
            policy: policy.to_owned(),
            against: against.to_owned(),
            difference: within.difference,
            interval,
            over,
            too_few,
        })
    }

    /// Describes the comparison in words.
    pub fn sentence(&self) -> String {
        let [low, high] = self.interval;
        format!(
            "{} - {}: {:+.2} points, 95 % {low:+.2}..{high:+.2} over {}",
            self.policy, self.against, self.difference, self.over
        )
    }
}

/// Losses of a new model and of the values served before on the held-out exposures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueComparison {
    /// Values that the night used.
    pub used: String,
    pub model: String,
    pub against: String,
    #[serde(flatten)]
    pub losses: LossDifference,
}

impl ValueComparison {
    /// Describes the comparison in words.
    pub fn sentence(&self) -> String {
        let Self { used, model, against, losses } = self;
        format!("held-out losses, {model} - {against}: {losses}; used: {used}")
    }
}

/// Policy to be served from the next day on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextPolicy {
    Candidate,
    Baseline,
    Keep,
}

/// A decision with its reason.
#[derive(Debug)]
pub struct Ruling {
    pub next: NextPolicy,
    pub reason: String,
    pub comparisons: Vec<Comparison>,
}

/// Decides between the incumbent, the candidate and the best baseline.
///
/// The winner must exceed the incumbent by its interval and `margin`, without more shortage than allowed. Of candidate and
/// baseline the one with the higher mean is tried first; a baseline as good as the candidate goes before it.
pub fn rule(days: &[DayReport], baseline: &str, promote: &Promote, unit: &str) -> Ruling {
    let against_incumbent = [CANDIDATE, baseline].map(|name| Comparison::of(days, name, INCUMBENT, unit));
    let over_baseline = Comparison::of(days, CANDIDATE, baseline, unit);
    let comparisons: Vec<Comparison> = against_incumbent.iter().flatten().chain(&over_baseline).cloned().collect();
    let [Some(candidate), Some(best)] = against_incumbent else {
        let reason = "nothing is at stake on what is held out; nothing can be compared".into();
        return Ruling { next: NextPolicy::Keep, reason, comparisons };
    };
    let shortage = |name: &str| {
        let of_day = |day: &DayReport| day.policies.iter().find(|p| p.name == name).map(|p| p.shortage_rate);
        days.iter().filter_map(of_day).sum::<f64>() / days.len() as f64
    };
    let (candidate, best) = ((NextPolicy::Candidate, candidate), (NextPolicy::Baseline, best));
    let first = if candidate.1.difference > best.1.difference { [candidate, best] } else { [best, candidate] };
    let mut refused = Vec::new();
    for (next, over) in first {
        let more = shortage(&over.policy) - shortage(INCUMBENT);
        if over.too_few {
            refused.push(format!(
                "{} hours are the least from which anything can be told ({})",
                ENOUGH_HOURS,
                over.sentence()
            ));
        } else if over.interval[0] <= promote.margin {
            refused.push(format!("{} is not above the incumbent by its interval ({})", over.policy, over.sentence()));
        } else if more > promote.max_shortage_increase {
            refused.push(format!("{} has {:.2} points more shortage", over.policy, 100.0 * more));
        } else {
            return Ruling { next, reason: over.sentence(), comparisons };
        }
    }
    Ruling { next: NextPolicy::Keep, reason: refused.join("; "), comparisons }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Kind;

    /// Held-out windows of an hour each promoted whatever was better in them: an interval over one hour has no width.
    #[test]
    fn hours_too_few_to_tell_anything_promote_nothing() {
        let promote = Promote::default();
        let shares = [(CANDIDATE, Kind::Trained, 0.9), (INCUMBENT, Kind::Trained, 0.8), ("pid", Kind::Baseline, 0.7)];
        for (days, hours, next) in [
            (1, 1, NextPolicy::Keep),
            (4, 1, NextPolicy::Keep),
            (2, 3, NextPolicy::Candidate),
            (ENOUGH_DAYS, 1, NextPolicy::Candidate),
        ] {
            let ruling = rule(&vec![DayReport::sample(hours, &shares); days], "pid", &promote, "window");
            assert_eq!(ruling.next, next, "{days} windows of {hours} hours: {}", ruling.reason);
            assert_eq!(ruling.reason.contains("6 hours are the least"), next == NextPolicy::Keep, "{}", ruling.reason);
        }
    }
}
