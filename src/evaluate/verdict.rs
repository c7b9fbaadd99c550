//! Decision whether a learned policy is worth deploying, by paired differences.
//!
//! Two policies on one day meet the same requests and the same prices, so the difference of their shares varies far less than
//! either share. Hours of all reported days are resampled jointly for both, which gives the uncertainty of the difference
//! *within these days*; for other days, worlds and seeds use `admix study`.
//!
//! The opponent is the baseline with the best mean on the validation days, determined before a reported day is opened: the best
//! of many baselines on the reported days themselves is partly luck, and is reported for information.

use serde::{Deserialize, Serialize};

use super::bootstrap::{Block, difference_interval};
use super::compared::UNTRAINED;
use super::logged;
use super::report::{DayReport, Kind, PolicyReport};

/// Result of a comparison by the paired interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Better,
    Level,
    Worse,
}

/// With fewer hours nothing is decided: in five of them, equal policies differ in the same direction by chance in more than 2.5 % of all cases.
pub const ENOUGH_HOURS: usize = 6;

impl Decision {
    /// Decides by an interval of the difference, for which so many hours were resampled.
    pub fn of([low, high]: [f64; 2], hours: usize) -> Self {
        if hours < ENOUGH_HOURS {
            Self::Level
        } else if low > 0.0 {
            Self::Better
        } else if high < 0.0 {
            Self::Worse
        } else {
            Self::Level
        }
    }
}

/// Output of `--json`; differences in points of share (percent of the bound).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub policy: String,
    /// The best baseline.
    pub against: String,
    pub difference: f64,
    pub interval: [f64; 2],
    pub decision: Decision,
    pub over_untrained: f64,
    pub over_untrained_interval: [f64; 2],
}

/// Days that determined the best baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChosenOn {
    /// The run's validation days, before a reported day was opened.
    Validation,
    /// The reported days, because no earlier choice is known.
    Hindsight,
}

/// Basis of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    pub best_baseline_by: ChosenOn,
    /// The baseline that was best on the reported days, and the policy's difference from it, in points.
    pub best_in_hindsight: String,
    pub over_best_in_hindsight: f64,
    /// Whether the chosen policy is the start of its run: no update beat it on the validation days.
    pub chosen_is_start: bool,
    /// Hours of these days were resampled; other days differ by more.
    pub interval_within: String,
    /// Number of the hours with requests.
    #[serde(default)]
    pub hours: usize,
}

/// A verdict with its basis: the last line of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Values that plan and policies saw, and values that everything is counted with.
    #[serde(default)]
    pub told: String,
    #[serde(default)]
    pub judged: String,
    pub verdict: Verdict,
    pub basis: Basis,
}

/// A paired difference of mean shares, in points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    pub difference: f64,
    pub interval: [f64; 2],
    /// Hours with requests, of all days together.
    #[serde(default)]
    pub hours: usize,
}

impl Paired {
    pub fn decision(&self) -> Decision {
        Decision::of(self.interval, self.hours)
    }
}

fn row<'a>(day: &'a DayReport, name: &str) -> Option<&'a PolicyReport> {
    day.policies.iter().find(|p| p.name == name)
}

