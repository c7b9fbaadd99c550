//! The configuration tree: defaults, the TOML file, `--set key=value`, validation, the resolved copy.
//!
//! Commands receive [`Settings`], already valid and with absolute paths; they never see clap or TOML. Every key is a
//! field below with its unit and default. A misspelt key is an error that names the nearest one.
//!
//! | file | what it is |
//! |---|---|
//! | this one | [`Settings`], those of a training of policies, and checks that concern several sections |
//! | `sections`, `learner` | the sections of the file, one struct each; that of the learner |
//! | `delay` | the section of a random feedback delay |
//! | `values` | [`ValueSettings`], those of `admix values train` |
//! | `ranks` | how ranks are kept in step, and how many there may be |
//! | `automatic`, `cores` | values of `"auto"`: numbers of the learner; the number of actors |
//! | `bounds` | checks of value bounds, and their errors |
//! | `load` | [`Configuration`]: from a TOML file and `--set` to valid settings; the nearest key to an unknown one |

mod automatic;
mod bounds;
mod cores;
mod delay;
mod learner;
mod load;
mod ranks;
mod sections;
mod values;

use serde::{Deserialize, Serialize};

use bounds::{bad, count, within};

pub use automatic::Automatic;
pub use cores::{MOST_ACTORS, actors_for};
pub use delay::FeedbackDelay;
pub use learner::{Collective, Credit, Critic, Learner, MOST_QUANTILES, Target};
pub use load::{Configuration, SettingsError, load};
pub use ranks::{KEPT_GRADIENTS, MOST_RANKS, MOST_RANKS_HERE, MOST_TABLES, RankSync, Ranks, SparseAverage};
pub use sections::*;
pub use values::{
    MOST_DEVICES, RowOptimizer, Table, ValueRun, ValueSettings, ValueWatchdog, Values, Weights, WhenFull,
};

/// Maximum width of a layer or an embedding of a policy's network; the reader of policy files refuses wider ones.
pub const MOST_WIDTH: usize = 1 << 14;
/// Maximum number of auction ads of a queue that a network scores.
const MOST_AUCTION_CANDIDATES: usize = 512;
/// Maximum number of replays for tuning one baseline.
const MOST_TUNING_REPLAYS: usize = 1_000_000;

/// Rate for bids that start from a plan's prices. A ten times higher rate moved them away from prices that were already nearly
/// right: in eight volatile worlds the last parameters then lost the planner's gains (BENCHMARKS.md).
const RATE_FROM_A_PLAN: f64 = 1e-4;
/// Rate for bids without a starting price.
const RATE_FROM_NOTHING: f64 = 1e-3;
/// Coefficient of the penalty for bids that start from a plan's prices or a controller. Without one, all settings drifted away from a good
/// start; with one, a network that starts from arbitrary bids lost a point of share (BENCHMARKS.md).
const ANCHOR: f64 = 0.3;

/// All settings of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which candidates the network scores.
    pub score_mode: ScoreMode,
    pub run: Run,
    pub data: Data,
    pub env: Env,
    pub episodes: Episodes,
    pub reward: Reward,
    pub policy: Policy,
    pub learner: Learner,
    pub actors: Actors,
    pub evaluate: Evaluate,
    pub checkpoint: Checkpoint,
    pub watchdog: Watchdog,
    pub budget: Budget,
    pub stop: Stop,
    pub serial: Serial,
    pub baselines: Baselines,
}

impl Settings {
    /// Returns the fully resolved configuration as TOML; loading it gives the same settings.
    pub fn to_toml(&self) -> String {
        Configuration::to_toml(self)
    }

    /// Reads a resolved configuration that a run wrote.
    ///
    /// # Errors
    /// If the file is unreadable, is a configuration of another version, or has a value that cannot be used.
    pub fn read_resolved(path: &std::path::Path) -> anyhow::Result<Self> {
        <Self as Configuration>::read_resolved(path)
    }

    /// Returns the number of segments in one write of an actor: `actors.write_every` rounded to whole segments.
    pub fn block_segments(&self) -> usize {
        ((self.actors.write_every as f64 / self.learner.segment as f64).round() as usize).max(1)
    }

    /// Returns the number of requests per step: 1 if the network's outputs depend on the request.
    pub fn requests_per_step(&self) -> usize {
        let by_request = self.score_mode == ScoreMode::All || self.policy.traffic_embedding > 0;
        if by_request { 1 } else { self.episodes.requests_per_step }
    }

