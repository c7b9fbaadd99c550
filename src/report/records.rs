//! Records of a run in `metrics.jsonl`, and the validation curve in them.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::files;

/// Records of a run since it was last started; those before belong to one that was started over in the same directory.
#[derive(Debug, Default)]
pub struct Records(Vec<Value>);

/// An evaluation of a policy on the validation days.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Evaluation {
    /// Unix seconds.
    pub time: f64,
    pub updates: u64,
    /// Share of the bound.
    pub share: f64,
    /// Share of the impressions owed.
    pub shortage_rate: f64,
    /// Minor units.
    pub auction_revenue: f64,
    /// Whether it was the best when it was made.
    pub improved: bool,
}

impl Records {
    /// Reads the records in a run directory.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(run: &Path) -> std::io::Result<Self> {
        let bytes = files::read(&run.join("metrics.jsonl"), files::MOST)?;
        Ok(Self::of(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses the lines of a file. A disk that was full for a while leaves incomplete ones, which are skipped.
    pub fn of(text: &str) -> Self {
        let mut lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let start = lines.iter().rposition(|line| line["kind"] == "start").unwrap_or(0);
        Self(lines.split_off(start))
    }

    /// Returns all records, oldest first.
    pub fn since_start(&self) -> &[Value] {
        &self.0
    }

    /// Returns the records of a kind, oldest first.
    pub fn of_kind(&self, kind: &str) -> impl DoubleEndedIterator<Item = &Value> {
        self.0.iter().filter(move |line| line["kind"] == kind)
    }

    /// Returns the evaluations that have a share in the order of their updates, one for each number of updates. Those of updates that
    /// were lost when the learner went back to a snapshot are left out.
    pub fn curve(&self) -> Vec<Evaluation> {
        let mut curve: Vec<Evaluation> = Vec::new();
        for line in &self.0 {
            if line["kind"] == "restored"
                && let Some(updates) = line["updates"].as_u64()
            {
                curve.retain(|e| e.updates <= updates);
            }
            curve.extend(evaluation(line));
        }
        // Of several at one number of updates the newest stays.
        curve.reverse();
        curve.sort_by_key(|e| e.updates);
        curve.dedup_by_key(|e| e.updates);
        curve
    }

    /// Returns the evaluation that made the policy of so many updates the best; `None` if it is older than the newest start.
    pub fn chosen(&self, updates: u64) -> Option<Evaluation> {
        let mut all = self.0.iter().rev().filter_map(evaluation);
        // The start is the same policy whenever it was evaluated.
        all.find(|e| e.updates == updates && (e.improved || updates == 0))
    }
}

fn evaluation(line: &Value) -> Option<Evaluation> {
    (line["kind"] == "evaluation").then(|| Evaluation::deserialize(line).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, updates: u64, share: f64, improved: bool) -> String {
        let record = serde_json::json!({
            "time": 1.0, "kind": kind, "updates": updates, "share": share, "shortage_rate": 0.1, "auction_revenue": 5.0,
            "improved": improved,
        });
        format!("{record}\n")
    }

    fn points(records: &Records) -> Vec<(u64, f64)> {
        records.curve().iter().map(|e| (e.updates, e.share)).collect()
    }

    /// The curves of both runs were joined, and the run that is gone had the chosen policy.
    #[test]
    fn a_run_that_was_started_over_has_no_evaluation_of_the_run_before() {
        let run = |shares: [f64; 3], improved: bool| {
            line("start", 0, 0.0, false)
                + &(0..3).map(|i| line("evaluation", 8 * i as u64, shares[i], improved)).collect::<String>()
        };
        let records =
            Records::of(&(run([0.5, 0.8, 0.9], true) + "{\"kind\":\"eval" + "\n" + &run([0.5, 0.6, 0.7], false)));
        assert_eq!(points(&records), [(0, 0.5), (8, 0.6), (16, 0.7)]);
        assert_eq!(records.chosen(16), None, "the best is still the other run's");
        assert_eq!(records.chosen(0).map(|e| e.share), Some(0.5));
        assert_eq!(records.of_kind("start").count(), 1);
    }

    /// Updates that a snapshot undid stayed in the curve, which then ran backwards.
    #[test]
    fn a_run_that_went_back_to_a_snapshot_has_one_curve() {
        let text = line("start", 0, 0.0, false)
            + &line("evaluation", 0, 0.5, true)
            + &line("evaluation", 16, 0.6, true)
            + &line("evaluation", 40, 0.9, true)
            + &line("resume", 0, 0.0, false)
            + &line("restored", 20, 0.0, false)
            + &line("evaluation", 16, 0.65, false)
            + &line("evaluation", 24, 0.7, false);
        let records = Records::of(&text);
        assert_eq!(points(&records), [(0, 0.5), (16, 0.65), (24, 0.7)]);
        assert_eq!(records.chosen(40).map(|e| e.share), Some(0.9), "the best stays the one to beat");
        assert_eq!(records.chosen(16).map(|e| e.share), Some(0.6));
    }

    #[test]
    fn evaluations_without_a_share_and_those_of_a_value_run_are_no_points() {
        let text = "{\"kind\":\"evaluation\",\"time\":1.0,\"updates\":8,\"share\":null}\n\
                    {\"kind\":\"evaluation\",\"time\":2.0,\"epoch\":6,\"updates\":539,\"click\":0.1}\n";
        let records = Records::of(text);
        assert_eq!((points(&records).len(), records.of_kind("evaluation").count()), (0, 2));
    }
}
