//! Replays training episodes with the raw actor and records its actions.

use std::iter::Peekable;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::env::{
    BLOCK_FORMAT, Block, Choice, DayModel, Delay, Episode, Lesson, REPLAN_INTERVAL_S, Replay, RowSampler, Segment,
    State,
};
use crate::plan::Horizon;
use crate::policy::{LearnedPolicy, Policy as _, PolicySpec, Replanner, Teacher};
use crate::settings::{Settings, Target};

/// An episode in progress.
pub(super) struct Runner<'a> {
    pub day: usize,
    /// Whether it replays the whole day, whatever its seed says.
    pub whole: bool,
    pub replay: Replay,
    pub rows: Peekable<RowSampler<'a>>,
    pub replanner: Option<Replanner>,
    pub lessons: Option<Lessons>,
}

/// Teacher of an episode, and the time of its next lesson, milliseconds from midnight.
pub(super) struct Lessons {
    pub teacher: Teacher,
    pub next: u64,
}

/// A segment in progress.
pub(super) struct Recording {
    runner: usize,
    start: State,
    rows: Vec<u32>,
    actions: Vec<u16>,
    replans: Vec<(u32, Vec<f32>)>,
    probabilities: Vec<f32>,
    lessons: Vec<Lesson>,
}

/// Explores with a softmax over scores. Several episodes run in rotation, one segment each, so that
/// neighbouring samples do not all come from one hour of one day.
pub struct Explorer<'a> {
    pub(super) days: &'a [DayModel],
    pub(super) settings: Settings,
    policy: LearnedPolicy,
    pub(super) rng: ChaCha8Rng,
    pub(super) runners: Vec<Option<Runner<'a>>>,
    pub(super) recording: Option<Recording>,
    pub(super) turn: usize,
    contracts: Vec<f64>,
    auctions: Vec<f64>,
    weights: Vec<f64>,
}

impl<'a> Explorer<'a> {
    /// Creates an explorer with its own random stream: `id` is the actor among those of all nodes, `incarnation` the number of earlier
    /// starts.
    pub fn new(
        days: &'a [DayModel],
        settings: &Settings,
        spec: Arc<PolicySpec>,
        actor: Vec<f32>,
        id: u64,
        incarnation: u64,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(1 << 48 | id << 32 | incarnation);
        Self {
            days,
            settings: settings.clone(),
            policy: LearnedPolicy::new(spec, actor),
            rng,
            runners: (0..settings.actors.episodes).map(|_| None).collect(),
            recording: None,
            turn: 0,
            contracts: vec![],
            auctions: vec![],
            weights: vec![],
        }
    }

    /// Sets newer parameters of the raw actor.
    pub fn set_params(&mut self, actor: &[f32]) {
        self.policy.set_params(actor);
    }

    /// Explores until a block of segments is full.
    pub fn block(&mut self) -> Block {
        let segments = (0..self.settings.block_segments()).map(|_| self.segment()).collect();
        Block { format: BLOCK_FORMAT, segments, explorer: vec![] }
    }

    /// Explores until a segment is complete.
    pub fn segment(&mut self) -> Segment {
        loop {
            if let Some(segment) = self.step() {
                return segment;
            }
        }
    }

    /// Explores one step; returns the segment that it completes.
    pub fn step(&mut self) -> Option<Segment> {
        let mut recording = match self.recording.take() {
            Some(recording) => recording,
            None => self.begin(),
        };
        let per_step = self.settings.requests_per_step();
        let runner = self.runners[recording.runner].as_mut().expect("a recording has its runner");
        let replay = &mut runner.replay;
        for i in 0..per_step {
            let Some(row) = runner.rows.next() else { break };
            replay.arrive(self.days[runner.day].incoming(row));
            if let Some(offsets) = self.policy.replan(replay) {
                replay.state.replan(offsets);
                recording.replans.push((recording.rows.len() as u32, offsets.to_vec()));
            }
            if i == 0 && per_step > 1 {
                self.policy.hold(replay);
            }
            if i == 0
                && let Some(lessons) = runner.lessons.as_mut().filter(|lessons| replay.offset() >= lessons.next)
            {
                lessons.next = replay.offset() + (1000.0 * self.settings.learner.lesson_every_s) as u64;
                let lesson = lessons.teacher.lesson(
                    &mut self.policy,
                    replay,
                    &self.days[runner.day],
                    std::iter::once(row).chain(runner.rows.clone()),
                );
                recording.lessons.extend(lesson);
            }
            let (choice, probability) = explore(
                &mut self.policy,
                replay,
                &mut self.contracts,
                &mut self.auctions,
                &mut self.weights,
                &mut self.rng,
            );
            let action = match choice {
                Choice::Contract(i) => i as u16,
                Choice::Auction(i) => (replay.candidates().len() + i) as u16,
                Choice::Nothing => Segment::NOTHING,
            };
            replay.show(choice);
            recording.rows.push(row as u32);
            recording.actions.push(action);
            if per_step == 1 {
                recording.probabilities.push(probability);
            }
        }
        let next = runner.rows.peek().map(|&row| row as u32);
        if next.is_some() && recording.rows.len() < self.settings.learner.segment * per_step {
            self.recording = Some(recording);
            return None;
        }
        let segment = Segment {
            day: runner.day as u16,
            episode: replay.episode.seed,
            start: recording.start,
            per_step: per_step as u16,
            rows: recording.rows,
            actions: recording.actions,
            replans: recording.replans,
            probabilities: recording.probabilities,
            lessons: recording.lessons,
            next,
        };
        runner.replanner = self.policy.pause();
        if next.is_none() {
            self.runners[recording.runner] = None;
        }
        Some(segment)
    }

