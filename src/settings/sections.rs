//! Sections of the configuration file with their defaults, one struct each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::delay::FeedbackDelay;

/// Which candidates the network scores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreMode {
    /// An auction ad's score is its eCPM; the network scores the contracts in the same unit.
    #[default]
    Contract,
    /// The network scores both.
    All,
}

/// Behaviour of an actor when its ring has no free region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// Waits for a free region.
    #[default]
    Wait,
    /// Overwrites the oldest unread region.
    Overwrite,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Seed of everything random; 0..2^63.
    pub seed: u64,
    /// `auto`, `cpu`, `cuda` or `cuda:INDEX`.
    pub device: String,
    /// Lock-step: real processes in a fixed order; the same seed gives the same policy file on the CPU.
    pub deterministic: bool,
}

impl Default for Run {
    fn default() -> Self {
        Self { seed: 1, device: "auto".into(), deterministic: false }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Log directories to train on.
    pub train: Vec<PathBuf>,
    /// Log directories for choosing the best parameters.
    pub validation: Vec<PathBuf>,
    /// Log directories reported in the final table; may be empty.
    pub test: Vec<PathBuf>,
    /// Run directory of `admix values train` whose values are used for planning, training and validation; empty = the
    /// logged values.
    pub values: PathBuf,
    /// Share of bad rows above which a log is refused.
    pub max_bad_share: f64,
    /// Memory limit for compiling a log, MB (2^20 bytes); the rest is sorted on disk.
    pub memory_mb: usize,
}

impl Default for Data {
    fn default() -> Self {
        let (max_bad_share, memory_mb) = (0.01, 1024);
        Self { train: vec![], validation: vec![], test: vec![], values: PathBuf::new(), max_bad_share, memory_mb }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Env {
    /// Seconds until a policy observes a delivery; caps and rewards use the true counts at once.
    pub feedback_delay_s: f64,
    /// Seed of the rate draws in evaluation; training draws anew each episode.
    pub rate_seed: u64,
    /// Add to each queue the eligible contracts missing from it, with `control.pctr`.
    pub complete_queues: bool,
    /// Seed of the drawn delays.
    pub delay_seed: u64,
    /// A delay drawn for every training episode and every whole day, in place of `feedback_delay_s`.
    pub feedback_delay: FeedbackDelay,
}

/// Differences of training episodes from the logged days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Episodes {
    /// Steps of a whole-day episode. A day with more than `steps * requests_per_step` requests is thinned to that number, and its
    /// demands by the same factor.
    pub steps: usize,
    /// Consecutive requests of a step. They share the networks' outputs, as requests share a bid in serving, and each has its
    /// own auction. If outputs depend on the request (`score_mode = "all"`, `policy.traffic_embedding`) it is 1.
    pub requests_per_step: usize,
    /// Log-sd of each contract's demand.
    pub demand_jitter: f64,
    /// Log-sd of the price level.
    pub price_jitter: f64,
    /// Log-sd of the traffic volume.
    pub volume_jitter: f64,
    /// Share of the episodes that start at a random point of the forecast traffic.
    pub mid_day_share: f64,
    /// Sd of the delivered share around the plan at such a start.
    pub start_spread: f64,
    /// Sd of the error of each contract's starting bid, added to its logit: the training days' prices differ from those of the
    /// served day.
    pub start_error: f64,
    /// Log-sd of the error of each contract's forecast supply.
    pub supply_error: f64,
    /// Share of the episodes in which the price level jumps at a random time.
    pub jump_share: f64,
    /// Log-sd of such a jump.
    pub jump_sd: f64,
    /// Largest log-sd of the volume's hourly deviation; each episode draws its own sd and correlation.
    pub volume_noise: f64,
    /// Largest log-sd of the price's hourly deviation, by group of regions.
    pub price_noise: f64,
    /// Log-sd of the price shocks that last some hours in one region, at most two per episode.
    pub shock_sd: f64,
}

impl Episodes {
    /// Returns the share of a day with `requests` requests, and of its demands, that an episode replays, before jitter.
    pub fn share_of(&self, requests: usize, per_step: usize) -> f64 {
        ((self.steps * per_step) as f64 / requests as f64).min(1.0)
    }
}

impl Default for Episodes {
    fn default() -> Self {
        Self {
            steps: 1000,
            requests_per_step: 30,
            demand_jitter: 0.1,
            price_jitter: 0.2,
            volume_jitter: 0.2,
            mid_day_share: 0.5,
            start_spread: 0.1,
            start_error: 0.2,
            supply_error: 0.1,
            jump_share: 0.5,
            jump_sd: 0.3,
            volume_noise: 0.0,
            price_noise: 0.0,
            shock_sd: 0.4,
        }
    }
}

/// Weights of the reward's parts in training; J always uses 1, and so do prices in hindsight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reward {
    pub auction: f64,
    pub contract_ctr: f64,
    pub contract_delivery: f64,
}

impl Default for Reward {
    fn default() -> Self {
        Self { auction: 1.0, contract_ctr: 1.0, contract_delivery: 1.0 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Width of the actor's two hidden layers.
    pub hidden: usize,
    /// Width of the ad id embedding, in the actor and the critic; 0 = none, at most [`MOST_WIDTH`](super::MOST_WIDTH), as all widths here.
    pub ad_embedding: usize,
    /// Width of the actor's embeddings of slot, region, gender and age; 0 = none.
    pub traffic_embedding: usize,
    /// Softmax temperature of exploration, in units of the mean best auction worth.
    pub temperature: f64,
    /// Start of the bids, as a share of the penalty.
    pub initial_bid: f64,
    /// Start from the training days' prices instead.
    pub warm_start: bool,
    /// With the warm start: solve the starting prices repeatedly on the rest of the day, as the receding-horizon baseline
    /// does.
    pub replan: bool,
    /// With the planner: plan for the volume forecast learned from logged days, in several courses,
    /// instead of extrapolating the volume so far.
    pub volume_model: bool,
    /// Add the tuned pacing controller's term to every bid, with gains that fall with the square root of the thinning: the
    /// network then learns corrections to pacing, which carry over from thinned days to whole ones.
    pub pacing: bool,
    /// Under a feedback delay: count an impression as delivered from its display on, instead of when it is observed (a Smith
    /// predictor). Right where displays are confirmed in the end, as all are in replay. With the outlook the network does so itself.
    pub predict: bool,
    /// Extend the network's inputs by the planner's prices for the volume to come and at the forecast levels, traffic and prices
    /// with several time constants, and unconfirmed displays, which then count as delivered.
    pub outlook: bool,
    /// With the outlook over a planner, and without the controller: start from the network that ships with the program, if it has
    /// this shape.
    pub shipped_start: bool,
    /// Allow bids below the worth of the predicted click, down to minus the penalty or the mean best auction
    /// worth, whichever is larger.
    pub negative_bids: bool,
    /// Number of auction ads of a queue that are scored in `score_mode = "all"`, from 1; the rest score less than these.
    pub auction_candidates: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hidden: 64,
            ad_embedding: 0,
            traffic_embedding: 0,
            temperature: 0.05,
            initial_bid: 0.5,
            warm_start: true,
            replan: true,
            volume_model: true,
            pacing: true,
            predict: true,
            outlook: false,
            shipped_start: true,
            negative_bids: false,
            auction_candidates: 2,
        }
    }
}

impl Policy {
    /// Whether starting prices are solved again during the day.
    pub fn replans(&self) -> bool {
        self.warm_start && self.replan
    }

