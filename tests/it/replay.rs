//! Replay, held against the plain reader: what is shown, what it earns, and who knows what when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use admix::env::{Choice, DayModel, Display, Episode, Replay, RowSampler, Vocabulary, Weights};
use admix::log::schema::{AdType, QueueEntry, TrackRow};
use admix::log::{self, CompileOptions};
use admix::plan::Plan;
use admix::policy::baselines::{self, FixedPrices};
use admix::policy::{LearnedPolicy, Policy, PolicySpec, ReplayOptions, Totals, choose, replay_day};
use admix::settings::{self, Episodes, ScoreMode};
use proptest::prelude::*;
use rand::SeedableRng as _;

use super::worlds::{self, Decision, Delivered, Loaded, PlainEntry, PlainLog, World, cases, close, world};

const HOUR_S: f64 = 3600.0;
/// None, some, an hour, and longer than any day.
const DELAYS: [f64; 4] = [0.0, 90.0, HOUR_S, 1e30];

fn mix(values: [u64; 3]) -> u64 {
    values.iter().fold(17, |h: u64, v| (h ^ v).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
}

/// Scores by a hash of request and ad: anything from minus to plus infinity, the same whatever was shown before.
struct RandomScores(u64);

impl RandomScores {
    fn of(&self, request: u64, ad: u64) -> f64 {
        match mix([self.0, request, ad]) % 1000 {
            0..20 => f64::NEG_INFINITY,
            20..40 => f64::INFINITY,
            n => n as f64 / 100.0 - 3.0,
        }
    }
}

impl Policy for RandomScores {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        let request = replay.visit().request_id;
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = self.of(request, replay.day.contracts[c.contract as usize].ad_id);
        }
        for (score, a) in auctions.iter_mut().zip(replay.auctions()) {
            *score = self.of(request, a.ad_id);
        }
    }

    fn auction_candidates(&self) -> usize {
        usize::MAX
    }
}

/// Would show contracts whether they may be shown or not.
struct ContractsAlways;

impl Policy for ContractsAlways {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, _: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        contracts.fill(f64::INFINITY);
        auctions.fill(f64::NEG_INFINITY);
    }
}

/// Scores each ad with a multiple of 1/4 of its own: equal scores, boosts included, are exact and common.
struct GridScores {
    seed: u64,
    /// Auction ads too; else their score is their worth.
    auctions: bool,
}

impl GridScores {
    fn of(&self, ad: u64) -> f64 {
        (mix([self.seed, ad, 0]) % 5) as f64 / 4.0
    }
}

impl Policy for GridScores {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = self.of(replay.day.contracts[c.contract as usize].ad_id);
        }
        if self.auctions {
            for (score, a) in auctions.iter_mut().zip(replay.auctions()) {
                *score = self.of(a.ad_id);
            }
        }
    }

    fn auction_candidates(&self) -> usize {
        if self.auctions { usize::MAX } else { 1 }
    }
}

/// A learned policy with random weights; its scores are far from any sense, and depend on every feature.
fn untrained(day: &DayModel, score_mode: ScoreMode, policy: settings::Policy) -> LearnedPolicy {
    let spec = PolicySpec { score_mode, policy, vocabulary: Vocabulary::clone(&day.vocabulary) };
    let actor = spec.actor_shape().initial(&mut rand_chacha::ChaCha8Rng::seed_from_u64(3), 2.0, 0.0);
    LearnedPolicy::new(Arc::new(spec), actor)
}

/// Everyone but the oracle.
pub fn policies(day: &DayModel, plan: &Plan) -> Vec<(&'static str, Box<dyn Policy>)> {
    let small = settings::Policy { hidden: 8, ..settings::Policy::default() };
    let bold = settings::Policy {
        negative_bids: true,
        warm_start: true,
        traffic_embedding: 2,
        auction_candidates: 3,
        ..small.clone()
    };
    let mut all: Vec<(&str, Box<dyn Policy>)> =
        baselines::NAMES.iter().map(|&name| (name, baselines::named(name, Some(plan)).unwrap())).collect();
    all.push(("random-scores", Box::new(RandomScores(5))));
    all.push(("contracts-always", Box::new(ContractsAlways)));
    all.push(("learned-contract", Box::new(untrained(day, ScoreMode::Contract, small))));
    all.push(("learned-all", Box::new(untrained(day, ScoreMode::All, bold))));
    all
}

