//! Tests that see a learner that does not learn: gradients against differences, the sign of the policy gradient where the answer is known,
//! and runs that have to gain.

use std::sync::Arc;

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::env::DayModel;
use admix::learner::batch::{Rebuild, SegmentRows};
use admix::learner::factors::loss_factors;
use admix::learner::loss::{Gradients, Losses, Outputs, support};
use admix::learner::trainer::UpdatePlan;
use admix::learner::{Device, Dims, Learner};
use admix::log::schema::{AdType, QueueEntry, TrackRow};
use admix::policy::start::initial_actor;
use admix::policy::{Bids, PolicySpec};
use admix::settings::{Automatic, Credit, Critic, ScoreMode, Settings};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::harness::{days, train};
use super::worlds::{MIDNIGHT, World, plain_contract};

const CRITICS: [(Critic, Credit); 5] = [
    (Critic::Quantile, Credit::Contract),
    (Critic::Categorical, Credit::Contract),
    (Critic::Scalar, Credit::Contract),
    (Critic::Quantile, Credit::Total),
    (Critic::Scalar, Credit::Total),
];

/// What the networks said of a segment.
#[derive(Clone)]
struct Said {
    states: Vec<f32>,
    last: Vec<f32>,
    after: Vec<f32>,
    actor: Vec<f32>,
}

/// A segment with everything that its losses are worked out from.
struct Scene {
    settings: Settings,
    dims: Dims,
    bids: Vec<(Bids, f64)>,
    rows: SegmentRows,
}

impl Scene {
    fn new(
        day: DayModel,
        settings: Settings,
        mut segment: impl FnMut(&[DayModel], &Arc<PolicySpec>) -> SegmentRows,
    ) -> Self {
        let spec = world::spec(&day, &settings);
        let days = [day];
        let dims = Dims::of(&days, &spec, &settings);
        let bids = days.iter().map(|day| (Bids::new(day, &spec.policy), day.unit)).collect();
        Self { rows: segment(&days, &spec), settings, dims, bids }
    }

    /// Random outputs, of the size that networks have.
    fn said(&self, rng: &mut ChaCha8Rng) -> Said {
        let d = self.dims;
        let mut random = |len: usize| (0..len).map(|_| rng.random_range(-0.6..0.9)).collect();
        Said {
            states: random(d.steps * d.contracts * d.outputs),
            last: random(d.contracts * d.outputs),
            after: random(d.steps * d.eligible),
            actor: random(d.steps * d.actor_rows()),
        }
    }

    fn gradients(&self, said: &Said) -> Gradients {
        let learner = &self.settings.learner;
        let losses = Losses {
            settings: learner,
            dims: self.dims,
            factors: loss_factors(&self.settings),
            bids: &self.bids,
            support: support(learner),
            score_auctions: self.dims.score_auctions,
            anchor: self.settings.anchor() as f32,
        };
        let Said { states, last, after, actor } = said;
        losses.segment(&self.rows, &Outputs { states, last, after, actor }, 1.0, 1.0)
    }

