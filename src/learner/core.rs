//! Replay pool, replay ratio and budget around the trainer, the same in every mode.

use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Instant;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

use crate::env::{DayModel, Segment, State};
use crate::policy::PolicySpec;
use crate::policy::TrainerState;
use crate::run::failpoint;
use crate::run::snapshot::RngState;
use crate::run::snapshot::state::batch_stream;
use crate::settings::Settings;

use super::batch::Rebuild;
use super::dims::Dims;
use super::peers::Agreed;
use super::pool::Pool;
use super::share::GradientShare;
use super::trainer::{Batch, NotFinite, Train, UpdatePlan, UpdateStats};

/// Published parameters: the actor that explores and the averaged one, flat.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    pub updates: u64,
    pub raw: Vec<f32>,
    pub averaged: Vec<f32>,
}

/// State of a learner without its pool, for resuming.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnerState {
    pub updates: u64,
    pub samples: u64,
    /// Seconds of learning.
    pub elapsed_s: f64,
    pub trainer: TrainerState,
    pub rng: RngState,
}

/// The learner without processes and shared memory.
pub struct Learner<'a> {
    days: &'a [DayModel],
    settings: Settings,
    spec: Arc<PolicySpec>,
    trainer: Box<dyn Train>,
    dims: Dims,
    pool: Pool,
    rng: ChaCha8Rng,
    /// State of `rng` before the last batch.
    drawn_from: ChaCha8Rng,
    started: Instant,
    /// Seconds of learning before `started`.
    elapsed_s: f64,
    updates: u64,
    samples: u64,
    /// Number of this rank, and what all of several ranks have agreed on.
    rank: usize,
    agreed: Option<Agreed>,
}

impl<'a> Learner<'a> {
    pub fn new(days: &'a [DayModel], spec: Arc<PolicySpec>, settings: &Settings, trainer: Box<dyn Train>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(batch_stream(0, 0));
        let dims = Dims::of(days, &spec, settings);
        Self {
            days,
            dims,
            pool: Pool::new(settings.learner.pool, dims.room),
            settings: settings.clone(),
            spec,
            trainer,
            drawn_from: rng.clone(),
            rng,
            started: Instant::now(),
            elapsed_s: 0.0,
            updates: 0,
            samples: 0,
            rank: 0,
            agreed: None,
        }
    }

