//! Pool, replay ratio and budget around the trainer; the same in every mode.

use std::sync::Arc;
use std::time::Instant;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::env::{DayModel, Segment};
use crate::policy::PolicySpec;
use crate::settings::Settings;

use super::batch::SegmentRows;
use super::dims::Dims;
use super::pool::Pool;
use super::trainer::{Train, UpdatePlan, UpdateStats};

/// Parameters as they are published: the actor that explores and the averaged one, flat.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    pub updates: u64,
    pub raw: Vec<f32>,
    pub averaged: Vec<f32>,
}

/// The learner without its surroundings.
pub struct Learner<'a> {
    days: &'a [DayModel],
    settings: Settings,
    spec: Arc<PolicySpec>,
    trainer: Box<dyn Train>,
    dims: Dims,
    pool: Pool,
    rng: ChaCha8Rng,
    started: Instant,
    updates: u64,
    samples: u64,
}

impl<'a> Learner<'a> {
    pub fn new(days: &'a [DayModel], spec: Arc<PolicySpec>, settings: &Settings, trainer: Box<dyn Train>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(2 << 48);
        Self {
            days,
            dims: Dims::of(days, &spec, settings),
            pool: Pool::new(settings.learner.pool),
            settings: settings.clone(),
            spec,
            trainer,
            rng,
            started: Instant::now(),
            updates: 0,
            samples: 0,
        }
    }

    /// Updates done.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Samples taken in.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Takes in new segments.
    ///
    /// # Errors
    /// A segment that does not fit the training days: written by another run or damaged.
    pub fn ingest(&mut self, segments: Vec<Segment>) -> anyhow::Result<()> {
        for segment in segments {
            self.check(&segment)?;
            self.samples += segment.len() as u64;
            self.pool.push(segment);
        }
        Ok(())
    }

    fn check(&self, s: &Segment) -> anyhow::Result<()> {
        let day = self.days.get(s.day as usize);
        let fits = day.is_some_and(|day| {
            let rows = day.log.requests().len() as u32;
            !s.is_empty()
                && usize::from(s.per_step) == self.settings.requests_per_step()
                && s.len() <= self.settings.learner.segment
                && s.actions.len() == s.rows.len()
                && s.probabilities.len() == if s.per_step == 1 { s.rows.len() } else { 0 }
                && s.replans
                    .iter()
                    .all(|(at, offsets)| (*at as usize) < s.rows.len() && offsets.len() == day.contracts.len())
                && s.start.replanned.len() == day.contracts.len()
                && s.start.delivered.len() == day.contracts.len()
                && s.start.observed.len() == day.contracts.len()
                && s.rows.windows(2).all(|w| w[0] < w[1])
                && s.rows.iter().chain(&s.next).all(|&r| r < rows)
        });
        anyhow::ensure!(fits, "a segment does not fit the training days");
        Ok(())
    }

    /// Whether the pool holds two batches, or half of what it can hold.
    pub fn ready(&self) -> bool {
        self.pool.steps() >= (2 * self.settings.learner.batch).min(self.settings.learner.pool / 2)
    }

    /// Updates that the samples taken in so far pay for and that are not done yet; none before the pool is ready.
    pub fn updates_due(&self) -> u64 {
        if !self.ready() {
            return 0;
        }
        (self.samples / self.settings.learner.samples_per_update as u64).saturating_sub(self.updates)
    }

    /// The part of the budget that is spent, 0..=1; whichever bound is nearest.
    pub fn progress(&self) -> f64 {
        let b = &self.settings.budget;
        let part = |done: f64, most: f64| if most > 0.0 { done / most } else { 0.0 };
        // Wall time cannot be repeated: lock-step runs go by counts alone.
        let seconds = if self.settings.run.deterministic { 0.0 } else { self.started.elapsed().as_secs_f64() };
        part(self.updates as f64, b.max_updates as f64)
            .max(part(self.samples as f64, b.max_samples as f64))
            .max(part(seconds, b.max_seconds))
            .min(1.0)
    }

    /// One update on freshly drawn segments.
    ///
    /// # Errors
    /// A loss that is not finite.
    pub fn update(&mut self, read_norms: bool) -> anyhow::Result<UpdateStats> {
        let batch = self.batch();
        let l = &self.settings.learner;
        let rate = 1.0 - (1.0 - l.final_rate_share) * self.progress();
        let train_actor = self.updates >= l.critic_head_start;
        let stats = self.trainer.update(&batch, UpdatePlan { rate, train_actor, read_norms })?;
        self.updates += 1;
        Ok(stats)
    }

    /// Draws segments and rebuilds their states.
    pub fn batch(&mut self) -> Vec<SegmentRows> {
        let drawn = self.pool.sample(self.dims.segments, &mut self.rng);
        drawn
            .into_par_iter()
            .map(|s| SegmentRows::build(self.days, s, &self.spec, &self.settings, &self.dims))
            .collect()
    }

    /// The newest parameters.
    pub fn publication(&self) -> Publication {
        Publication { updates: self.updates, raw: self.trainer.actor(), averaged: self.trainer.averaged() }
    }
}