    /// Compares a gradient with differences of a loss, output by output; returns how many were not 0.
    fn compare(
        &self,
        said: &Said,
        outputs: impl Fn(&mut Said) -> &mut Vec<f32>,
        loss: impl Fn(&Gradients) -> f64,
        gradient: &[f32],
        what: &str,
    ) -> usize {
        let step = 4e-3;
        let size = gradient.iter().map(|g| g.abs()).fold(0.0, f32::max);
        for (i, g) in gradient.iter().enumerate() {
            let at = |by: f32| {
                let mut moved = said.clone();
                outputs(&mut moved)[i] += by;
                loss(&self.gradients(&moved))
            };
            let difference = (at(step) - at(-step)) / (2.0 * f64::from(step));
            let off = (difference - f64::from(*g)).abs();
            assert!(off < 0.02 * f64::from(size) + 1e-3, "{what}, output {i}: {g} where differences say {difference}");
        }
        gradient.iter().filter(|g| g.abs() > 0.01 * size).count()
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.policy.warm_start = false;
    settings.policy.temperature = 0.5;
    settings.policy.auction_candidates = 3;
    (settings.learner.segment, settings.learner.batch, settings.learner.pool) = (6, 12, 60);
    (settings.learner.quantiles, settings.learner.atoms) = (5, 7);
    settings.learner.anchor = Automatic::Fixed(0.0);
    // Returns that no output of the critic enters: targets stay what they are when an output moves.
    settings.learner.lambda = 1.0;
    settings
}

/// Every critic, credit and mode, in steps of one and of several requests.
#[test]
fn gradients_by_the_outputs_are_the_differences_of_the_losses() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let modes = [ScoreMode::Contract, ScoreMode::All];
    for ((critic, credit), mode, per_step) in CRITICS
        .into_iter()
        .flat_map(|critic| modes.map(|mode| (critic, mode)))
        .flat_map(|(critic, mode)| [1, 3].map(|per_step| (critic, mode, per_step)))
    {
        let mut settings = settings();
        (settings.learner.critic, settings.learner.credit, settings.score_mode) = (critic, credit, mode);
        settings.episodes.requests_per_step = per_step;
        let (day, _) =
            world::day(WorldSize { requests: 400, queue: 6, eligible: 3, masked: 0.2, contracts: 4 }).unwrap();
        let scene = Scene::new(day, settings.clone(), |days, spec| {
            let mut explorer = Explorer::new(days, &settings, spec.clone(), initial_actor(spec, 1), 0, 0);
            let dims = Dims::of(days, spec, &settings);
            let mut rows =
                SegmentRows::build(&explorer.segment(), Rebuild { days, spec, settings: &settings, dims: &dims });
            // Nothing is corrected: a ratio would move with the actor's outputs and the targets with it.
            rows.contests.iter_mut().for_each(|contest| contest.behaviour = None);
            rows
        });
        let what = format!("{critic:?}, {credit:?}, {mode:?}, {per_step} requests");
        let said = scene.said(&mut rng);
        let all = scene.gradients(&said);
        let moved = scene.compare(&said, |s| &mut s.states, |g| g.critic_loss, &all.states, &format!("critic: {what}"));
        assert!(moved > all.states.len() / 4, "hardly any gradient of the critic: {what}");
        let moved = scene.compare(&said, |s| &mut s.actor, |g| g.actor_loss, &all.actor, &format!("actor: {what}"));
        assert!(moved > all.actor.len() / 8, "hardly any gradient of the actor: {what}");
    }
}

/// The anchor adds the derivative of half a square to every row of a bidder, and nothing else.
#[test]
fn the_anchor_pulls_outputs_towards_zero() {
    let mut settings = settings();
    settings.episodes.requests_per_step = 3;
    let (day, _) = world::day(WorldSize { requests: 400, queue: 6, eligible: 3, masked: 0.2, contracts: 4 }).unwrap();
    let mut scene = Scene::new(day, settings.clone(), |days, spec| {
        let mut explorer = Explorer::new(days, &settings, spec.clone(), initial_actor(spec, 1), 0, 0);
        let dims = Dims::of(days, spec, &settings);
        SegmentRows::build(&explorer.segment(), Rebuild { days, spec, settings: &settings, dims: &dims })
    });
    let said = scene.said(&mut ChaCha8Rng::seed_from_u64(5));
    let free = scene.gradients(&said).actor;
    scene.settings.learner.anchor = Automatic::Fixed(0.7);
    let held = scene.gradients(&said).actor;
    let bidders = scene.rows.bidders.iter().flatten().count() as f32;
    let spring = 0.7 * scene.rows.contests.len() as f32 / bidders;
    for (i, bidder) in scene.rows.bidders.iter().enumerate() {
        let want = if bidder.is_some() { spring * said.actor[i] } else { 0.0 };
        assert!((held[i] - free[i] - want).abs() < 1e-5, "{i}: {} {want}", held[i] - free[i]);
    }
}

