//! Random changes that a training episode makes to a logged day, all drawn from one seed.
//!
//! A step is a run of requests that share the networks' outputs (`episodes.requests_per_step`), and an episode has about a
//! thousand steps. A day with more requests than that is replayed as a Bernoulli sample, with demands scaled by the same
//! factor. Noise falls with the number of requests: on a day thinned to a thousand requests a contract owes a dozen
//! impressions, and the best policy there is not the best one on the whole day. The fractional last unit of a demand pays its
//! fraction.
//!
//! Demands, prices, traffic, the forecast and the starting prices are perturbed by random factors, prices jump, and regions
//! have shocks, because the day to be served differs from the training days. A [`super::Segment`] carries only the seed.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use crate::settings::Episodes;

use super::day::DayModel;
use super::known::KnownDay;
use super::wander::Wander;

/// One draw of the random changes to a day.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    pub seed: u64,
    /// Share of the forecast traffic that is replayed; demands are scaled by it.
    pub thinning: f64,
    /// Share of the logged requests that is replayed in the busiest hour: the thinning times the volume factor.
    pub keep: f64,
    /// Impressions owed and cap left per contract, scaled; fractional.
    pub owed: Vec<f64>,
    pub left: Vec<f64>,
    /// Errors per contract: added to the logit of the starting bid, and a factor on the forecast supply.
    pub start_error: Vec<f32>,
    pub supply_error: Vec<f32>,
    pub rate_seed: u64,
    /// Start of the episode, milliseconds from midnight.
    pub start: u64,
    /// Factor on auction prices, and the jump: its time and a further factor from then on. The jump is not an `Option`:
    /// compilers multiply by its content before they test whether it is present, and uninitialised bytes may be a denormal
    /// number, which costs more than the rest of a request.
    price: f64,
    jump: (u64, f64),
    shocks: Vec<Shock>,
    wander: Wander,
}

/// A factor on a region's prices for some hours.
#[derive(Debug, Clone, PartialEq)]
struct Shock {
    region: u32,
    start: u64,
    end: u64,
    factor: f64,
}

/// Jump of an episode whose prices do not jump.
const NEVER: (u64, f64) = (u64::MAX, 1.0);
/// Maximum number of regional shocks of an episode.
const MOST_SHOCKS: u32 = 2;
/// Duration of a shock, hours.
const SHOCK_HOURS: std::ops::Range<f64> = 1.0..5.0;

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

impl Episode {
    /// Returns the whole day as it was logged.
    pub fn whole_day(day: &KnownDay, rate_seed: u64) -> Self {
        Self {
            seed: 0,
            thinning: 1.0,
            keep: 1.0,
            owed: day.contracts.iter().map(|c| c.owed).collect(),
            left: day.contracts.iter().map(|c| c.left).collect(),
            start_error: vec![0.0; day.contracts.len()],
            supply_error: vec![1.0; day.contracts.len()],
            rate_seed,
            start: 0,
            price: 1.0,
            jump: NEVER,
            shocks: Vec::new(),
            wander: Wander::NONE,
        }
    }

    /// Draws a training episode with steps of `per_step` requests; the same seed and settings give the same episode.
    pub fn draw(day: &DayModel, settings: &Episodes, per_step: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let volume = (settings.volume_jitter * normal(&mut rng)).exp();
        // Replay cannot exceed the logged requests, so traffic above the forecast is replayed as lower demand instead.
        let wander = Wander::draw(settings, &mut rng);
        let most = volume * wander.top();
        let thinning = settings.share_of(day.log.requests().len(), per_step).min(1.0 / most);
        let price = (settings.price_jitter * normal(&mut rng)).exp();
        let jump = if rng.random::<f64>() < settings.jump_share {
            let at = day.traffic.time_of_share(rng.random());
            (at, (settings.jump_sd * normal(&mut rng)).exp())
        } else {
            NEVER
        };
        let count = if settings.shock_sd > 0.0 { rng.random_range(0..=MOST_SHOCKS) } else { 0 };
        let shocks = (0..count)
            .map(|_| {
                let row = rng.random_range(0..day.log.requests().len());
                let start = rng.random_range(0.0..24.0);
                let ms = |hours: f64| (hours * 3_600_000.0) as u64;
                Shock {
                    region: day.log.requests().row(row).region,
                    start: ms(start),
                    end: ms(start + rng.random_range(SHOCK_HOURS)),
                    factor: (settings.shock_sd * normal(&mut rng)).exp(),
                }
            })
            .collect();
        let start =
            if rng.random::<f64>() < settings.mid_day_share { day.traffic.time_of_share(rng.random()) } else { 0 };
        let mut owed = Vec::with_capacity(day.contracts.len());
        let mut left = Vec::with_capacity(day.contracts.len());
        let mut start_error = Vec::with_capacity(day.contracts.len());
        let mut supply_error = Vec::with_capacity(day.contracts.len());
        for c in &day.contracts {
            let scale = thinning * (settings.demand_jitter * normal(&mut rng)).exp();
            // As exact as the records of a device.
            owed.push(f64::from((c.owed * scale) as f32));
            left.push(f64::from((c.left * scale) as f32));
            start_error.push((settings.start_error * normal(&mut rng)) as f32);
            supply_error.push((settings.supply_error * normal(&mut rng)).exp() as f32);
        }
        Self {
            seed,
            thinning,
            keep: (thinning * most).min(1.0),
            owed,
            left,
            start_error,
            supply_error,
            rate_seed: rng.random(),
            start,
            price,
            jump,
            shocks,
            wander,
        }
    }

