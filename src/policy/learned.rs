//! The learned policy: what it is made of, and its scores.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::env::outlook::{self, OUTLOOK_NAMES, WIDE};
use crate::env::{ContractMoment, FEATURE_NAMES, FEATURES, KnownDay, Lesson, Moment, Replay, Terms, Visit, Vocabulary};
use crate::formulas::host::{auction_factor, auction_slope, bid, bid_slope, sigmoid};
use crate::plan::Horizon;
use crate::settings::{self, ScoreMode};

use super::net::{HostNet, Shape, Table};
use super::{Done, Policy, Replanner, ReplannerState, Work, pack, start, unpack};

/// Everything about a learned policy but its weights and its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    pub score_mode: ScoreMode,
    pub policy: settings::Policy,
    pub vocabulary: Vocabulary,
}

/// Rows of the embeddings of gender and age.
const GENDERS: u32 = 3;
const AGES: u32 = 10;
/// Nothing of a network is wider.
const WIDEST: usize = 1 << 14;

impl PolicySpec {
    /// Checks what parsing cannot. Comes first: the shape of what this refuses cannot be worked out.
    ///
    /// # Errors
    /// A network without hidden units, or larger than any that this program writes.
    pub fn check(&self) -> anyhow::Result<()> {
        let p = &self.policy;
        anyhow::ensure!(p.hidden > 0, "its network has no hidden units");
        for width in [p.hidden, p.ad_embedding, p.traffic_embedding] {
            anyhow::ensure!(width <= WIDEST, "its network is larger than any that this program writes");
        }
        Ok(())
    }

    /// Width of the rows that the actor sees.
    pub fn features(&self) -> usize {
        if self.policy.outlook { WIDE } else { FEATURES }
    }

    /// Names of what the actor sees, in order.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let beyond: &[&str] = if self.policy.outlook { &OUTLOOK_NAMES } else { &[] };
        FEATURE_NAMES.iter().chain(beyond).copied().collect()
    }

    /// Shape of the actor's network.
    pub fn actor_shape(&self) -> Shape {
        let mut tables = Vec::new();
        if self.policy.ad_embedding > 0 {
            tables.push(Table { rows: self.vocabulary.ads.len() + 1, width: self.policy.ad_embedding });
        }
        if self.policy.traffic_embedding > 0 {
            let width = self.policy.traffic_embedding;
            let fixed = [GENDERS as usize, AGES as usize];
            for rows in [self.vocabulary.slots.len() + 1, self.vocabulary.regions.len() + 1].into_iter().chain(fixed) {
                tables.push(Table { rows, width });
            }
        }
        Shape { features: self.features(), tables, hidden: self.policy.hidden, outputs: 1 }
    }

    /// The actor before training: what was learned once for every world, where the settings want that and it is of this shape; else
    /// its output is about zero, so bids stand where `initial_bid` or the warm start puts them.
    pub fn initial_actor(&self, seed: u64) -> Vec<f32> {
        if let Some(start) = start::for_spec(self) {
            return start;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(0xAC70);
        self.actor_shape().initial(&mut rng, 0.02, 0.0)
    }

    /// Returns, of each embedding table, the rows of this spec and of `other` that stand for the same id; row 0 stands for unknown
    /// ids in both.
    pub fn embedding_rows(&self, other: &Self) -> Vec<(String, Vec<(u32, u32)>)> {
        fn shared<K: Ord>(own: &BTreeMap<K, u32>, other: &BTreeMap<K, u32>) -> Vec<(u32, u32)> {
            let both = own.iter().filter_map(|(id, &row)| Some((row, *other.get(id)?)));
            std::iter::once((0, 0)).chain(both).collect()
        }
        let fixed = |rows: u32| (0..rows).map(|row| (row, row)).collect();
        let (own, other) = (&self.vocabulary, &other.vocabulary);
        let mut tables: Vec<Vec<(u32, u32)>> = Vec::new();
        if self.policy.ad_embedding > 0 {
            tables.push(shared(&own.ads, &other.ads));
        }
        if self.policy.traffic_embedding > 0 {
            tables.extend([shared(&own.slots, &other.slots), shared(&own.regions, &other.regions)]);
            tables.extend([fixed(GENDERS), fixed(AGES)]);
        }
        tables.into_iter().enumerate().map(|(k, rows)| (format!("embedding{k}"), rows)).collect()
    }

    /// Auction ads of a queue that are scored.
    pub fn auction_candidates(&self) -> usize {
        match self.score_mode {
            ScoreMode::Contract => 1,
            ScoreMode::All => self.policy.auction_candidates.max(1),
        }
    }

    /// Writes the ids that the actor's tables look up, for an ad on a request.
    pub fn push_ids(&self, visit: &Visit, ad: u32, ids: &mut Vec<u32>) {
        if self.policy.ad_embedding > 0 {
            ids.push(ad);
        }
        if self.policy.traffic_embedding > 0 {
            let [slot, region] = visit.place;
            ids.extend([slot, region, visit.gender.into(), visit.age.into()].map(u32::from));
        }
    }
}

