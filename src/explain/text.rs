//! Renders an explanation as text.

use std::fmt::Write as _;

use super::{Candidate, Explanation};

/// Renders an explanation: the whole queue under the first policy, with features, and the choices of the others.
pub fn render(e: &Explanation) -> String {
    let seconds = e.offset_ms / 1000;
    let mut text = format!(
        "request {} of {} at {:02}:{:02}:{:02}, slot {}, region {}, gender {}, age {}, at {} values\n",
        e.request_id,
        e.log,
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        e.slot_id,
        e.region,
        e.gender,
        e.age,
        e.told
    );
    let Some((first, others)) = e.views.split_first() else { return text };
    let _ = writeln!(text, "\n{} (eCPM units; the best auction ad is worth {:.1}):\n", first.policy, first.price);
    let _ = writeln!(
        text,
        "     {:>10}  {:8}  {:>9}  {:>6}  {:>9}  {:>11}  {:>8}  {:>8}  {:>8}  {:>8}",
        "ad", "type", "bid", "boost", "ecpm", "delivered", "planned", "lag", "price", "penalty"
    );
    for (i, c) in first.candidates.iter().enumerate() {
        let place = match i {
            0 => "show",
            1 => "next",
            _ => "",
        };
        let _ = write!(
            text,
            "{place:4} {:>10}  {:8}  {:>9.1}  {:>6.2}  {:>9.1}",
            c.ad_id,
            if c.kind == "C" { "contract" } else { "auction" },
            c.bid,
            c.boost,
            c.ecpm
        );
        if let Some(s) = &c.contract {
            let or_dash = |v: Option<f64>, digits: usize| v.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            let _ = write!(
                text,
                "  {:>11}  {:>7} %  {:>8}  {:>8.1}  {:>8.1}",
                format!("{:.0}/{:.0}", s.observed, s.owed),
                or_dash(s.planned.map(|p| 100.0 * p), 1),
                or_dash(s.lag, 1),
                s.price,
                s.penalty
            );
        }
        text.push('\n');
    }
    for c in first.candidates.iter().filter(|c| !c.features.is_empty()) {
        let _ = writeln!(text, "\nfeatures of {}: {}", c.ad_id, features(c));
    }
    if !others.is_empty() {
        text.push_str("\nothers, each with its own deliveries so far:\n");
    }
    let width = others.iter().map(|view| view.policy.len()).max().unwrap_or(0);
    for view in others {
        let said =
            |c: Option<&Candidate>| c.map_or("-".to_owned(), |c| format!("{} ({} {:.1})", c.ad_id, c.kind, c.bid));
        let _ = writeln!(
            text,
            "     {:width$}  shows {}, then {}",
            view.policy,
            said(view.candidates.first()),
            said(view.candidates.get(1))
        );
    }
    text
}

fn features(c: &Candidate) -> String {
    let named = c.features.iter().map(|(name, value)| format!("{name} {:.3}", value.as_f64().unwrap_or(f64::NAN)));
    named.collect::<Vec<_>>().join(", ")
}