    /// Returns Adam's rate for the actor.
    pub fn actor_rate(&self) -> f64 {
        self.learner.actor_rate.or(if self.policy.warm_start { RATE_FROM_A_PLAN } else { RATE_FROM_NOTHING })
    }

    /// Returns the coefficient of the L2 penalty of the bids towards their start.
    pub fn anchor(&self) -> f64 {
        let starts_well = self.policy.warm_start || self.policy.pacing;
        self.learner.anchor.or(if starts_well { ANCHOR } else { 0.0 })
    }

    /// Returns the number of updates before the actor learns: 0 if its target needs no critic.
    pub fn head_start(&self) -> u64 {
        if self.learner.target == Target::Hindsight { 0 } else { self.learner.critic_head_start }
    }

    /// Returns the number of segments in one batch.
    pub fn batch_segments(&self) -> usize {
        self.learner.batch / self.learner.segment
    }

    /// Returns the settings of one of `ranks` ranks of the learner on all nodes: its part of batch and pool, and of its node's threads.
    pub fn of_rank(&self, ranks: usize) -> Self {
        let mut settings = self.clone();
        let l = &mut settings.learner;
        if ranks > 1 {
            let cores = || std::thread::available_parallelism().map_or(1, usize::from);
            let threads = if l.threads == 0 { cores() } else { l.threads };
            l.threads = (threads / l.ranks).max(1);
            l.batch /= ranks;
            l.pool /= ranks;
        }
        settings
    }

