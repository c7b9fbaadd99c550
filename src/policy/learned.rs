//! The learned policy: its network inputs and its scores.

use std::sync::Arc;

use crate::env::{ContractMoment, FEATURES, Lesson, Moment, Replay, Terms, outlook};
use crate::plan::Horizon;
use crate::settings::{self, ScoreMode};

use super::bids::{Bids, lift};
use super::net::HostNet;
use super::replanner::{Replanner, ReplannerState};
use super::spec::PolicySpec;
use super::{Done, Policy, Work, pack, unpack};

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
    /// Terms added to the logit of each contract's bid until the next [`LearnedPolicy::hold`].
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

    /// Sets newer parameters.
    pub fn set_params(&mut self, actor: &[f32]) {
        self.net.set_params(actor);
    }

    /// Resumes a replay that this or another policy had begun, with its plan.
    pub fn resume(&mut self, replay: &Replay, replanner: Option<Replanner>) {
        self.held = None;
        self.bids = Some(Bids::new(&replay.day, &self.spec.policy));
        self.terms = Terms::all(&replay.day, &replay.episode, self.spec.policy.warm_start);
        self.replanner = replanner;
    }

    /// Returns the plan of the current replay.
    pub fn pause(&mut self) -> Option<Replanner> {
        self.replanner.take()
    }

    /// Creates the planner of a replay that begins, if the settings want one.
    pub fn replanner(&self, replay: &Replay, horizon: Horizon) -> Option<Replanner> {
        self.spec
            .policy
            .replans()
            .then(|| Replanner::begin(replay, replay.day.sample.clone(), horizon, &self.spec.policy))
    }

    /// Computes every contract's bid at the current request and holds it for the next requests. For policies whose
    /// outputs do not depend on the request.
    pub fn hold(&mut self, replay: &Replay) {
        self.infer(replay, 0..replay.day.contracts.len());
        let held = self.outputs.iter().zip(&self.lifts).map(|(&output, lift)| f64::from(output) + lift);
        self.held = Some(held.collect());
    }

    /// Returns the network inputs of contracts at the current request and the starts of their bids, without labels.
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

/// Returns the number of contract `j`'s impressions that count as delivered: the observed ones and, with the outlook, also the
/// unconfirmed ones.
fn counted(policy: &settings::Policy, replay: &Replay, j: usize) -> f64 {
    let state = &replay.state;
    if policy.outlook { state.delivered[j] } else { state.observed[j] }
}

/// Returns the part of contract `j`'s next impression that is owed, as far as the policy knows.
pub fn unit_owed(policy: &settings::Policy, replay: &Replay, j: usize) -> f64 {
    (replay.episode.owed[j] - counted(policy, replay, j)).clamp(0.0, 1.0)
}

/// Writes the actor's input row for contract `j`.
pub fn write_row(policy: &settings::Policy, replay: &Replay, of: &ContractMoment, j: usize, out: &mut [f32]) {
    let (base, beyond) = out.split_at_mut(FEATURES);
    of.write(counted(policy, replay, j) as f32, base);
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