fn logit(share: f64) -> f64 {
    (share / (1.0 - share)).ln()
}

/// What is added to the logit of contract `j`'s bid before the network on the current request: the newest plan, the controller's term
/// `pacing` where the settings want one, and the episode's error of the start.
pub fn lift(policy: &settings::Policy, replay: &Replay, j: usize, pacing: f64) -> f64 {
    let start = f64::from(replay.episode.start_error[j] + replay.state.replanned(j));
    if policy.pacing { start + pacing } else { start }
}

/// How network outputs become scores, for one day. Money in minor units per impression.
///
/// A contract's bid is `low + (penalty - low) * sigmoid(base + lift + f)` for an impression that is still owed in full, plus the
/// worth of the predicted click: `base` is the start, [`lift`] what is added before the network's output `f`; `low` is 0 unless negative bids are allowed. Of a fractional last unit the
/// fraction counts. An auction ad's score is its worth times `2 sigmoid(f)`.
#[derive(Debug, Clone)]
pub struct Bids {
    base: Vec<f64>,
    low: Vec<f64>,
    penalty: Vec<f64>,
}

impl Bids {
    pub fn new(day: &KnownDay, settings: &settings::Policy) -> Self {
        let mut bids = Self { base: vec![], low: vec![], penalty: vec![] };
        for c in &day.contracts {
            let low = if settings.negative_bids { -c.penalty.max(day.unit) } else { 0.0 };
            let start = if settings.warm_start { c.price } else { settings.initial_bid * c.penalty };
            let span = c.penalty - low;
            let share = if span > 0.0 { ((start - low) / span).clamp(0.02, 0.98) } else { 0.5 };
            bids.base.push(logit(share));
            bids.low.push(low);
            bids.penalty.push(c.penalty);
        }
        bids
    }

    /// Of contract `j`: the start of the logit, the lowest bid and the highest.
    pub fn terms(&self, j: usize) -> (f64, f64, f64) {
        (self.base[j], self.low[j], self.penalty[j])
    }

    /// What moves the logit of contract `j`'s starting bid to a price, minor units per impression.
    pub fn offset_of_price(&self, j: usize, price: f64) -> f64 {
        let span = self.penalty[j] - self.low[j];
        if span > 0.0 { logit(((price - self.low[j]) / span).clamp(0.02, 0.98)) - self.base[j] } else { 0.0 }
    }

    /// What the logit of contract `j`'s bid moves by with its price.
    pub fn slope_of_price(&self, j: usize, price: f64) -> f64 {
        let span = self.penalty[j] - self.low[j];
        if span <= 0.0 {
            return 0.0;
        }
        let share = ((price - self.low[j]) / span).clamp(0.02, 0.98);
        1.0 / (span * share * (1.0 - share))
    }

    /// The bid of contract `j` without its click worth when `unit` of the next impression is still owed, and its
    /// derivative by `output`, the network's output plus the lift.
    pub fn contract(&self, j: usize, output: f64, unit: f64) -> (f64, f64) {
        let share = sigmoid(self.base[j] + output);
        let (low, high) = (self.low[j], self.penalty[j]);
        (bid(share, low, high, unit), bid_slope(share, low, high, unit))
    }

    /// The factor on an auction ad's worth and its derivative by the network's output.
    pub fn auction(output: f64) -> (f64, f64) {
        let share = sigmoid(output);
        (auction_factor(share), auction_slope(share))
    }
}

