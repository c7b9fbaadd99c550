//! Explanation of why an ad was shown: one request of a replayed day, with the inputs and bids of every policy.
//!
//! The day is replayed up to the request, because a policy's bids depend on everything that it has shown before. Each policy
//! replays the day by itself, so a baseline decides at the deliveries that it made itself.

mod text;

use std::sync::Arc;

use anyhow::bail;
use serde::Serialize;

use crate::env::{FEATURES, Replay};
use crate::evaluate::{ComparedPolicy, TestDay};
use crate::log::schema::AdType;
use crate::plan::Plan;
use crate::policy::witness::{Scored, Watcher, Witness, named_features};
use crate::policy::{Policy, baselines, replay_day};
use crate::settings::Settings;

pub use text::render;

/// A candidate as a policy scored it. Money in eCPM units, minor units per 1,000 impressions.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    pub ad_id: u64,
    /// `C` or `A`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Score before the platform's boost: a contract's bid, or an auction ad's eCPM.
    pub bid: f64,
    pub boost: f64,
    pub ecpm: f64,
    /// For contracts only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<ContractState>,
    /// For contracts of a learned policy only.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub features: serde_json::Map<String, serde_json::Value>,
}

/// State of a contract at the request.
#[derive(Debug, Clone, Serialize)]
pub struct ContractState {
    pub owed: f64,
    /// Impressions shown, and those that the policy had observed.
    pub delivered: f64,
    pub observed: f64,
    /// Share of the delivery planned by then; `null` if nothing was forecast.
    pub planned: Option<f64>,
    /// Planned minus observed, in impressions; positive if it lags behind.
    pub lag: Option<f64>,
    /// The training days' price, and the worth of the predicted click, in eCPM units.
    pub price: f64,
    pub click: f64,
    /// In eCPM units.
    pub penalty: f64,
}

/// One policy's view of the request.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    pub policy: String,
    /// Best first; the first one was shown.
    pub candidates: Vec<Candidate>,
    /// The best auction ad's eCPM, which a contract ad displaces.
    pub price: f64,
}

/// Explanation of one request.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    pub log: String,
    /// The values that the policies are told.
    pub told: String,
    pub request_id: u64,
    /// Milliseconds from midnight.
    pub offset_ms: u64,
    pub slot_id: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    /// The requested policy first, then the others.
    pub views: Vec<View>,
}

/// Watcher that waits for one request.
struct Ear {
    request_id: u64,
    heard: Option<View>,
}

impl Watcher for Ear {
    fn wants(&self, replay: &Replay) -> bool {
        replay.visit().request_id == self.request_id
    }

    fn see(&mut self, replay: &Replay, ranked: &[Scored], features: &[f32]) {
        let rows = |j: usize| {
            let at = replay.candidates().iter().position(|c| c.contract as usize == j)?;
            features.get(at * FEATURES..(at + 1) * FEATURES)
        };
        let candidates = ranked.iter().map(|scored| {
            let row = scored.contract.and_then(rows).unwrap_or_default();
            Candidate {
                ad_id: scored.ad_id,
                kind: match scored.kind {
                    AdType::Contract => "C",
                    AdType::Auction => "A",
                },
                bid: 1000.0 * scored.score,
                boost: scored.boost,
                ecpm: scored.ecpm,
                contract: scored.contract.map(|j| ContractState::of(replay, j, scored.worth)),
                features: named_features(row).map(|(name, value)| (name.to_owned(), value.into())).collect(),
            }
        });
        let heard = View { policy: String::new(), candidates: candidates.collect(), price: 1000.0 * replay.best() };
        self.heard = Some(heard);
    }
}

impl ContractState {
    fn of(replay: &Replay, j: usize, click: f64) -> Self {
        let contract = &replay.day.contracts[j];
        let [owed, delivered, observed] = [replay.episode.owed[j], replay.state.delivered[j], replay.state.observed[j]];
        // The pace by which the controller and the features go.
        let total = contract.pace.total();
        let planned = (total > 0.0).then(|| contract.pace.before(replay.observed_until()) / total);
        Self {
            owed,
            delivered,
            observed,
            planned,
            lag: planned.map(|share| share * owed - observed),
            price: 1000.0 * contract.price,
            click: 1000.0 * click,
            penalty: 1000.0 * contract.penalty,
        }
    }
}

/// Explains a request of a day: the policies `entries`, then the named baselines under `plan`.
///
/// # Errors
/// If the request is not on the day, or nothing could be shown on it.
pub fn explain(
    day: &TestDay,
    request_id: u64,
    policies: &[ComparedPolicy],
    plan: &Plan,
    names: &[String],
    settings: &Settings,
) -> anyhow::Result<Explanation> {
    let Some(request) = day.log().requests().iter().find(|r| r.request_id == request_id) else {
        bail!("{} has no usable request {request_id}", day.log().name());
    };
    let options = day.options(&settings.env);
    let mut views = Vec::new();
    let mut ask = |name: &str, predicts: bool, plan: &Plan, vocabulary, policy: &mut dyn Policy| {
        let mut ear = Ear { request_id, heard: None };
        let model = day.model(plan, Arc::new(vocabulary)).seen_by(predicts);
        replay_day(&model, &mut Witness::new(policy, &mut ear), options.seen_by(predicts), &mut |_| {});
        views.extend(ear.heard.map(|view| View { policy: name.to_owned(), ..view }));
    };
    for ComparedPolicy { name, policy, .. } in policies {
        ask(name, policy.predicts(), policy.plan(), policy.vocabulary(), &mut *policy.policy());
    }
    for name in names {
        match baselines::named(name, Some(plan)) {
            Ok(mut policy) => {
                let predicts = name.ends_with(baselines::PREDICTING);
                // The baseline has its own gains in the plan.
                ask(name, predicts, plan, crate::env::Vocabulary::default(), &mut *policy);
            }
            Err(why) => tracing::warn!("left out: {why}"),
        }
    }
    if views.is_empty() {
        bail!("nothing could be shown on request {request_id}: no auction ad, and no contract whose rate let it in");
    }
    Ok(Explanation {
        log: day.log().name().to_owned(),
        told: day.told().to_string(),
        request_id,
        offset_ms: request.ts_ms - day.log().day().start_ms,
        slot_id: request.slot_id,
        region: request.region,
        gender: request.gender,
        age: request.age,
        views,
    })
}