/// A day of two requests, each with one auction ad of this worth beside the contract, which is owed one impression of penalty 3.
fn two_steps(auctions: [f64; 2]) -> DayModel {
    let contract = plain_contract(0, 1, 3.0);
    let request = |i: usize| {
        let entry = |ad_id: u64, ad_type: AdType, ecpm: f64| QueueEntry {
            ad_id,
            ad_type,
            ecpm,
            pctr: 0.0,
            filter: 0,
            boost: 1.0,
        };
        TrackRow {
            request_id: 1 + i as u64,
            ts_ms: MIDNIGHT + (1 + i as u64) * 3_600_000,
            slot_id: 1,
            region: 1,
            gender: 0,
            age: 0,
            user_id: None,
            queue: vec![
                entry(contract.ad_id, AdType::Contract, 0.0),
                entry(9_999, AdType::Auction, 1000.0 * auctions[i]),
            ],
        }
    };
    World { utc_offset_minutes: 0, rows: vec![request(0), request(1)], contracts: vec![contract.clone()] }.load().day
}

/// With a critic that says what is still to be earned, bids rise on the cheaper of two requests and fall on the dearer one, whichever comes
/// first: the contract is owed one impression and both requests are worth less than its penalty.
#[test]
fn the_policy_gradient_shows_the_contract_where_the_auction_is_cheap() {
    for (auctions, first_is_cheap) in [([1.0, 2.5], true), ([2.5, 1.0], false)] {
        let mut settings = settings();
        settings.learner.critic = Critic::Scalar;
        settings.learner.segment = 2;
        (settings.learner.batch, settings.learner.pool) = (2, 4);
        settings.episodes.requests_per_step = 1;
        settings.episodes.steps = 2;
        (settings.episodes.demand_jitter, settings.episodes.price_jitter, settings.episodes.volume_jitter) =
            (0.0, 0.0, 0.0);
        (settings.episodes.mid_day_share, settings.episodes.start_error, settings.episodes.supply_error) =
            (0.0, 0.0, 0.0);
        (settings.episodes.jump_share, settings.episodes.shock_sd) = (0.0, 0.0);
        settings.policy.pacing = false;
        settings.actors.episodes = 1;
        let day = two_steps(auctions);
        let unit = day.unit;
        let scene = Scene::new(day, settings.clone(), |days, spec| {
            let mut explorer = Explorer::new(days, &settings, spec.clone(), initial_actor(spec, 1), 0, 0);
            let dims = Dims::of(days, spec, &settings);
            // An episode in which the contract was not shown first: it may be shown on both requests.
            let segment = std::iter::repeat_with(|| explorer.segment()).find(|s| s.len() == 2 && s.actions[0] == 1);
            SegmentRows::build(&segment.unwrap(), Rebuild { days, spec, settings: &settings, dims: &dims })
        });
        assert_eq!(scene.rows.bidders.iter().flatten().count(), 2, "both requests may show it");
        // Relative rewards are 3 less the auction's worth. What is still to be earned by a policy that shows the contract on the first request
        // half of the time, and on the second where it did not; before the second request, half of the time.
        let rewards = auctions.map(|worth| 3.0 - worth);
        let values = [0.5 * (rewards[0] + rewards[1]), 0.5 * rewards[1]];
        let mut said = scene.said(&mut ChaCha8Rng::seed_from_u64(1));
        said.actor.fill(0.0);
        for ((said, value), potential) in said.states.iter_mut().zip(values).zip(&scene.rows.potential) {
            *said = (value / unit) as f32 / potential;
        }
        // After a display nothing is owed: the critic's output is multiplied by 0.
        assert!(scene.rows.bidders.iter().flatten().all(|b| b.after_potential == 0.0));
        let gradient = scene.gradients(&said).actor;
        let width = scene.dims.actor_rows();
        assert!((gradient[0] < 0.0) == (first_is_cheap), "{auctions:?}: {gradient:?}");
        assert!(gradient[0].abs() > 1e-3, "{gradient:?}");
        assert!(gradient[width] < 0.0, "at the last request the contract is worth more than the auction: {gradient:?}");
    }
}

fn prediction(critic: Critic, credit: Credit) -> Settings {
    let mut settings = settings();
    (settings.learner.critic, settings.learner.credit) = (critic, credit);
    // Segments are whole episodes: what is predicted is what was earned, not what another network says.
    settings.episodes.requests_per_step = 10;
    settings.episodes.steps = 24;
    settings.learner.segment = 24;
    settings.learner.batch = 24 * 16;
    settings.learner.pool = 24 * 64;
    settings.actors.write_every = 24 * 10;
    settings
}