/// A learned policy that serves or explores.
pub struct LearnedPolicy {
    spec: Arc<PolicySpec>,
    net: HostNet,
    bids: Option<Bids>,
    terms: Vec<Terms>,
    features: Vec<f32>,
    ids: Vec<u32>,
    outputs: Vec<f32>,
    lifts: Vec<f64>,
    /// What is added to the logit of each contract's bid until the next [`LearnedPolicy::hold`].
    held: Option<Vec<f64>>,
    replanner: Option<Replanner>,
}

impl LearnedPolicy {
    pub fn new(spec: Arc<PolicySpec>, actor: Vec<f32>) -> Self {
        let net = HostNet::new(spec.actor_shape(), actor);
        Self {
            spec,
            net,
            bids: None,
            terms: vec![],
            features: vec![],
            ids: vec![],
            outputs: vec![],
            lifts: vec![],
            held: None,
            replanner: None,
        }
    }

    pub fn spec(&self) -> &Arc<PolicySpec> {
        &self.spec
    }

    /// Takes newer parameters.
    pub fn set_params(&mut self, actor: &[f32]) {
        self.net.set_params(actor);
    }

    /// Goes on with a replay that this or another policy had begun, with its plan.
    pub fn resume(&mut self, replay: &Replay, replanner: Option<Replanner>) {
        self.held = None;
        self.bids = Some(Bids::new(&replay.day, &self.spec.policy));
        self.terms = Terms::all(&replay.day, &replay.episode, self.spec.policy.warm_start);
        self.replanner = replanner;
    }

    /// Gives the plan of the replay under way back.
    pub fn pause(&mut self) -> Option<Replanner> {
        self.replanner.take()
    }

    /// The planner of a replay that begins, where the settings want one. One that advises always looks ahead in the same way: its
    /// prices are what the network has learned to read.
    pub fn replanner(&self, replay: &Replay, horizon: Horizon) -> Option<Replanner> {
        let Horizon { memory_s, .. } = Horizon::default();
        let horizon = if self.spec.policy.outlook { Horizon { memory_s, ..horizon } } else { horizon };
        self.spec
            .policy
            .replans()
            .then(|| Replanner::begin(replay, replay.day.sample.clone(), horizon, &self.spec.policy))
    }

    /// Works out every contract's bid at the current request and holds it for the requests to come. For policies whose
    /// outputs do not depend on the request.
    pub fn hold(&mut self, replay: &Replay) {
        self.infer(replay, 0..replay.day.contracts.len());
        let held = self.outputs.iter().zip(&self.lifts).map(|(&output, lift)| f64::from(output) + lift);
        self.held = Some(held.collect());
    }

    /// What the network sees of contracts at the current request, and where their bids start; no labels yet.
    pub fn look(&mut self, replay: &Replay, contracts: &[usize]) -> Lesson {
        self.see(replay, contracts.iter().copied());
        let bids = self.bids.as_ref().expect("begin() came first");
        let start = |(&j, lift): (&usize, &f64)| (bids.terms(j).0 + lift) as f32;
        Lesson {
            features: self.features.clone(),
            ids: self.ids.clone(),
            starts: contracts.iter().zip(&self.lifts).map(start).collect(),
            ..Lesson::default()
        }
    }

    /// Writes the rows, ids and lifts of contracts.
    fn see(&mut self, replay: &Replay, contracts: impl Iterator<Item = usize>) {
        let moment = Moment::new(replay);
        let width = self.spec.features();
        self.features.clear();
        self.ids.clear();
        self.lifts.clear();
        for j in contracts {
            let of = moment.of(j, &self.terms[j]);
            let at = self.features.len();
            self.features.resize(at + width, 0.0);
            write_row(&self.spec.policy, replay, &of, j, &mut self.features[at..]);
            self.lifts.push(lift(&self.spec.policy, replay, j, of.pacing));
            self.spec.push_ids(replay.visit(), replay.day.contracts[j].vocabulary, &mut self.ids);
        }
    }

    fn infer(&mut self, replay: &Replay, contracts: impl Iterator<Item = usize>) {
        self.see(replay, contracts);
        self.outputs.resize(self.lifts.len(), 0.0);
        self.net.forward(&self.features, &self.ids, &mut self.outputs);
    }
}