/// Replays a whole day; the decisions in the plain reader's form.
pub fn decide(day: &DayModel, policy: &mut dyn Policy, options: ReplayOptions) -> (Totals, Vec<Decision>) {
    let mut decisions = Vec::new();
    let totals = replay_day(day, policy, options, &mut |shown| {
        let letter = |t| if t == AdType::Contract { 'C' } else { 'A' };
        decisions.push((shown.request_id, shown.ad.map(|(ad, ad_type)| (ad, letter(ad_type)))));
    });
    (totals, decisions)
}

fn prompt(rate_seed: u64) -> ReplayOptions {
    ReplayOptions { rate_seed, delay: admix::env::Delay::fixed(0.0) }
}

/// What a test's own walk through an episode met at one step; the replay's counters have moved.
struct Step<'r> {
    row: usize,
    replay: &'r Replay,
    choice: Choice,
    display: Display,
}

/// Walks an episode under random scores; returns what was delivered before its first step, and the replay's end.
fn walk(
    day: &DayModel,
    episode: Episode,
    delay_s: f64,
    spread: f64,
    seed: u64,
    watch: &mut dyn FnMut(Step),
) -> (Vec<f64>, Replay) {
    let mut rows = RowSampler::new(&episode, day).peekable();
    let mut replay = Replay::start(day, episode, delay_s, spread, &mut rows);
    let before = replay.state.delivered.clone();
    let mut policy = RandomScores(seed);
    for row in rows {
        replay.arrive(day.incoming(row));
        let mut contracts = vec![0.0; replay.candidates().len()];
        let mut auctions = vec![0.0; replay.auctions().len()];
        policy.score(&replay, &mut contracts, &mut auctions);
        let choice = choose(&replay, &contracts, &auctions, true);
        let display = replay.show(choice);
        watch(Step { row, replay: &replay, choice, display });
    }
    (before, replay)
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn nothing_is_shown_that_may_not_be_and_what_can_be_filled_is(world in world(), rate_seed in 0u64..4) {
        let Loaded { day, plan, plain, dir: _dir } = world.load();
        for (name, mut policy) in policies(&day, &plan) {
            for feedback_delay_s in DELAYS {
                let (totals, decisions) = decide(&day, &mut *policy, ReplayOptions { rate_seed, delay: admix::env::Delay::fixed(feedback_delay_s) });
                let order = decisions.iter().map(|(request, _)| *request);
                prop_assert!(order.eq(plain.requests.iter().map(|r| r.id)), "rows of one time keep their order");
                let failed = |e| TestCaseError::fail(format!("{name}, delay {feedback_delay_s}: {e}"));
                let verdict = plain.judge(rate_seed, &decisions).map_err(failed)?;
                for (what, counted, claimed) in [
                    ("j", verdict.j, totals.j),
                    ("auction revenue", verdict.auction_revenue, totals.auction_revenue),
                    ("click worth", verdict.click_worth, totals.click_worth),
                    ("missing", verdict.missing, totals.missing),
                    ("owed", verdict.owed, totals.owed),
                    ("penalty", verdict.auction_revenue + verdict.click_worth - verdict.j, totals.penalty),
                    ("contract pctr", verdict.contract_pctr, totals.contract_pctr),
                ] {
                    prop_assert!(close(counted, claimed), "{name}: {what}: {counted} counted, {claimed} claimed");
                }
                let claimed = (totals.contract_impressions, totals.auction_impressions, totals.unfilled);
                prop_assert_eq!((verdict.contract_impressions, verdict.auction_impressions, verdict.unfilled), claimed);
            }
        }
    }

    #[test]
    fn completed_queues_offer_every_contract_that_may_be_shown_and_no_other(world in world(), rate_seed in 0u64..4) {
        let Loaded { dir, plan, mut plain, .. } = world.load();
        let log = log::open(dir.path(), CompileOptions { complete_queues: true, ..CompileOptions::default() }).unwrap();
        let day = DayModel::with_forecast(log, &plan.forecast, &plan, Arc::default());
        plain.complete_queues();
        for (_, mut policy) in policies(&day, &plan) {
            let (totals, decisions) = decide(&day, &mut *policy, prompt(rate_seed));
            let verdict = plain.judge(rate_seed, &decisions).map_err(TestCaseError::fail)?;
            prop_assert!(close(verdict.j, totals.j), "{} counted, {} claimed", verdict.j, totals.j);
        }
    }

    #[test]
    fn equal_scores_go_to_the_higher_ecpm_and_then_to_the_lower_ad_id(world in world(), seed: u64, auctions: bool) {
        let Loaded { day, plain, .. } = world.load();
        let mut policy = GridScores { seed, auctions };
        let decisions: HashMap<_, _> = decide(&day, &mut policy, prompt(1)).1.into_iter().collect();
        let mut delivered = Delivered::new();
        for r in &plain.requests {
            let score = |e: &PlainEntry| if e.kind == 'A' && !auctions { e.ecpm / 1000.0 } else { policy.of(e.ad) };
            let best = plain
                .showable(r, 1, |ad| plain.room(ad, &delivered))
                .max_by(|a, b| {
                    let order = |e: &PlainEntry| (score(e) * e.boost, e.ecpm);
                    order(a).partial_cmp(&order(b)).unwrap().then(Reverse(a.ad).cmp(&Reverse(b.ad)))
                })
                .map(|e| (e.ad, e.kind));
            prop_assert_eq!(decisions[&r.id], best, "request {}", r.id);
            if let Some((ad, 'C')) = best {
                *delivered.entry(ad).or_default() += 1;
            }
        }
    }

    #[test]
    fn dense_rewards_add_up_to_j_on_whole_days(world in world(), rate_seed in 0u64..4, seed: u64, delay in 0usize..4) {
        let Loaded { day, plain, .. } = world.load();
        let episode = Episode::whole_day(&day, rate_seed);
        let (mut absolute, mut relative, mut decisions) = (0.0, 0.0, Vec::new());
        walk(&day, episode, DELAYS[delay], 0.0, seed, &mut |step| {
            absolute += step.display.absolute(&Weights::J);
            relative += step.display.relative(&Weights::J);
            decisions.push((step.replay.visit().request_id, shown(&step)));
        });
        let verdict = plain.judge(rate_seed, &decisions).map_err(TestCaseError::fail)?;
        let best: f64 = plain.requests.iter().map(PlainLog::best).sum();
        prop_assert!(close(absolute - plain.stake(), verdict.j), "{} and {}", absolute - plain.stake(), verdict.j);
        prop_assert!(close(relative, verdict.j + plain.stake() - best));
    }

    #[test]
    fn dense_rewards_add_up_to_the_j_of_a_thinned_and_jittered_episode(
        world in world(),
        seed: u64,
        mid_day_share in 0.0..1.0,
        steps in 5usize..300,
        per_step in 1usize..5,
        spread in 0.0..1.0,
        weights in (0.0..3.0, 0.0..3.0, 0.0..3.0),
    ) {
        let Loaded { day, plain, .. } = world.load();
        let settings = Episodes {
            steps,
            mid_day_share,
            jump_share: 0.5,
            demand_jitter: 0.3,
            volume_jitter: 0.3,
            shock_sd: 0.5,
            ..Episodes::default()
        };
        let episode = Episode::draw(&day, &settings, per_step, seed);
        prop_assert_eq!(&episode, &Episode::draw(&day, &settings, per_step, seed));
        let by_id: HashMap<u64, _> = plain.requests.iter().map(|r| (r.id, r)).collect();
        let weights = Weights { auction: weights.0, click: weights.1, delivery: weights.2 };
        let (mut absolute, mut relative, mut weighted, mut weighted_relative) = (0.0, 0.0, 0.0, 0.0);
        // The same sums, from the text, the demands and the price factor alone.
        let (mut auctions, mut clicks, mut best) = (0.0, 0.0, 0.0);
        let mut shown_by = BTreeMap::<u64, f64>::new();
        let mut last = None;
        let mut broken = Vec::new();
        let demands: HashMap<u64, usize> = day.contracts.iter().enumerate().map(|(j, c)| (c.ad_id, j)).collect();
        let start = episode.draw_delivered(&day, spread);
        prop_assert!(start.iter().zip(&episode.left).all(|(d, left)| (0.0..=*left).contains(d) && d.fract() == 0.0));
        let (before, end) = walk(&day, episode.clone(), 60.0, spread, seed, &mut |step| {
            absolute += step.display.absolute(&Weights::J);
            relative += step.display.relative(&Weights::J);
            weighted += step.display.absolute(&weights);
            weighted_relative += step.display.relative(&weights);
            let offset = step.replay.offset();
            if offset < episode.start || last >= Some(step.row) {
                broken.push(format!("row {} at {offset} ms after {last:?}", step.row));
            }
            last = Some(step.row);
            let request = by_id[&step.replay.visit().request_id];
            let factor = episode.price_factor(step.replay.visit().region, offset);
            best += PlainLog::best(request) * factor;
            let room = |ad: u64| {
                let j = demands[&ad];
                start[j] + shown_by.get(&ad).unwrap_or(&0.0) < episode.left[j]
            };
            let may: Vec<_> = plain.showable(request, episode.rate_seed, room).map(|e| (e.ad, e.kind)).collect();
            let decision = shown(&step);
            match decision {
                None if may.is_empty() => {}
                Some(ad) if may.contains(&ad) => {
                    let entry = request.queue.iter().find(|e| (e.ad, e.kind) == ad).unwrap();
                    if entry.kind == 'A' {
                        auctions += entry.ecpm / 1000.0 * factor;
                    } else {
                        clicks += plain.contracts[&entry.ad].click_value * entry.pctr;
                        *shown_by.entry(entry.ad).or_default() += 1.0;
                    }
                }
                _ => broken.push(format!("request {}: {decision:?} of {may:?}", request.id)),
            }
        });
        prop_assert!(broken.is_empty(), "{:?}", broken);
        prop_assert_eq!(&before, &start);
        let (mut stake, mut penalty) = (0.0, 0.0);
        for (j, c) in day.contracts.iter().enumerate() {
            let terms = &plain.contracts[&c.ad_id];
            let owed = episode.owed[j];
            let after = before[j] + shown_by.get(&c.ad_id).unwrap_or(&0.0);
            prop_assert_eq!(after, end.state.delivered[j]);
            stake += terms.penalty * (owed - before[j]).max(0.0);
            penalty += terms.penalty * (owed - after).max(0.0);
        }
        if episode.start == 0 {
            prop_assert!(before.iter().all(|&d| d == 0.0) && close(stake, episode.stake(&day)));
        }
        let j = auctions + clicks - penalty;
        prop_assert!(close(absolute - stake, j), "{} and {j}", absolute - stake);
        prop_assert!(close(relative, j + stake - best), "{relative} and {}", j + stake - best);
        let parts = weights.auction * auctions + weights.click * clicks + weights.delivery * (stake - penalty);
        prop_assert!(close(weighted, parts), "{weighted} and {parts}");
        prop_assert!(close(weighted_relative, parts - weights.auction * best));
    }

    #[test]
    fn feedback_delay_delays_what_is_observed_and_nothing_else(world in world(), seed: u64, delay in 0usize..4) {
        let Loaded { day, .. } = world.load();
        let delay_ms = (DELAYS[delay] * 1000.0) as u128;
        let mut shows: Vec<(u128, usize)> = Vec::new();
        let mut broken = Vec::new();
        let mut choices = Vec::new();
        walk(&day, Episode::whole_day(&day, 0), DELAYS[delay], 0.0, seed, &mut |step| {
            let now = u128::from(step.replay.offset());
            choices.push(step.choice);
            if let Choice::Contract(i) = step.choice {
                shows.push((now, step.replay.candidates()[i].contract as usize));
            }
            for j in 0..day.contracts.len() {
                let count = |at_most: u128| shows.iter().filter(|(at, k)| *k == j && *at <= at_most).count() as f64;
                // Of what is due now, only the display of this very step has not had its turn without a delay.
                let observed = if delay_ms == 0 { count(now) } else { now.checked_sub(delay_ms).map_or(0.0, count) };
                let state = &step.replay.state;
                if (state.delivered[j], state.observed[j]) != (count(now), observed) {
                    broken.push((now, j, state.delivered[j], state.observed[j], count(now), observed));
                }
            }
        });
        prop_assert!(broken.is_empty(), "{:?}", broken);
        let mut at_once = Vec::new();
        walk(&day, Episode::whole_day(&day, 0), 0.0, 0.0, seed, &mut |step| at_once.push(step.choice));
        prop_assert_eq!(choices, at_once);
        // Nor does it move a policy that looks at no counts.
        let blind = |feedback_delay_s| {
            decide(&day, &mut FixedPrices::default(), ReplayOptions { rate_seed: 0, delay: admix::env::Delay::fixed(feedback_delay_s) })
        };
        prop_assert_eq!(blind(DELAYS[delay]), blind(0.0));
    }

    #[test]
    fn no_decision_knows_what_comes_after_it((world, future) in futures(), split in 0.0..1.0, delay in 0usize..3) {
        let mut times: Vec<u64> = world.rows.iter().map(|r| r.ts_ms).collect();
        times.sort_unstable();
        let time = times[(times.len() as f64 * split) as usize];
        let past: Vec<_> = world.rows.iter().filter(|r| r.ts_ms < time).cloned().collect();
        let other = future.into_iter().filter(|r| r.ts_ms >= time);
        let changed = World { rows: past.iter().cloned().chain(other).collect(), ..world.clone() };
        let loaded = world.load();
        if changed.rows.is_empty() {
            return Ok(());
        }
        let dir = tempfile::tempdir().unwrap();
        changed.write(dir.path());
        let plan = &loaded.plan;
        let vocabulary = loaded.day.vocabulary.clone();
        let changed = DayModel::with_forecast(worlds::open(dir.path()), &plan.forecast, plan, vocabulary);
        let options = ReplayOptions { rate_seed: 0, delay: admix::env::Delay::fixed(DELAYS[delay]) };
        let before = |day: &DayModel, mut policy: Box<dyn Policy>| {
            let mut decisions = decide(day, &mut *policy, options).1;
            decisions.truncate(past.len());
            decisions
        };
        for ((name, a), (_, b)) in policies(&loaded.day, plan).into_iter().zip(policies(&changed, plan)) {
            prop_assert_eq!(before(&loaded.day, a), before(&changed, b), "{}", name);
        }
    }

    #[test]
    fn what_is_known_before_the_day_is_the_same_whatever_the_day_brings(
        (world, future) in futures(),
        known in 0usize..=6,
    ) {
        let loaded = world.load();
        if future.is_empty() {
            return Ok(());
        }
        let other = World { rows: future, ..world };
        let dir = tempfile::tempdir().unwrap();
        other.write(dir.path());
        // Of some contracts the training days know nothing.
        let mut plan = loaded.plan;
        plan.contracts.retain(|&ad, _| ad < worlds::contract_id(known));
        let day = |dir: &Path| DayModel::with_forecast(worlds::open(dir), &plan.forecast, &plan, Arc::default());
        let knowledge = |dir| {
            let day = day(dir);
            format!("{:?} {:?} {}", day.contracts, day.traffic, day.contract_pctr)
        };
        prop_assert_eq!(knowledge(loaded.dir.path()), knowledge(dir.path()));
    }

    #[test]
    fn the_order_of_the_candidates_in_a_queue_changes_nothing((world, shuffled) in shuffles()) {
        let (a, b) = (world.load(), shuffled.load());
        let both = policies(&a.day, &a.plan).into_iter().zip(policies(&b.day, &b.plan));
        for ((name, mut one), (_, mut other)) in both {
            prop_assert_eq!(decide(&a.day, &mut *one, prompt(0)), decide(&b.day, &mut *other, prompt(0)), "{}", name);
        }
    }
}