    fn begin(&mut self) -> Recording {
        let turn = self.turn;
        self.turn = (turn + 1) % self.runners.len();
        if self.runners[turn].is_none() {
            self.runners[turn] = Some(self.episode());
        }
        let runner = self.runners[turn].as_mut().expect("just filled");
        self.policy.resume(&runner.replay, runner.replanner.take());
        let capacity = self.settings.learner.segment * self.settings.requests_per_step();
        Recording {
            runner: turn,
            start: runner.replay.state.clone(),
            rows: Vec::with_capacity(capacity),
            actions: Vec::with_capacity(capacity),
            replans: Vec::new(),
            probabilities: Vec::new(),
            lessons: Vec::new(),
        }
    }

    /// Draws a new episode with at least one step; a start near the end of a short day can have none.
    fn episode(&mut self) -> Runner<'a> {
        let mut tries = 0;
        loop {
            let day = self.rng.random_range(0..self.days.len());
            let model = &self.days[day];
            let mut episode =
                Episode::draw(model, &self.settings.episodes, self.settings.requests_per_step(), self.rng.random());
            tries += 1;
            // Only a day with hardly any requests gets there.
            let whole = tries > 50;
            if whole {
                episode.replay_all();
            }
            let mut rows = RowSampler::new(&episode, model).peekable();
            let spread = self.settings.episodes.start_spread;
            let delay = Delay::of_policy(&self.settings.policy, &self.settings.env).in_episode(episode.seed);
            let replay = Replay::start(model, episode, delay, spread, &mut rows);
            if rows.peek().is_some() {
                let replanner = self.policy.replanner(&replay, horizon(model));
                let teaches = self.settings.learner.target != Target::Return;
                // Lesson times differ between episodes.
                let first = (1000.0 * self.settings.learner.lesson_every_s * self.rng.random::<f64>()) as u64;
                let lessons =
                    teaches.then(|| Lessons { teacher: Teacher::default(), next: replay.episode.start + first });
                return Runner { day, whole, replay, rows, replanner, lessons };
            }
        }
    }
}

/// Returns the planning horizon of a training episode of this day.
pub(super) fn horizon(day: &DayModel) -> Horizon {
    Horizon { interval_s: day.horizon.interval_s.max(REPLAN_INTERVAL_S), ..day.horizon }
}

/// Draws the action from the softmax over the scores; returns it with its probability.
fn explore(
    policy: &mut LearnedPolicy,
    replay: &Replay,
    contracts: &mut Vec<f64>,
    auctions: &mut Vec<f64>,
    weights: &mut Vec<f64>,
    rng: &mut ChaCha8Rng,
) -> (Choice, f32) {
    contracts.clear();
    contracts.resize(replay.candidates().len(), 0.0);
    auctions.clear();
    auctions.extend(replay.auctions().iter().take(policy.auction_candidates()).map(|a| replay.worth(a)));
    if contracts.is_empty() && auctions.is_empty() {
        return (Choice::Nothing, 1.0);
    }
    policy.score(replay, contracts, auctions);
    let scale = 1.0 / (policy.spec().policy.temperature * replay.day.unit);
    weights.clear();
    weights.extend(contracts.iter().zip(replay.candidates()).map(|(s, c)| s * c.boost * scale));
    weights.extend(auctions.iter().zip(replay.auctions()).map(|(s, a)| s * a.boost * scale));
    let top = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for w in &mut *weights {
        *w = (*w - top).exp();
        sum += *w;
    }
    let mut left = rng.random::<f64>() * sum;
    let mut chosen = weights.len() - 1;
    for (i, w) in weights.iter().enumerate() {
        left -= w;
        if left < 0.0 {
            chosen = i;
            break;
        }
    }
    let probability = (weights[chosen] / sum) as f32;
    let choice =
        if chosen < contracts.len() { Choice::Contract(chosen) } else { Choice::Auction(chosen - contracts.len()) };
    (choice, probability)
}