    /// Makes this the learner of rank `rank` of all nodes, which draws other batches than the others.
    pub fn of_rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self.rng.set_stream(batch_stream(rank, 0));
        self.drawn_from = self.rng.clone();
        self
    }

    /// Takes over what several ranks have agreed on: from now on it decides when updates are due, and how much of the budget is spent.
    pub fn heed(&mut self, agreed: &Agreed) {
        self.agreed = Some(*agreed);
    }

    /// Sets the actor and its average to the initial parameters of the run.
    ///
    /// # Errors
    /// If the actor has another shape.
    pub fn start_from(&mut self, actor: &[f32]) -> anyhow::Result<()> {
        let mut state = self.trainer.state();
        state.actor = actor.to_vec();
        state.averaged = actor.to_vec();
        self.trainer.restore(&state)
    }

    /// Returns the number of updates done.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the number of samples taken in.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of samples that all ranks have taken in.
    pub fn samples_of_all(&self) -> u64 {
        self.agreed.map_or(self.samples, |agreed| agreed.samples)
    }

    /// Returns the number of samples that the ranks of this node have taken in.
    pub fn samples_of_node(&self) -> u64 {
        self.agreed.map_or(self.samples, |agreed| agreed.samples_of_node)
    }

    /// Returns a hash of everything that updates change, to compare ranks.
    pub fn digest(&self) -> u64 {
        let TrainerState { actor, averaged, critic, target, actor_adam, critic_adam } = self.trainer.state();
        let [actor_moments, critic_moments] = [actor_adam, critic_adam].map(|adam| [adam.first, adam.second].concat());
        let mut hasher = XxHash3_64::new();
        for array in [actor, averaged, critic, target, actor_moments, critic_moments] {
            hasher.write(bytemuck::cast_slice(&array));
        }
        hasher.finish()
    }

    /// Takes in new segments.
    ///
    /// # Errors
    /// If a segment does not fit the training days: it was written by another run or is damaged.
    pub fn ingest(&mut self, segments: Vec<Segment>) -> anyhow::Result<()> {
        self.samples += segments.iter().map(|s| s.len() as u64).sum::<u64>();
        self.refill(segments)
    }

    fn check(&self, s: &Segment) -> anyhow::Result<()> {
        let day = self.days.get(s.day as usize);
        let tables = self.spec.actor_shape().tables.len();
        let fits = day.is_some_and(|day| {
            let rows = day.log.requests().len() as u32;
            !s.is_empty()
                && usize::from(s.per_step) == self.settings.requests_per_step()
                && s.len() <= self.settings.learner.segment
                && s.actions.len() == s.rows.len()
                && s.probabilities.len() == if s.per_step == 1 { s.rows.len() } else { 0 }
                && s.replans.iter().all(|(at, offsets)| {
                    (*at as usize) < s.rows.len() && State::fits_replanned(offsets, day.contracts.len())
                })
                && s.lessons.iter().all(|lesson| lesson.fits(self.spec.features(), tables))
                && s.probabilities.iter().all(|p| (0.0..=1.0).contains(p))
                && s.start.fits(day.contracts.len())
                && s.rows.windows(2).all(|w| w[0] < w[1])
                && s.rows.iter().chain(&s.next).all(|&r| r < rows)
        });
        anyhow::ensure!(fits, "a segment does not fit the training days");
        Ok(())
    }

    /// Whether the pool holds two batches, or half of its capacity of steps, or its maximum number of segments.
    pub fn ready(&self) -> bool {
        let enough = (2 * self.settings.learner.batch).min(self.settings.learner.pool / 2);
        self.pool.steps() >= enough || self.pool.out_of_room()
    }

    /// Returns the number of updates that the samples so far allow and that are not done yet; none before the pool is ready.
    pub fn updates_due(&self) -> u64 {
        if !self.agreed.map_or_else(|| self.ready(), |agreed| agreed.ready) {
            return 0;
        }
        (self.samples_of_all() / self.settings.learner.samples_per_update as u64).saturating_sub(self.updates)
    }

    /// Returns the share of the budget that is spent, 0..=1, for the bound that is nearest.
    pub fn progress(&self) -> f64 {
        let b = &self.settings.budget;
        let part = |done: f64, most: f64| if most > 0.0 { done / most } else { 0.0 };
        // Wall time is not reproducible: lock-step runs use counts alone.
        let elapsed_s = || self.agreed.map_or_else(|| self.elapsed_s(), |agreed| agreed.elapsed_s);
        let seconds = if self.settings.run.deterministic { 0.0 } else { elapsed_s() };
        part(self.updates as f64, b.max_updates as f64)
            .max(part(self.samples_of_all() as f64, b.max_samples as f64))
            .max(part(seconds, b.max_seconds))
            .min(1.0)
    }

    /// Returns the seconds of learning.
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed_s + self.started.elapsed().as_secs_f64()
    }

    /// Returns the state for resuming, without the pool.
    pub fn state(&self) -> LearnerState {
        LearnerState {
            updates: self.updates,
            samples: self.samples,
            elapsed_s: self.elapsed_s(),
            trainer: self.trainer.state(),
            rng: RngState::of(&self.rng),
        }
    }

    /// Resumes from a state, with an empty pool to be filled by [`Learner::refill`].
    ///
    /// # Errors
    /// If the state is of other networks.
    pub fn restore(&mut self, state: &LearnerState) -> anyhow::Result<()> {
        self.trainer.restore(&state.trainer)?;
        self.pool = Pool::new(self.settings.learner.pool, self.dims.room);
        self.rng = state.rng.resume();
        self.started = Instant::now();
        self.elapsed_s = state.elapsed_s;
        self.updates = state.updates;
        self.samples = state.samples;
        Ok(())
    }

    /// Takes in segments that were counted before.
    ///
    /// # Errors
    /// If a segment does not fit the training days.
    pub fn refill(&mut self, segments: Vec<Segment>) -> anyhow::Result<()> {
        segments.iter().try_for_each(|segment| self.check(segment))?;
        let count = segments.len();
        for segment in segments {
            self.pool.push(segment);
        }
        let Self { trainer, pool, days, spec, settings, dims, .. } = self;
        trainer.store(&pool.newest(count), Rebuild { days, spec, settings, dims });
        Ok(())
    }

    /// Draws other batches from now on, because the same ones would lead to the same loss that is not finite.
    pub fn draw_differently(&mut self, rollback: u32) {
        self.rng.set_stream(batch_stream(self.rank, rollback));
        self.rng.set_word_pos(0);
    }

    /// Does one update on newly drawn segments; returns its statistics if `read`, which waits for the device.
    ///
    /// # Errors
    /// [`NotFinite`], after which the networks must be restored.
    pub fn update(&mut self, read: bool) -> anyhow::Result<Option<UpdateStats>> {
        let batch = self.batch();
        self.update_on(&batch, self.plan(read))
    }

    fn plan(&self, read: bool) -> UpdatePlan {
        let rate = 1.0 - (1.0 - self.settings.learner.final_rate_share) * self.progress();
        UpdatePlan { rate, train_actor: self.updates >= self.settings.head_start(), read }
    }

    /// Does one update with all `ranks`, on newly drawn segments of each. `average` replaces this rank's part by the mean of all
    /// gradients and the sum of all tallies.
    ///
    /// # Errors
    /// As [`Learner::update`], on every rank; and those of `average`.
    pub fn update_together(
        &mut self,
        read: bool,
        ranks: usize,
        average: impl FnOnce(&mut GradientShare) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<UpdateStats>> {
        let batch = self.batch();
        let plan = self.plan(read);
        let mut share = self.trainer.share(&batch, plan)?;
        average(&mut share)?;
        let stats = self.trainer.apply(&share, ranks, plan)?;
        self.updates += 1;
        Ok(stats)
    }

    /// Does one update on a batch that this learner made.
    ///
    /// # Errors
    /// As [`Learner::update`].
    pub fn update_on(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let stats = self.trainer.update(batch, plan)?;
        self.updates += 1;
        Ok(stats)
    }

    /// Waits until the device has finished all work.
    pub fn wait(&self) {
        self.trainer.wait();
    }

    /// Draws segments and makes a batch of them.
    pub fn batch(&mut self) -> Batch {
        self.drawn_from = self.rng.clone();
        let drawn = self.pool.sample(self.dims.segments, &mut self.rng);
        let Self { trainer, days, spec, settings, dims, .. } = self;
        trainer.batch(&drawn, Rebuild { days, spec, settings, dims })
    }

    /// Returns the segments of the last batch, for diagnosis.
    pub fn last_batch(&self) -> Vec<Segment> {
        let drawn = self.pool.sample(self.dims.segments, &mut self.drawn_from.clone());
        drawn.into_iter().map(|(_, segment)| segment.clone()).collect()
    }

    /// Returns the newest parameters.
    ///
    /// # Errors
    /// [`NotFinite`], because such parameters must not be used; the result of an update is not always read before.
    pub fn publication(&self) -> Result<Publication, NotFinite> {
        let (mut raw, averaged) = self.trainer.actors();
        if failpoint::reached("learner.weights") {
            raw[0] = f32::NAN;
        }
        NotFinite::unless_weights([].iter(), raw.iter().chain(&averaged))?;
        Ok(Publication { updates: self.updates, raw, averaged })
    }
}
