//! The learner's section: target, data and method of learning.

use serde::{Deserialize, Serialize};

use super::automatic::Automatic;
use super::bounds::{bad, count, within};
use super::load::SettingsError;
use super::ranks::MOST_RANKS;

/// Maximum number of quantiles of a critic; the losses have a buffer of this size on the stack.
pub const MOST_QUANTILES: usize = 256;

/// Target that bids are learned from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The return of the actors' actions.
    #[default]
    Return,
    /// Hindsight prices of the rest of each episode; the critic learns their distribution.
    Hindsight,
    /// Both: the critic learns the return, the bids follow it and the hindsight prices.
    Both,
}

/// Form of the critic's estimate of the return.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Critic {
    /// Quantiles, fitted with the quantile Huber loss.
    #[default]
    Quantile,
    /// Probabilities of fixed atoms, fitted with the cross-entropy to the projected target.
    Categorical,
    /// The mean alone, fitted with the squared error.
    Scalar,
}

impl Critic {
    /// Returns whether the estimate of the return is the mean of the outputs. Otherwise the outputs are logits of atoms, and the
    /// estimate is the mean of that distribution.
    pub fn averages_outputs(self) -> bool {
        match self {
            Self::Quantile | Self::Scalar => true,
            Self::Categorical => false,
        }
    }
}

/// Decomposition of the return that the critic learns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credit {
    /// One return for each contract, from its own rewards.
    #[default]
    Contract,
    /// One return for the whole episode, the sum over the contracts.
    Total,
}

/// Transport by which the gradients of several ranks are averaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collective {
    /// Through shared memory, in the order of the ranks; between nodes through MPI.
    #[default]
    Memory,
    /// By NCCL, where each rank has a GPU.
    Nccl,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Learner {
    pub target: Target,
    /// Seconds of log time between two states of an episode for which hindsight prices are solved.
    pub lesson_every_s: f64,
    /// Standard deviations of the hindsight price, as the critic predicts it, by which bids exceed its mean; 0 with another target.
    pub hedge: f64,
    pub critic: Critic,
    pub credit: Credit,
    /// Updates between two publications of the parameters (m).
    pub publish_every: u64,
    /// States in a batch.
    pub batch: usize,
    /// Steps in a trajectory segment.
    pub segment: usize,
    /// Capacity of the replay pool, steps; fewer if episodes begin so late in short days that their segments are short.
    pub pool: usize,
    /// New samples per update, the replay ratio's inverse times the batch.
    pub samples_per_update: usize,
    /// L2 penalty of the bids towards their start (the controller's bid, if it takes part): the weight of half the squared network
    /// output relative to the expected advantage. The critic is never exact, and bids that are nearly right
    /// should move only where it is certain.
    ///
    /// `"auto"`: 0.3 with `policy.warm_start` or `policy.pacing`, 0 where bids start from nothing.
    pub anchor: Automatic,
    /// Updates in which only the critic learns.
    pub critic_head_start: u64,
    /// Adam's rate for the actor. `"auto"`: 1e-4 with `policy.warm_start`, 1e-3 without.
    pub actor_rate: Automatic,
    /// Adam's rate for the critic.
    pub critic_rate: f64,
    /// Share of both rates that remains at the end of the budget; they decay linearly.
    pub final_rate_share: f64,
    /// Adam's epsilon.
    pub adam_epsilon: f64,
    /// Maximum global gradient norm of the actor.
    pub actor_clip: f64,
    /// Maximum global gradient norm of the critic.
    pub critic_clip: f64,
    /// Update rate of the target critic towards the critic, per update.
    pub target_rate: f64,
    /// Update rate of the averaged actor towards the actor, per update.
    pub average_rate: f64,
    /// Lambda of the returns.
    pub lambda: f64,
    /// Width of the critic's two hidden layers.
    pub critic_hidden: usize,
    /// Quantiles of the quantile critic.
    pub quantiles: usize,
    /// Difference at which the quantile Huber loss changes from quadratic to linear.
    pub kappa: f64,
    /// Atoms of the categorical critic.
    pub atoms: usize,
    /// Threads for a batch; 0 = one per core, and one in serial mode. Several ranks share them.
    pub threads: usize,
    /// Processes of a node that learn together, each with a part of its actors; with those of all nodes they share pool and batches.
    pub ranks: usize,
    /// Transport that averages the gradients of several ranks.
    pub collective: Collective,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            target: Target::Return,
            lesson_every_s: 1800.0,
            hedge: 0.0,
            critic: Critic::Quantile,
            credit: Credit::Contract,
            publish_every: 8,
            batch: 512,
            segment: 64,
            pool: 32_000,
            samples_per_update: 512,
            anchor: Automatic::AUTO,
            critic_head_start: 160,
            actor_rate: Automatic::AUTO,
            critic_rate: 2e-3,
            final_rate_share: 0.1,
            adam_epsilon: 1e-8,
            actor_clip: 1.0,
            critic_clip: 10.0,
            target_rate: 0.1,
            average_rate: 0.01,
            lambda: 0.99,
            critic_hidden: 32,
            quantiles: 16,
            kappa: 0.2,
            atoms: 51,
            threads: 0,
            ranks: 1,
            collective: Collective::Memory,
        }
    }
}

