//! Entries of a dictionary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::files::replace;
use crate::log::draw;
use crate::log::schema::{AdType, ControlRow, DAY_MS, QueueEntry, TrackRow};
use crate::plan::Plan;
use crate::score::{Decision, Scorer, ServedDay};

use super::bucket::{bucket_of, pctr_of};
use super::guard::Refusal;

/// Number of request ids tried to find one whose queue a contract enters.
const DRAWS: u64 = 100_000;

/// Look-up key of an entry; `None` is written `*` and matches everything. The exact key is looked up first, then the ad in
/// the slot, then the ad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub ad_id: u64,
    pub slot_id: Option<u32>,
    pub pac_bucket: Option<u32>,
}

/// An entry of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub key: Key,
    /// Score in units of eCPM.
    pub score: f64,
    /// Planned play probability, and probability of entering a queue.
    pub theta: f64,
    pub rate: f64,
    /// Unix milliseconds.
    pub valid_from_ms: u64,
}

/// Returns the request on which an entry's score is computed: the contract at a click probability, for a viewer that it targets,
/// with an auction ad at the price that the plan expects for the hour.
///
/// `rate_seed` draws whether the contract enters a queue: the request's id is the first one that it enters.
pub fn probe(contract: &ControlRow, (slot_id, pctr): (u32, f64), ts_ms: u64, worth: f64, rate_seed: u64) -> TrackRow {
    let first = |list: &[u32]| list.first().copied().unwrap_or(0);
    let entry = |ad_id, ad_type, ecpm, pctr| QueueEntry { ad_id, ad_type, ecpm, pctr, filter: 0, boost: 1.0 };
    let expected = super::guard::at_expected_price(worth);
    TrackRow {
        request_id: (0..DRAWS).find(|&id| draw::passes(rate_seed, id, contract.ad_id, contract.rate)).unwrap_or(0),
        ts_ms,
        slot_id,
        region: first(&contract.targeting.region),
        gender: first(&contract.targeting.gender) as u8,
        age: first(&contract.targeting.age) as u8,
        user_id: None,
        queue: vec![
            entry(contract.ad_id, AdType::Contract, 0.0, pctr),
            entry(expected.ad_id, AdType::Auction, expected.ecpm, 0.0),
        ],
    }
}

/// Returns the keys needed according to the information before the day: for each contract the slots that it may serve by the
/// forecast and the training days, and the buckets between its lowest and highest click probability on the training days.
fn keys(day: &ServedDay, plan: &Plan) -> BTreeMap<u64, (BTreeSet<u32>, BTreeSet<u32>)> {
    let forecast = day.forecast.as_ref().unwrap_or(&plan.forecast);
    let mut keys: BTreeMap<u64, (BTreeSet<u32>, BTreeSet<u32>)> = BTreeMap::new();
    for c in &day.contracts {
        let (slots, buckets) = keys.entry(c.ad_id).or_default();
        for n in &forecast.nodes {
            if n.serves(c.ad_id, &c.targeting) {
                slots.insert(n.slot_id);
            }
        }
        slots.extend(&c.targeting.slot);
        buckets.extend(c.pctr.map(bucket_of));
        buckets.insert(bucket_of(plan.contracts.get(&c.ad_id).map_or(plan.unseen.pctr, |known| known.pctr)));
    }
    for sampled in &plan.sample.days {
        for row in plan.sample.rows(sampled) {
            for (&at, &pctr) in row.contracts.iter().zip(row.pctr) {
                if let Some((slots, buckets)) = keys.get_mut(&sampled.contracts[at as usize].ad_id) {
                    slots.insert(row.kind.0);
                    buckets.insert(bucket_of(pctr.into()));
                }
            }
        }
    }
    for (_, buckets) in keys.values_mut() {
        if let (Some(&least), Some(&most)) = (buckets.first(), buckets.last()) {
            // A sample does not contain the extremes of a day.
            buckets.extend(least.saturating_sub(2)..=(most + 2).min(super::BUCKETS - 1));
        }
    }
    keys
}