    /// Returns the actors whose blocks a rank of the learner takes in; both are counted on their node.
    pub fn actors_of(&self, rank: usize) -> std::ops::Range<usize> {
        let first = |rank: usize| rank * self.actors.count / self.learner.ranks;
        first(rank)..first(rank + 1)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first key whose value cannot be used, with a valid alternative.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.data.train.is_empty() {
            return bad("data.train", "names no log directory; list at least one".into());
        }
        if self.data.validation.is_empty() {
            return bad(
                "data.validation",
                "names no log directory; the best parameters are chosen on it, so list at least one".into(),
            );
        }
        self.learner.validate()?;
        for (key, value, most) in [
            ("actors.count", self.actors.count, MOST_ACTORS),
            ("actors.write_every", self.actors.write_every, 1 << 30),
            ("actors.episodes", self.actors.episodes, 1 << 20),
            ("policy.hidden", self.policy.hidden, MOST_WIDTH),
            ("policy.auction_candidates", self.policy.auction_candidates, MOST_AUCTION_CANDIDATES),
            ("episodes.steps", self.episodes.steps, 1 << 30),
            ("episodes.requests_per_step", self.episodes.requests_per_step, 4096),
            ("evaluate.every", self.evaluate.every as usize, usize::MAX),
        ] {
            count(key, value, most)?;
        }
        for (key, value, most) in [
            ("policy.ad_embedding", self.policy.ad_embedding, MOST_WIDTH),
            ("policy.traffic_embedding", self.policy.traffic_embedding, MOST_WIDTH),
            ("baselines.tuning_replays", self.baselines.tuning_replays, MOST_TUNING_REPLAYS),
        ] {
            if value > most {
                return bad(key, format!("is {value}; must be at most {most}"));
            }
        }
        self.validate_hindsight()?;
        if self.actors.count < self.learner.ranks {
            let (actors, ranks) = (self.actors.count, self.learner.ranks);
            return bad(
                "learner.ranks",
                format!(
                    "is {ranks}; each rank takes its own actors' samples in, so actors.count = {actors} must be at least as many"
                ),
            );
        }
        let (c, w) = (&self.checkpoint, &self.watchdog);
        for (key, seconds) in [
            ("checkpoint.every_s", c.every_s),
            ("watchdog.silent_s", w.silent_s),
            ("watchdog.stuck_s", w.stuck_s),
            ("watchdog.grace_s", w.grace_s),
        ] {
            if !(0.0..=1e9).contains(&seconds) {
                return bad(key, format!("is {seconds}; seconds, from 0 to 1e9"));
            }
        }
        if c.keep == 0 {
            return bad("checkpoint.keep", "must be at least 1; checkpoint.every_s = 0 takes no snapshots".into());
        }
        if self.actors.regions < 2 || (self.actors.overflow == Overflow::Overwrite && self.actors.regions < 3) {
            return bad("actors.regions", "must be at least 2, and 3 with actors.overflow = \"overwrite\"".into());
        }
        if self.actors.regions > 64 {
            return bad("actors.regions", format!("is {}; at most 64", self.actors.regions));
        }
        for (key, value, low, high) in [
            ("policy.temperature", self.policy.temperature, 1e-4, 1e3),
            ("policy.initial_bid", self.policy.initial_bid, 0.001, 0.999),
            ("learner.actor_rate", self.actor_rate(), 0.0, 1.0),
            ("learner.anchor", self.anchor(), 0.0, 1e6),
            ("reward.auction", self.reward.auction, 0.0, 1e6),
            ("reward.contract_ctr", self.reward.contract_ctr, 0.0, 1e6),
            ("reward.contract_delivery", self.reward.contract_delivery, 0.0, 1e6),
            ("episodes.demand_jitter", self.episodes.demand_jitter, 0.0, 2.0),
            ("episodes.price_jitter", self.episodes.price_jitter, 0.0, 2.0),
            ("episodes.volume_jitter", self.episodes.volume_jitter, 0.0, 2.0),
            ("episodes.mid_day_share", self.episodes.mid_day_share, 0.0, 1.0),
            ("episodes.start_spread", self.episodes.start_spread, 0.0, 2.0),
            ("episodes.start_error", self.episodes.start_error, 0.0, 2.0),
            ("episodes.supply_error", self.episodes.supply_error, 0.0, 2.0),
            ("episodes.jump_share", self.episodes.jump_share, 0.0, 1.0),
            ("episodes.jump_sd", self.episodes.jump_sd, 0.0, 2.0),
            ("episodes.volume_noise", self.episodes.volume_noise, 0.0, 1.0),
            ("episodes.price_noise", self.episodes.price_noise, 0.0, 1.0),
            ("episodes.shock_sd", self.episodes.shock_sd, 0.0, 2.0),
            ("env.feedback_delay_s", self.env.feedback_delay_s, 0.0, 86_400.0),
            ("env.feedback_delay.median_s", self.env.feedback_delay.median_s, 0.0, 86_400.0),
            ("env.feedback_delay.log_sd", self.env.feedback_delay.log_sd, 0.0, 5.0),
            ("env.feedback_delay.max_s", self.env.feedback_delay.max_s, 0.0, 86_400.0),
            ("data.max_bad_share", self.data.max_bad_share, 0.0, 1.0),
            ("data.memory_mb", self.data.memory_mb as f64, 16.0, 1_048_576.0),
            ("budget.max_seconds", self.budget.max_seconds, 0.0, 1e9),
            ("baselines.interval_s", self.baselines.interval_s, 1.0, 86_400.0),
        ] {
            within(key, value, low, high)?;
        }
        if self.env.feedback_delay.is_drawn() && self.env.feedback_delay.max_s <= 0.0 {
            return bad(
                "env.feedback_delay.max_s",
                "is 0, but the median is not; give the longest delay in seconds".into(),
            );
        }
        if self.budget.max_updates == 0 && self.budget.max_samples == 0 && self.budget.max_seconds == 0.0 {
            return bad(
                "budget",
                "sets no bound; give max_updates, max_samples or max_seconds (the learning rates decay over it)".into(),
            );
        }
        Ok(())
    }

    /// Checks that nothing is set that prices in hindsight do not learn.
    fn validate_hindsight(&self) -> Result<(), SettingsError> {
        if self.learner.target != Target::Hindsight {
            return Ok(());
        }
        if self.score_mode == ScoreMode::All {
            return bad(
                "score_mode",
                "= \"all\" scores auction ads, too, which have no price in hindsight to learn from; use score_mode = \"contract\", or \
                 learner.target = \"return\" or \"both\""
                    .into(),
            );
        }
        for (key, weight) in [
            ("reward.auction", self.reward.auction),
            ("reward.contract_ctr", self.reward.contract_ctr),
            ("reward.contract_delivery", self.reward.contract_delivery),
        ] {
            if weight != 1.0 {
                return bad(
                    key,
                    format!(
                        "is {weight}, and prices in hindsight are those of J, which weighs each part 1; set it to 1, or learner.target to \
                         \"return\""
                    ),
                );
            }
        }
        Ok(())
    }
}