impl Learner {
    /// Returns the number of the critic's outputs for one row: quantiles, atoms, or the mean alone.
    pub fn critic_outputs(&self) -> usize {
        match self.critic {
            Critic::Quantile => self.quantiles,
            Critic::Categorical => self.atoms,
            Critic::Scalar => 1,
        }
    }

    /// Checks that batch and pool can be dealt to the ranks of so many nodes.
    ///
    /// # Errors
    /// The key whose value cannot.
    pub fn check_ranks(&self, nodes: usize) -> Result<(), SettingsError> {
        let of_nodes = if nodes > 1 { format!(" on each of {nodes} nodes") } else { String::new() };
        let (ranks, segment, of) =
            (self.ranks * nodes, self.segment, format!("learner.ranks = {}{of_nodes}", self.ranks));
        if !self.batch.is_multiple_of(segment * ranks) {
            return bad(
                "learner.batch",
                format!(
                    "is {}; with {of} it must be a multiple of {ranks} x learner.segment = {}",
                    self.batch,
                    segment * ranks
                ),
            );
        }
        if !self.pool.is_multiple_of(ranks) {
            return bad("learner.pool", format!("is {}; with {of} it must be a multiple of {ranks}", self.pool));
        }
        Ok(())
    }

    /// Checks the keys of this section.
    ///
    /// # Errors
    /// The first key whose value cannot be used, with a valid alternative.
    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        for (key, value, most) in [
            ("learner.segment", self.segment, 1 << 20),
            ("learner.batch", self.batch, 1 << 24),
            ("learner.pool", self.pool, 1 << 32),
            ("learner.publish_every", self.publish_every as usize, usize::MAX),
            ("learner.quantiles", self.quantiles, MOST_QUANTILES),
            ("learner.critic_hidden", self.critic_hidden, 1 << 16),
            ("learner.samples_per_update", self.samples_per_update, 1 << 30),
            ("learner.ranks", self.ranks, MOST_RANKS),
        ] {
            count(key, value, most)?;
        }
        // 0 threads mean one per core.
        for (key, value, most) in [("learner.threads", self.threads, 1024), ("learner.atoms", self.atoms, 1024)] {
            if value > most {
                return bad(key, format!("is {value}; must be at most {most}"));
            }
        }
        if !self.batch.is_multiple_of(self.segment) {
            return bad(
                "learner.batch",
                format!("is {}; must be a multiple of learner.segment = {}", self.batch, self.segment),
            );
        }
        if self.pool < self.batch || self.pool < self.segment {
            return bad("learner.pool", format!("is {}; must hold at least one batch of {}", self.pool, self.batch));
        }
        self.check_ranks(1)?;
        if self.collective == Collective::Nccl && self.ranks == 1 {
            return bad(
                "learner.collective",
                "= \"nccl\" averages over several ranks; set learner.ranks to the number of GPUs".into(),
            );
        }
        if self.critic == Critic::Categorical && self.credit == Credit::Total {
            return bad(
                "learner.credit",
                "= \"total\" sums quantiles and cannot sum atoms; use learner.critic = \"quantile\" or \"scalar\""
                    .into(),
            );
        }
        if self.target == Target::Hindsight && self.critic != Critic::Quantile {
            return bad("learner.critic", "must be \"quantile\" with learner.target = \"hindsight\"".into());
        }
        if self.target != Target::Hindsight && self.hedge != 0.0 {
            return bad(
                "learner.hedge",
                "needs learner.target = \"hindsight\": otherwise the critic learns the return; set one or the other"
                    .into(),
            );
        }
        if self.critic == Critic::Categorical && self.atoms < 3 {
            return bad("learner.atoms", "must be at least 3".into());
        }
        for (key, value, low, high) in [
            ("learner.lambda", self.lambda, 0.0, 1.0),
            ("learner.hedge", self.hedge, -4.0, 4.0),
            ("learner.lesson_every_s", self.lesson_every_s, 60.0, 86_400.0),
            ("learner.kappa", self.kappa, 1e-6, 1e6),
            ("learner.target_rate", self.target_rate, 1e-6, 1.0),
            ("learner.average_rate", self.average_rate, 1e-6, 1.0),
            ("learner.critic_rate", self.critic_rate, 0.0, 1.0),
            ("learner.final_rate_share", self.final_rate_share, 0.0, 1.0),
            ("learner.adam_epsilon", self.adam_epsilon, 1e-12, 1.0),
            ("learner.actor_clip", self.actor_clip, 1e-6, 1e9),
            ("learner.critic_clip", self.critic_clip, 1e-6, 1e9),
        ] {
            within(key, value, low, high)?;
        }
        Ok(())
    }
}