    /// Makes the episode replay every row of the day from its start.
    pub fn replay_all(&mut self) {
        self.keep = 1.0;
        self.wander = Wander::NONE;
        self.start = 0;
    }

    /// Returns the factor on a region's auction worth at a time of the day.
    pub fn price_factor(&self, region: u32, offset: u64) -> f64 {
        let mut factor = self.price * self.wander.price(region, offset);
        let (at, jump) = self.jump;
        if offset >= at {
            factor *= jump;
        }
        for shock in self.shocks.iter().filter(|s| s.region == region && (s.start..s.end).contains(&offset)) {
            factor *= shock.factor;
        }
        factor
    }

    /// Returns `S` for this episode's demands, minor units.
    pub fn stake(&self, day: &KnownDay) -> f64 {
        day.contracts.iter().zip(&self.owed).map(|(c, &o)| c.penalty * o).sum()
    }

    /// Draws the delivered counts of an episode that starts within the day, around the plan.
    pub fn draw_delivered(&self, day: &KnownDay, spread: f64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 0x00DE_11FE_2ED0);
        day.contracts
            .iter()
            .enumerate()
            .map(|(j, c)| {
                let noise = spread * normal(&mut rng);
                if self.start == 0 || c.pace.total() <= 0.0 {
                    return 0.0;
                }
                let planned = c.pace.before(self.start) / c.pace.total();
                // No spread before the flight starts: nothing can have been shown.
                let share = if planned > 0.0 { (planned + noise * planned.sqrt()).max(0.0) } else { 0.0 };
                (share * self.owed[j]).floor().min(self.left[j].floor()).max(0.0)
            })
            .collect()
    }
}

/// Iterator over the rows of an episode: each row of the log is kept with probability `keep` times the volume of its hour as a
/// share of the busiest hour's.
#[derive(Debug, Clone)]
pub struct RowSampler<'a> {
    rng: ChaCha8Rng,
    day: &'a DayModel,
    /// `None` if the hourly volume is as logged.
    wander: Option<Box<Wander>>,
    keep: f64,
    next: usize,
}

impl<'a> RowSampler<'a> {
    pub fn new(episode: &Episode, day: &'a DayModel) -> Self {
        let mut sampler = Self {
            rng: ChaCha8Rng::seed_from_u64(episode.seed ^ 0x0000_7211_55ED),
            day,
            wander: (episode.wander != Wander::NONE).then(|| Box::new(episode.wander.clone())),
            keep: episode.keep,
            next: 0,
        };
        sampler.next = sampler.gap();
        sampler
    }

    /// Draws the number of rows to skip before the next one: geometric, so that a step costs one draw at any thinning.
    fn gap(&mut self) -> usize {
        if self.keep >= 1.0 {
            return 0;
        }
        let u: f64 = self.rng.random();
        ((1.0 - u).ln() / (1.0 - self.keep).ln()) as usize
    }
}

impl Iterator for RowSampler<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            let row = self.next;
            if row >= self.day.log.requests().len() {
                return None;
            }
            self.next = row.saturating_add(1).saturating_add(self.gap());
            let Some(wander) = &self.wander else { return Some(row) };
            if self.rng.random::<f64>() < wander.volume_share(self.day.offset(row)) {
                return Some(row);
            }
        }
    }
}