fn shown(step: &Step) -> Option<(u64, char)> {
    match step.choice {
        Choice::Contract(i) => {
            Some((step.replay.day.contracts[step.replay.candidates()[i].contract as usize].ad_id, 'C'))
        }
        Choice::Auction(i) => Some((step.replay.auctions()[i].ad_id, 'A')),
        Choice::Nothing => None,
    }
}

/// A world, and other requests of the same inventory that may come later.
fn futures() -> impl Strategy<Value = (World, Vec<TrackRow>)> {
    world().prop_flat_map(|world| {
        let start = world.start_ms();
        let future = worlds::rows(world.contracts.len(), (0..=100).into()).prop_map(move |mut rows| {
            for row in &mut rows {
                row.request_id += 1_000_000;
                row.ts_ms += start;
            }
            rows
        });
        (Just(world), future)
    })
}

/// A world, and the same with every queue in another order.
fn shuffles() -> impl Strategy<Value = (World, World)> {
    world().prop_flat_map(|world| {
        let queues: Vec<_> = world.rows.iter().map(|r| Just(r.queue.clone()).prop_shuffle()).collect();
        (Just(world), queues).prop_map(|(world, queues): (World, Vec<Vec<QueueEntry>>)| {
            let rows = world.rows.iter().zip(queues).map(|(r, queue)| TrackRow { queue, ..r.clone() }).collect();
            (world.clone(), World { rows, ..world })
        })
    })
}