/// How many of contract `j`'s impressions count as delivered: those that are observed, or, with the outlook, also those under
/// way.
fn counted(policy: &settings::Policy, replay: &Replay, j: usize) -> f32 {
    let state = &replay.state;
    if policy.outlook { state.delivered[j] } else { state.observed[j] }
}

/// How much of contract `j`'s next impression is owed, as far as the policy knows.
pub fn unit_owed(policy: &settings::Policy, replay: &Replay, j: usize) -> f64 {
    f64::from((replay.episode.owed[j] - counted(policy, replay, j)).clamp(0.0, 1.0))
}

/// Writes the row that the actor sees of contract `j`.
pub fn write_row(policy: &settings::Policy, replay: &Replay, of: &ContractMoment, j: usize, out: &mut [f32]) {
    let (base, beyond) = out.split_at_mut(FEATURES);
    of.write(counted(policy, replay, j), base);
    if policy.outlook {
        outlook::write(replay, j, beyond);
    }
}

impl Policy for LearnedPolicy {
    fn begin(&mut self, replay: &Replay) {
        let horizon = if self.spec.policy.outlook { Horizon::default() } else { replay.day.horizon };
        let replanner = self.replanner(replay, horizon);
        self.resume(replay, replanner);
    }

    fn replan(&mut self, replay: &Replay) -> Option<&[f32]> {
        self.replanner.as_mut()?.advance(replay, self.bids.as_ref()?)
    }

    fn save(&self) -> Vec<u8> {
        self.replanner.as_ref().map_or_else(Vec::new, |replanner| pack(&replanner.state()))
    }

    fn load(&mut self, replay: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        let Some(replanner) = &mut self.replanner else {
            anyhow::ensure!(saved.is_empty(), "the saved state is another kind of policy's");
            return Ok(());
        };
        let state: ReplannerState = unpack(saved)?;
        anyhow::ensure!(state.fits(replay.day.contracts.len()), "saved prices of another day");
        replanner.load(state);
        Ok(())
    }

    fn hand_out(&mut self, on: bool) {
        self.replanner.iter_mut().for_each(|replanner| replanner.hand_out(on));
    }

    fn take_work(&mut self) -> Option<Work> {
        self.replanner.as_mut()?.take_work()
    }

    fn finish_work(&mut self, done: Done) {
        if let Some(replanner) = &mut self.replanner {
            replanner.finish_work(done);
        }
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        if let Some(held) = &self.held {
            let bids = self.bids.as_ref().expect("begin() came first");
            for (c, score) in replay.candidates().iter().zip(contracts) {
                let j = c.contract as usize;
                let unit = unit_owed(&self.spec.policy, replay, j);
                *score = bids.contract(j, held[j], unit).0 + c.click;
            }
            return;
        }
        let score_auctions = self.spec.score_mode == ScoreMode::All;
        let rows = contracts.len() + if score_auctions { auctions.len() } else { 0 };
        if rows == 0 {
            return;
        }
        self.see(replay, replay.candidates().iter().map(|c| c.contract as usize));
        if score_auctions {
            let moment = Moment::new(replay);
            for (a, &worth) in replay.auctions().iter().zip(&*auctions) {
                let at = self.features.len();
                self.features.resize(at + self.spec.features(), 0.0);
                moment.auction(worth, &mut self.features[at..at + FEATURES]);
                self.spec.push_ids(replay.visit(), self.spec.vocabulary.ad(a.ad_id), &mut self.ids);
            }
        }
        self.outputs.resize(rows, 0.0);
        self.net.forward(&self.features, &self.ids, &mut self.outputs);
        let bids = self.bids.as_ref().expect("begin() came first");
        let lifted = self.outputs.iter().zip(&self.lifts).map(|(output, lift)| f64::from(*output) + lift);
        for ((c, score), output) in replay.candidates().iter().zip(&mut *contracts).zip(lifted) {
            let j = c.contract as usize;
            let unit = unit_owed(&self.spec.policy, replay, j);
            *score = bids.contract(j, output, unit).0 + c.click;
        }
        if score_auctions {
            for (score, output) in auctions.iter_mut().zip(&self.outputs[contracts.len()..]) {
                *score *= Bids::auction(f64::from(*output)).0;
            }
        }
    }

    fn auction_candidates(&self) -> usize {
        self.spec.auction_candidates()
    }

    fn features(&self) -> &[f32] {
        &self.features
    }
}
