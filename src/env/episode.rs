//! What a training episode changes about a logged day, all drawn from one seed.
//!
//! An episode replays a Bernoulli sample of a day's requests with demands scaled alike: about a thousand steps
//! instead of a whole day, so that every delivered impression moves the state. The fractional last unit of a demand
//! pays its fraction. The seed is all that a [`super::Segment`] carries of this.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use crate::settings::Episodes;

use super::day::DayModel;

/// One draw of how a day is replayed.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    pub seed: u64,
    /// Share of the forecast traffic that is replayed; demands are scaled by it.
    pub thinning: f64,
    /// Share of the logged requests that is replayed: the thinning times the volume factor.
    pub keep: f64,
    /// Impressions owed and left, scaled; fractional.
    pub owed: Vec<f32>,
    pub left: Vec<f32>,
    pub rate_seed: u64,
    /// Milliseconds from midnight.
    pub start: u64,
    /// Factor on auction prices, and from when on another one.
    price: f64,
    jump: Option<(u64, f64)>,
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

impl Episode {
    /// The whole day as it was logged.
    pub fn whole_day(day: &DayModel, rate_seed: u64) -> Self {
        Self {
            seed: 0,
            thinning: 1.0,
            keep: 1.0,
            owed: day.contracts.iter().map(|c| c.owed as f32).collect(),
            left: day.contracts.iter().map(|c| c.left as f32).collect(),
            rate_seed,
            start: 0,
            price: 1.0,
            jump: None,
        }
    }

    /// A training episode; the same seed and settings give the same episode.
    pub fn draw(day: &DayModel, settings: &Episodes, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let requests = day.log.requests().len() as f64;
        let thinning = (settings.steps as f64 / requests).min(1.0);
        // A thinned day has room for more traffic than was logged; a whole one has not.
        let volume = (settings.volume_jitter * normal(&mut rng)).exp();
        let price = (settings.price_jitter * normal(&mut rng)).exp();
        let jump = (rng.random::<f64>() < settings.jump_share).then(|| {
            let at = day.traffic.time_of_share(rng.random());
            (at, (settings.jump_sd * normal(&mut rng)).exp())
        });
        let start =
            if rng.random::<f64>() < settings.mid_day_share { day.traffic.time_of_share(rng.random()) } else { 0 };
        let mut owed = Vec::with_capacity(day.contracts.len());
        let mut left = Vec::with_capacity(day.contracts.len());
        for c in &day.contracts {
            let scale = thinning * (settings.demand_jitter * normal(&mut rng)).exp();
            owed.push((c.owed * scale) as f32);
            left.push((c.left * scale) as f32);
        }
        Self {
            seed,
            thinning,
            keep: (thinning * volume).min(1.0),
            owed,
            left,
            rate_seed: rng.random(),
            start,
            price,
            jump,
        }
    }

    /// Factor on auction worth at a time of the day.
    pub fn price_factor(&self, offset: u64) -> f64 {
        match self.jump {
            Some((at, factor)) if offset >= at => self.price * factor,
            _ => self.price,
        }
    }

    /// `S` of this episode's demands, minor units.
    pub fn stake(&self, day: &DayModel) -> f64 {
        day.contracts.iter().zip(&self.owed).map(|(c, &o)| c.penalty * f64::from(o)).sum()
    }

    /// Delivered counts for a start within the day, drawn around the plan.
    pub fn draw_delivered(&self, day: &DayModel, spread: f64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 0x00DE_11FE_2ED0);
        day.contracts
            .iter()
            .enumerate()
            .map(|(j, c)| {
                let noise = spread * normal(&mut rng);
                if self.start == 0 || c.supply.total() <= 0.0 {
                    return 0.0;
                }
                let planned = c.supply.before(self.start) / c.supply.total();
                // No spread before the flight starts: nothing can have been shown.
                let share = if planned > 0.0 { (planned + noise * planned.sqrt()).max(0.0) } else { 0.0 };
                (share as f32 * self.owed[j]).floor().min(self.left[j].floor()).max(0.0)
            })
            .collect()
    }
}

/// Walks the rows of an episode: each row of the log with probability `keep`.
#[derive(Debug, Clone)]
pub struct RowSampler {
    rng: ChaCha8Rng,
    keep: f64,
    next: usize,
    end: usize,
}

impl RowSampler {
    pub fn new(episode: &Episode, rows: usize) -> Self {
        let mut sampler = Self {
            rng: ChaCha8Rng::seed_from_u64(episode.seed ^ 0x0000_7211_55ED),
            keep: episode.keep,
            next: 0,
            end: rows,
        };
        sampler.next = sampler.gap();
        sampler
    }

    /// Rows left out before the next one: geometric, so that a step costs one draw whatever the thinning.
    fn gap(&mut self) -> usize {
        if self.keep >= 1.0 {
            return 0;
        }
        let u: f64 = self.rng.random();
        ((1.0 - u).ln() / (1.0 - self.keep).ln()) as usize
    }
}

impl Iterator for RowSampler {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let row = self.next;
        if row >= self.end {
            return None;
        }
        self.next = row.saturating_add(1).saturating_add(self.gap());
        Some(row)
    }
}
