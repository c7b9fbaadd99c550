//! Counters of a server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;

use crate::log::schema::AdType;
use crate::score::Decision;

/// Upper ends of the latency histogram's bins, seconds.
const BINS: [f64; 10] = [0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0];

/// All are monotone; each is read and written alone, so the orderings are Relaxed.
#[derive(Debug, Default)]
pub struct Metrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    latency: [AtomicU64; BINS.len() + 1],
    latency_us: AtomicU64,
    contracts: AtomicU64,
    auctions: AtomicU64,
    unfilled: AtomicU64,
    candidates: AtomicU64,
    exposures: AtomicU64,
    swaps: AtomicU64,
    failed_swaps: AtomicU64,
    replans: AtomicU64,
    saved_ms: AtomicU64,
}

/// How many rows are not in the journal's tables; counters as those above.
#[derive(Debug, Default)]
pub struct Omitted {
    /// The disk did not take them in time.
    pub dropped: AtomicU64,
    /// Requests that are there already.
    pub repeated: AtomicU64,
    /// Exposures of auction ads whose requests are not remembered any more.
    pub without_price: AtomicU64,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Metrics {
    pub fn answered(&self, route: &'static str, status: StatusCode, took: Duration) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry((route, status.as_u16())).or_default() += 1;
        if route == "score" {
            let bin = BINS.partition_point(|&end| end < took.as_secs_f64());
            add(&self.latency[bin], 1);
            add(&self.latency_us, took.as_micros() as u64);
        }
    }

    pub fn decided(&self, decision: &Decision) {
        add(&self.candidates, decision.scores.len() as u64);
        add(
            match decision.chosen {
                Some((_, AdType::Contract)) => &self.contracts,
                Some((_, AdType::Auction)) => &self.auctions,
                None => &self.unfilled,
            },
            1,
        );
    }

    pub fn exposed(&self, news: u64) {
        add(&self.exposures, news);
    }

    pub fn swapped(&self) {
        add(&self.swaps, 1);
    }

    pub fn swap_failed(&self) {
        add(&self.failed_swaps, 1);
    }

    pub fn replanned(&self) {
        add(&self.replans, 1);
    }

    pub fn saved(&self, now_ms: u64) {
        self.saved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The exposition; `deliveries` are ad id, true and observed count of each contract.
    pub fn text(&self, version: &str, omitted: &Omitted, deliveries: impl Iterator<Item = (u64, f64, f64)>) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(&mut out, "admix_answers_total", "counter", "HTTP answers by route and status.");
        for ((route, status), n) in &*self.answers.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(out, "admix_answers_total{{route=\"{route}\",status=\"{status}\"}} {n}");
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        head(&mut out, "admix_score_seconds", "histogram", "Time to answer POST /v1/score, body included.");
        let mut sum = 0;
        for (bin, count) in self.latency.iter().enumerate() {
            sum += of(count);
            let end = BINS.get(bin).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "admix_score_seconds_bucket{{le=\"{end}\"}} {sum}");
        }
        let _ = writeln!(out, "admix_score_seconds_sum {}", of(&self.latency_us) as f64 / 1e6);
        let _ = writeln!(out, "admix_score_seconds_count {sum}");
        head(&mut out, "admix_decisions_total", "counter", "Decisions by what was chosen.");
        for (chosen, n) in [("contract", &self.contracts), ("auction", &self.auctions), ("nothing", &self.unfilled)] {
            let _ = writeln!(out, "admix_decisions_total{{chosen=\"{chosen}\"}} {}", of(n));
        }
        for (name, counter, help) in [
            ("admix_candidates_total", &self.candidates, "Candidates scored."),
            ("admix_exposures_total", &self.exposures, "Exposures taken in, repeats left out."),
            ("admix_swaps_total", &self.swaps, "Policies put in place while serving."),
            ("admix_failed_swaps_total", &self.failed_swaps, "New policies that could not be used."),
            ("admix_replans_total", &self.replans, "Prices solved anew beside serving."),
            ("admix_journal_dropped_total", &omitted.dropped, "Rows that the journal's disk did not take in time."),
            (
                "admix_journal_repeated_total",
                &omitted.repeated,
                "Requests that came before, and are not written again.",
            ),
            (
                "admix_journal_without_price_total",
                &omitted.without_price,
                "Exposures of auction ads that are not in the journal: their requests are forgotten.",
            ),
        ] {
            head(&mut out, name, "counter", help);
            let _ = writeln!(out, "{name} {}", of(counter));
        }
        head(&mut out, "admix_saved_timestamp_seconds", "gauge", "When the counts were saved last.");
        let _ = writeln!(out, "admix_saved_timestamp_seconds {}", of(&self.saved_ms) as f64 / 1e3);
        head(&mut out, "admix_policy_info", "gauge", "The policy that serves.");
        let _ = writeln!(out, "admix_policy_info{{version=\"{version}\"}} 1");
        head(
            &mut out,
            "admix_contract_delivered",
            "gauge",
            "Impressions of a contract today, as counted and as observed.",
        );
        for (ad_id, delivered, observed) in deliveries {
            let _ = writeln!(out, "admix_contract_delivered{{ad_id=\"{ad_id}\",count=\"true\"}} {delivered}");
            let _ = writeln!(out, "admix_contract_delivered{{ad_id=\"{ad_id}\",count=\"observed\"}} {observed}");
        }
        out
    }
}