    /// Whether the policy sees its own displays as delivered at once.
    pub fn predicts(&self) -> bool {
        self.predict && !self.outlook
    }

    /// Whether the planner uses the learned volume.
    pub fn foresees_volume(&self) -> bool {
        self.replans() && self.volume_model
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Actors {
    /// Actor processes (N) of each node. A number, or `"auto"`: five for every eight cores of the machine ([`actors_for`](super::actors_for)),
    /// resolved when the settings are loaded, so that the run's `config.toml` contains the number. The default is 2 on every
    /// machine: the number of actors affects what is learned, and one configuration should give one result.
    #[serde(deserialize_with = "super::cores::number_or_auto")]
    pub count: usize,
    /// Samples in one write (k); rounded to whole segments.
    pub write_every: usize,
    /// Number of regions of an actor's ring.
    pub regions: usize,
    pub overflow: Overflow,
    /// Number of episodes that an actor replays in rotation.
    pub episodes: usize,
    /// Number of times that one actor is restarted before the run ends with an error.
    pub max_restarts: u32,
}

impl Default for Actors {
    fn default() -> Self {
        Self { count: 2, write_every: 512, regions: 2, overflow: Overflow::Wait, episodes: 8, max_restarts: 100 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluate {
    /// Updates between two evaluations on the validation days. Evaluations are less frequent if they take longer, or have used
    /// their sixteenth of the machine's cores; the next one then takes the newest parameters. In lock-step the interval is
    /// exact.
    pub every: u64,
    /// Whether the start of the run stays the best until another policy beats it on the validation days by the paired 95 % interval. A
    /// higher J alone is often luck there.
    pub keep_start: bool,
}

impl Default for Evaluate {
    fn default() -> Self {
        Self { every: 32, keep_start: true }
    }
}

/// Snapshots of the whole run, from which it resumes after any failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Seconds between two snapshots; 0 = none, and nothing to resume from.
    pub every_s: f64,
    /// Number of snapshots kept on disk.
    pub keep: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every_s: 5.0, keep: 2 }
    }
}

/// Limits after which main replaces a process or ends the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watchdog {
    /// Seconds without a heartbeat after which a process is killed and replaced; 0 = never.
    pub silent_s: f64,
    /// Seconds without a new sample and without an update after which the run ends; 0 = never.
    pub stuck_s: f64,
    /// Seconds that an interrupted run may take to save and end; after that its processes are killed.
    pub grace_s: f64,
    /// Number of times that the learner, the evaluator or the checkpointer is restarted before the run ends with an error.
    pub max_restarts: u32,
    /// Number of times that the learner rolls back to the last snapshot because a loss, a gradient or a weight was not finite.
    pub max_rollbacks: u32,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { silent_s: 120.0, stuck_s: 300.0, grace_s: 30.0, max_restarts: 20, max_rollbacks: 3 }
    }
}

/// The run ends at the first bound that it reaches; 0 = unbounded. The learning rates decay over the same bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    pub max_updates: u64,
    pub max_samples: u64,
    pub max_seconds: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { max_updates: 800, max_samples: 0, max_seconds: 0.0 }
    }
}

/// Convergence criterion of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// Evaluations without an improvement of the validation J after which training stops; 0 = never. Counted
    /// from the end of the critic's head start.
    pub patience: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self { patience: 8 }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serial {
    /// In `--serial`: the old scheme of one sample, one batch.
    pub literal: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Baselines {
    /// Maximum number of replays of a training day for tuning one baseline: the PID controller, or the controller under the
    /// learned bids; pass rates and dual descent, with one parameter each, and the slower receding horizon get half of it.
    pub tuning_replays: usize,
    /// Seconds of log time between two steps of a controller: PID, dual descent, pass rates.
    pub interval_s: f64,
}

impl Default for Baselines {
    fn default() -> Self {
        Self { tuning_replays: 48, interval_s: 300.0 }
    }
}