impl Configuration for Settings {
    const PATHS: &'static [(&'static str, &'static str)] =
        &[("data", "train"), ("data", "validation"), ("data", "test"), ("data", "values")];

    fn validate(&self) -> Result<(), SettingsError> {
        Self::validate(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Settings)) -> Option<String> {
        let mut settings = Settings::default();
        (settings.data.train, settings.data.validation) = (vec!["a".into()], vec!["b".into()]);
        change(&mut settings);
        settings.validate().err().map(|e| e.to_string())
    }

    /// Widths had no bound, or one above that of policy files; no auction candidate meant one.
    #[test]
    fn widths_and_counts_beyond_what_can_be_read_or_held_are_refused() {
        type Change = fn(&mut Settings, usize);
        let cases: [(&str, Change, usize, Option<usize>); 5] = [
            ("policy.hidden", |s, n| s.policy.hidden = n, MOST_WIDTH, Some(0)),
            ("policy.ad_embedding", |s, n| s.policy.ad_embedding = n, MOST_WIDTH, None),
            ("policy.traffic_embedding", |s, n| s.policy.traffic_embedding = n, MOST_WIDTH, None),
            ("policy.auction_candidates", |s, n| s.policy.auction_candidates = n, MOST_AUCTION_CANDIDATES, Some(0)),
            ("baselines.tuning_replays", |s, n| s.baselines.tuning_replays = n, MOST_TUNING_REPLAYS, None),
        ];
        for (key, change, most, low) in cases {
            assert_eq!(refusal(|s| change(s, most)), None, "{key}");
            for wrong in [Some(most + 1), low].into_iter().flatten() {
                let said = refusal(|s| change(s, wrong)).unwrap_or_default();
                assert!(said.contains(key), "{key} = {wrong}: {said}");
            }
        }
    }

    /// Weights of the reward, and a hedge without prices in hindsight, were accepted and changed nothing.
    #[test]
    fn keys_that_a_target_ignores_are_refused() {
        type Change = fn(&mut Settings);
        let weights: [(&str, Change); 3] = [
            ("reward.auction", |s| s.reward.auction = 0.5),
            ("reward.contract_ctr", |s| s.reward.contract_ctr = 2.0),
            ("reward.contract_delivery", |s| s.reward.contract_delivery = 0.5),
        ];
        for (key, change) in weights {
            for target in [Target::Return, Target::Both, Target::Hindsight] {
                let said = refusal(|s| {
                    change(s);
                    s.learner.target = target;
                });
                assert_eq!(said.is_some(), target == Target::Hindsight, "{target:?}: {said:?}");
                assert!(said.is_none_or(|said| said.contains(key) && said.contains("learner.target")));
            }
        }
        for target in [Target::Return, Target::Both, Target::Hindsight] {
            let said = refusal(|s| (s.learner.hedge, s.learner.target) = (0.5, target));
            assert_eq!(said.is_none(), target == Target::Hindsight, "{target:?}: {said:?}");
            assert!(said.is_none_or(|said| said.contains("learner.hedge") && said.contains("hindsight")));
        }
    }

    /// It was accepted, and the network that was taught prices of contracts alone scaled the worth of auction ads.
    #[test]
    fn prices_in_hindsight_with_scored_auction_ads_are_refused() {
        for target in [Target::Return, Target::Both, Target::Hindsight] {
            let said = refusal(|s| (s.score_mode, s.learner.target) = (ScoreMode::All, target));
            assert_eq!(said.is_some(), target == Target::Hindsight, "{target:?}: {said:?}");
            assert!(said.is_none_or(|said| said.contains("score_mode") && said.contains("\"contract\"")));
        }
    }

    /// A network alone was held to the arbitrary bids that it starts from.
    #[test]
    fn auto_goes_by_where_bids_start() {
        for (warm_start, pacing, rate, anchor) in
            [(true, true, 1e-4, 0.3), (true, false, 1e-4, 0.3), (false, true, 1e-3, 0.3), (false, false, 1e-3, 0.0)]
        {
            let mut settings = Settings::default();
            (settings.policy.warm_start, settings.policy.pacing) = (warm_start, pacing);
            assert_eq!((settings.actor_rate(), settings.anchor()), (rate, anchor), "{warm_start}, {pacing}");
            settings.learner.anchor = Automatic::Fixed(0.7);
            assert_eq!(settings.anchor(), 0.7);
        }
    }
}