/// Losses on episodes that were not learned from, before and after so many updates of the critic.
fn held_out(settings: &Settings, updates: usize) -> [f64; 2] {
    let (day, _) = world::day(WorldSize { requests: 2_000, queue: 6, eligible: 3, masked: 0.2, contracts: 4 }).unwrap();
    let days = [day];
    let spec = world::spec(&days[0], settings);
    let learner = || {
        let trainer = Device::Cpu.trainer(&days, &spec, settings).unwrap();
        Learner::new(&days, spec.clone(), settings, trainer)
    };
    let explorer = |id: u64| Explorer::new(&days, settings, spec.clone(), initial_actor(&spec, 1), id, 0);
    let mut trained = learner();
    let mut source = explorer(0);
    while trained.samples() < settings.learner.pool as u64 {
        trained.ingest(source.block().segments).unwrap();
    }
    let start = trained.state();
    let episodes: Vec<_> = (0..64).map(|_| explorer(1).segment()).collect();
    let error = |trained: &Learner| {
        let mut judge = learner();
        let state = trained.state();
        // The same draws each time.
        judge.restore(&admix::learner::LearnerState { rng: start.rng.clone(), ..state }).unwrap();
        judge.refill(episodes.clone()).unwrap();
        let batch = judge.batch();
        let plan = UpdatePlan { rate: 0.0, train_actor: false, read: true };
        judge.update_on(&batch, plan).unwrap().unwrap().critic_loss
    };
    let before = error(&trained);
    for _ in 0..updates {
        let batch = trained.batch();
        trained.update_on(&batch, UpdatePlan { rate: 1.0, train_actor: false, read: false }).unwrap();
    }
    [before, error(&trained)]
}

#[test]
fn every_critic_learns_what_it_was_not_shown() {
    for (critic, credit) in CRITICS {
        let mut settings = prediction(critic, credit);
        let [before, after] = held_out(&settings, 120);
        eprintln!("{critic:?}, {credit:?}: {before} {after}");
        assert!(after < 0.9 * before, "{critic:?}, {credit:?}: {before} before, {after} after");
        settings.learner.critic_rate = 0.0;
        let [before, after] = held_out(&settings, 3);
        assert!((after / before - 1.0).abs() < 1e-6, "without a learning rate nothing changes: {before} {after}");
    }
}

/// Points of validation share that the network gains on its own: no planner, no controller, no training days' prices. Lock-step.
fn gained(sets: &[&str]) -> f64 {
    let alone = [
        "policy.replan=false",
        "policy.pacing=false",
        "policy.warm_start=false",
        "policy.initial_bid=0.1",
        "episodes.requests_per_step=1",
        "learner.batch=256",
        "learner.critic_head_start=40",
        "learner.actor_rate=4e-3",
        "evaluate.every=50",
        "budget.max_updates=400",
    ];
    let ended = train(&[&alone[..], sets].concat(), &["--deterministic"]);
    let lines = ended.metrics();
    let shares: Vec<f64> =
        lines.iter().filter(|l| l["kind"] == "evaluation").filter_map(|l| l["share"].as_f64()).collect();
    eprintln!("{shares:?}");
    100.0 * (shares.last().unwrap() - shares[0])
}

#[test]
fn the_network_alone_gains_five_points_and_none_without_a_learning_rate() {
    days();
    let points = gained(&[]);
    assert!(points >= 5.0, "{points} points gained");
    let points = gained(&["learner.actor_rate=0", "learner.critic_rate=0"]);
    assert!(points.abs() < 1e-9, "{points} points gained without learning");
}

#[test]
fn two_ranks_gain_five_points_and_none_without_a_learning_rate() {
    days();
    let ranks = ["learner.ranks=2", "actors.count=2"];
    let points = gained(&ranks);
    assert!(points >= 5.0, "{points} points gained");
    let points = gained(&[&ranks[..], &["learner.actor_rate=0", "learner.critic_rate=0"]].concat());
    assert!(points.abs() < 1e-9, "{points} points gained without learning");
}