/// Returns the entries at a scorer's state from `ts_ms` on, for contracts that may be shown within `ttl_s` and are not at
/// their cap.
///
/// `scorer` is stateless, so every entry is scored at the same state.
///
/// # Errors
/// [`Refusal::Draws`], [`Refusal::NotFinite`].
pub fn entries(scorer: &mut Scorer, day: &ServedDay, plan: &Plan, ts_ms: u64, ttl_s: f64) -> anyhow::Result<Vec<Row>> {
    Refusal::of_draws(scorer)?;
    let keys = keys(day, plan);
    let start_ms = day.day.start_ms;
    let until = ts_ms + (ttl_s * 1000.0) as u64;
    let rate_seed = scorer.replay().episode.rate_seed;
    let thetas: Vec<f64> = scorer.replay().day.contracts.iter().map(|c| c.theta).collect();
    let price_by_hour = scorer.replay().day.price_by_hour.clone();
    let mut decision = Decision::default();
    let mut rows = Vec::new();
    for (c, theta) in day.contracts.iter().zip(thetas) {
        if c.start_ms >= until || c.end_ms <= ts_ms {
            continue;
        }
        let valid_from_ms = ts_ms.max(c.start_ms);
        let hour = ((valid_from_ms - start_ms).min(DAY_MS - 1) / 3_600_000) as usize;
        let (slots, buckets) = &keys[&c.ad_id];
        let mut score = |slot_id: u32, bucket: u32| -> anyhow::Result<Option<f64>> {
            let request = probe(c, (slot_id, pctr_of(bucket)), valid_from_ms, price_by_hour[hour], rate_seed);
            scorer.decide(&request, &mut decision).map_err(|bad| anyhow::anyhow!("{}: {}", bad.value, bad.rule))?;
            let score = scorer.raw_score(c.ad_id);
            match score {
                Some(score) if !score.is_finite() => Err(Refusal::NotFinite { ad_id: c.ad_id, score }.into()),
                score => Ok(score),
            }
        };
        let middle = bucket_of(plan.contracts.get(&c.ad_id).map(|k| k.pctr).or(c.pctr).unwrap_or(plan.unseen.pctr));
        let mut push = |slot_id: Option<u32>, pac_bucket: Option<u32>, score: Option<f64>| {
            let key = Key { ad_id: c.ad_id, slot_id, pac_bucket };
            rows.extend(score.map(|score| Row { key, score, theta, rate: c.rate, valid_from_ms }));
        };
        for &slot_id in slots {
            for &bucket in buckets {
                push(Some(slot_id), Some(bucket), score(slot_id, bucket)?);
            }
            push(Some(slot_id), None, score(slot_id, middle)?);
        }
        let any = slots.first().copied().unwrap_or(0);
        push(None, None, score(any, middle)?);
    }
    Ok(rows)
}

/// An entry at the current state of a serving scorer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveEntry {
    pub ad_id: u64,
    pub slot_id: Option<u32>,
    pub pac_bucket: Option<u32>,
    /// Score in units of eCPM.
    pub score: f64,
    pub score_kind: &'static str,
    pub theta: f64,
    pub rate: f64,
    pub valid_from_ms: u64,
    pub model_version: String,
}

/// Scores a key at the current state, which does not change; `None` if the ad is not a contract, is out of flight or at its
/// cap, or has no finite score.
///
/// # Errors
/// [`Refusal::Draws`].
pub fn live(
    scorer: &mut Scorer,
    ad_id: u64,
    slot_id: Option<u32>,
    bucket: Option<u32>,
) -> Result<Option<LiveEntry>, Refusal> {
    Refusal::of_draws(scorer)?;
    Ok(live_entry(scorer, ad_id, slot_id, bucket))
}

fn live_entry(scorer: &mut Scorer, ad_id: u64, slot_id: Option<u32>, bucket: Option<u32>) -> Option<LiveEntry> {
    let j = scorer.contracts().iter().position(|c| c.ad_id == ad_id)?;
    let (known, time_ms) = (scorer.replay().day.clone(), scorer.time_ms());
    let (contract, model) = (scorer.contracts()[j].clone(), &known.contracts[j]);
    let mean = if model.click_value > 0.0 { model.mean_click / model.click_value } else { 0.0 };
    let pctr = pctr_of(bucket.unwrap_or_else(|| bucket_of(mean)));
    let slot = slot_id.or_else(|| contract.targeting.slot.first().copied()).unwrap_or(0);
    let hour = ((time_ms - known.start_ms).min(DAY_MS - 1) / 3_600_000) as usize;
    let rate_seed = scorer.replay().episode.rate_seed;
    let request = probe(&contract, (slot, pctr), time_ms, known.price_by_hour[hour], rate_seed);
    scorer.probe(&request, &mut Decision::default()).ok()?;
    let score = scorer.raw_score(ad_id).filter(|score| score.is_finite())?;
    Some(LiveEntry {
        ad_id,
        slot_id,
        pac_bucket: bucket,
        score,
        score_kind: if slot_id.is_some() && bucket.is_some() { "exact" } else { "fallback" },
        theta: model.theta,
        rate: model.rate,
        valid_from_ms: time_ms,
        model_version: scorer.version().to_owned(),
    })
}

/// Writes a dictionary by rename.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, rows: &[Row], ttl_s: f64, version: &str) -> anyhow::Result<()> {
    let mut text =
        "ad_id\tslot_id\tpac_bucket\tscore\tscore_kind\ttheta\trate\tvalid_from_ms\tttl_s\tmodel_version\n".to_owned();
    let any = |part: Option<u32>| part.map_or_else(|| "*".to_owned(), |part| part.to_string());
    for Row { key, score, theta, rate, valid_from_ms } in rows {
        let kind = if key.pac_bucket.is_some() { "exact" } else { "fallback" };
        let (slot, bucket) = (any(key.slot_id), any(key.pac_bucket));
        let _ = writeln!(
            text,
            "{}\t{slot}\t{bucket}\t{score}\t{kind}\t{theta}\t{rate}\t{valid_from_ms}\t{ttl_s}\t{version}",
            key.ad_id
        );
    }
    replace(path, text.as_bytes()).with_context(|| format!("cannot write the dictionary {}", path.display()))
}