/// Returns the mean share of `name` over the days that have it; `None` if none has.
pub fn mean_share(days: &[DayReport], name: &str) -> Option<f64> {
    let shares: Vec<f64> = days.iter().filter_map(|day| row(day, name)?.share).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Returns the difference of two policies over the days that have both; `None` if there is none, or nothing is at stake.
pub fn paired(days: &[DayReport], policy: &str, against: &str) -> Option<Paired> {
    let both: Vec<(&PolicyReport, &PolicyReport)> =
        days.iter().filter_map(|day| Some((row(day, policy)?, row(day, against)?))).collect();
    let blocks: Vec<(&[Block], &[Block])> = both.iter().map(|(a, b)| (&*a.blocks, &*b.blocks)).collect();
    let shares = both.iter().map(|(a, b)| Some(a.share? - b.share?)).collect::<Option<Vec<f64>>>()?;
    let interval = difference_interval(&blocks)?.map(|bound| 100.0 * bound);
    let hours = hours(&blocks);
    Some(Paired { difference: 100.0 * shares.iter().sum::<f64>() / shares.len() as f64, interval, hours })
}

/// Returns the number of hours with requests.
pub fn hours(days: &[(&[Block], &[Block])]) -> usize {
    days.iter().map(|(hours, _)| hours.len()).sum()
}

/// Returns the baseline with the best mean share; of equal ones the first. One that lacks on a day is none: the mean of other days is not
/// comparable.
pub fn best_baseline(days: &[DayReport]) -> Option<String> {
    let mut best: Option<(f64, &str)> = None;
    let everywhere = |p: &&PolicyReport| days.iter().all(|day| row(day, &p.name).is_some());
    let baselines = days.first()?.policies.iter().filter(|p| p.kind == Kind::Baseline).filter(everywhere);
    for name in baselines.map(|p| p.name.as_str()) {
        if let Some(share) = mean_share(days, name)
            && best.is_none_or(|(most, _)| share > most)
        {
            best = Some((share, name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}

/// Judges `policy` on reported days against `named`, the best baseline on the validation days; if that is unknown or
/// has no row, against the best in hindsight. `None` without a baseline, an untrained row or anything at stake.
pub fn judge(days: &[DayReport], policy: &str, named: Option<&str>) -> Option<Judgement> {
    let hindsight = best_baseline(days)?;
    let (against, by) = match named.filter(|name| mean_share(days, name).is_some()) {
        Some(name) => (name.to_owned(), ChosenOn::Validation),
        None => (hindsight.clone(), ChosenOn::Hindsight),
    };
    let over = paired(days, policy, &against)?;
    let untrained = paired(days, policy, &format!("{policy}{UNTRAINED}"))?;
    let in_hindsight = paired(days, policy, &hindsight)?;
    let day = days.first()?;
    Some(Judgement {
        told: day.told.clone(),
        judged: day.judged.clone(),
        basis: Basis {
            best_baseline_by: by,
            best_in_hindsight: hindsight,
            over_best_in_hindsight: in_hindsight.difference,
            chosen_is_start: days.iter().filter_map(|day| row(day, policy)).any(|p| p.equals.is_some()),
            interval_within: "these days".into(),
            hours: over.hours,
        },
        verdict: Verdict {
            policy: policy.to_owned(),
            against,
            difference: over.difference,
            interval: over.interval,
            decision: over.decision(),
            over_untrained: untrained.difference,
            over_untrained_interval: untrained.interval,
        },
    })
}

impl Judgement {
    /// Returns the verdict in words.
    pub fn sentences(&self) -> String {
        let Self { verdict: v, basis, .. } = self;
        let few = basis.hours < ENOUGH_HOURS;
        let stated = |difference: f64, [low, high]: [f64; 2]| match few {
            true => format!("{difference:+.2} points"),
            false => format!("{difference:+.2} points, 95 % {low:+.2}..{high:+.2} within these days"),
        };
        let best = match basis.best_baseline_by {
            ChosenOn::Validation => "the best baseline on the validation days",
            ChosenOn::Hindsight => {
                "the best baseline of these days (the best one of the validation days is not among them, or not known)"
            }
        };
        let word = match v.decision {
            Decision::Better => "BETTER than",
            Decision::Level => "LEVEL with",
            Decision::Worse => "WORSE than",
        };
        let mut text = format!("{} is {word} {}, {best}: {}.\n", v.policy, v.against, stated(v.difference, v.interval));
        let learned = match Decision::of(v.over_untrained_interval, basis.hours) {
            Decision::Better => "Learning added to it",
            Decision::Level => "Learning changed nothing that these days can tell",
            Decision::Worse => "Learning made it worse",
        };
        text += &format!(
            "{learned}: over {}{UNTRAINED} {}.\n",
            v.policy,
            stated(v.over_untrained, v.over_untrained_interval)
        );
        if few {
            text += &format!(
                "These days have requests in {} hour(s), and {ENOUGH_HOURS} are the least from which anything can be told: report longer \
                 days, or more.\n",
                basis.hours
            );
        }
        if basis.chosen_is_start {
            text += &format!(
                "{} IS its start: no update of the network surely improved on it on the validation days. What it earns is due to the \
                 planner, to what that learned of the volume to come, and to the controller.\n",
                v.policy
            );
        }
        if basis.best_in_hindsight != v.against {
            text += &format!(
                "The best baseline in hindsight is {} ({:+.2} points).\n",
                basis.best_in_hindsight, basis.over_best_in_hindsight
            );
        }
        if v.decision == Decision::Worse {
            // What the platform did so far is its own to keep; nothing here can serve it.
            let instead = match v.against == logged::NAME {
                true => "keep what showed the logged ads".to_owned(),
                false => format!("serve the baseline (--policy baseline:{} --plan RUN_DIR)", v.against),
            };
            text += &format!("It is not worth deploying: {instead}, or train longer or on more days.\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day of one request gave an interval without width, and whatever was better on it was better for sure.
    #[test]
    fn few_hours_decide_nothing() {
        for interval in [[0.1, 0.1], [-0.1, -0.1]] {
            assert_eq!(Decision::of(interval, 1), Decision::Level);
            assert_ne!(Decision::of(interval, ENOUGH_HOURS), Decision::Level);
        }
        let judgement = Judgement {
            told: "logged".into(),
            judged: "logged".into(),
            verdict: Verdict {
                policy: "trained".into(),
                against: "pid".into(),
                difference: 0.1,
                interval: [0.1, 0.1],
                decision: Decision::Level,
                over_untrained: 0.2,
                over_untrained_interval: [0.2, 0.2],
            },
            basis: Basis {
                best_baseline_by: ChosenOn::Validation,
                best_in_hindsight: "pid".into(),
                over_best_in_hindsight: 0.1,
                chosen_is_start: false,
                interval_within: "these days".into(),
                hours: 1,
            },
        };
        let said = judgement.sentences();
        assert!(said.contains("LEVEL with pid") && said.contains("requests in 1 hour(s)"), "{said}");
        assert!(!said.contains("95 %") && said.contains("Learning changed nothing that these days can tell"), "{said}");
    }

    /// A baseline that one easy day alone has was the best of all.
    #[test]
    fn the_best_baseline_is_one_that_all_days_have() {
        let both = [("pid", Kind::Baseline, 0.7), ("random", Kind::Baseline, 0.1)];
        let easy = [("logged", Kind::Baseline, 0.9), ("pid", Kind::Baseline, 0.9), ("random", Kind::Baseline, 0.8)];
        let days = [DayReport::sample(24, &both), DayReport::sample(24, &easy)];
        assert_eq!(best_baseline(&days).as_deref(), Some("pid"));
        assert_eq!(best_baseline(&days[1..]).as_deref(), Some("logged"), "the first of equal ones");
    }
}
