//! The auction side: ads, their bids, and the calibration of the best bids of a queue to the settings.
//!
//! The spread of the best bid and its distance to the second depend on queue lengths, popularity and filters without a closed
//! formula, so both are measured on trial queues and then scaled.

use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::audience::Audience;
use super::conditions::Conditions;
use super::contracts::Contracts;
use super::random::normal;
use super::settings::WorldSettings;
use super::traffic;

/// Id of the first auction ad.
pub const FIRST_ID: u64 = 1001;
/// Share of the variance within a queue that is fixed per ad; the rest is drawn per entry.
const QUALITY_SHARE: f64 = 0.3;
const TRIAL_DAYS: u32 = 10;
const TRIAL_REQUESTS: usize = 2000;

/// One auction candidate before its price is determined.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Index of the ad.
    pub ad: usize,
    /// Unit-variance offset of the logarithm of its eCPM within the queue.
    pub offset: f64,
    pub filter: u64,
}

/// The auction ads and the scales of their prices.
pub struct Market {
    quality: Vec<f64>,
    /// Logarithm of each ad's click probability relative to the mean ad.
    pub click_log: Vec<f64>,
    picker: WeightedAliasIndex<f64>,
    filter_share: f64,
    /// Standard deviation of the log eCPM between the entries of one queue.
    pub within: f64,
    /// Standard deviation of the log eCPM between users and moments of one cell.
    pub personal: f64,
    /// Logarithm of the eCPM of a mean request and ad.
    pub base_log: f64,
}

impl Market {
    /// Draws the ads and calibrates the scales on trial days.
    ///
    /// # Errors
    /// If `best_log_sd` is less than the spread from cells, hours and ads alone.
    pub fn draw(
        settings: &WorldSettings,
        audience: &Audience,
        contracts: &Contracts,
        rng: &mut ChaCha8Rng,
    ) -> Result<Self> {
        let ads = settings.auction_ads as usize;
        let popularity = (1..=ads).map(|i| (i as f64).powf(-settings.zipf)).collect();
        let mut market = Self {
            quality: (0..ads).map(|_| normal(rng)).collect(),
            click_log: (0..ads).map(|_| 0.4 * normal(rng)).collect(),
            picker: WeightedAliasIndex::new(popularity)?,
            filter_share: settings.filter_share,
            within: 1.0,
            personal: 0.0,
            base_log: 0.0,
        };
        // Popular ads tend to bid a little more than the rest.
        market.quality.sort_by(|a, b| b.total_cmp(a));
        for i in 0..ads {
            let j = rng.random_range(i.saturating_sub(ads / 2)..ads.min(i + ads / 2 + 1));
            market.quality.swap(i, j);
        }
        let mut trial = ChaCha8Rng::from_rng(rng);
        market.calibrate(settings, audience, contracts, &mut trial)?;
        Ok(market)
    }

    pub fn ad_id(&self, ad: usize) -> u64 {
        FIRST_ID + ad as u64
    }

    /// Fills `queue` with `count` different ads.
    pub fn candidates(&self, count: usize, queue: &mut Vec<Draw>, rng: &mut ChaCha8Rng) {
        queue.clear();
        while queue.len() < count {
            let ad = self.picker.sample(rng);
            if queue.iter().any(|d| d.ad == ad) {
                continue;
            }
            queue.push(Draw {
                ad,
                offset: QUALITY_SHARE.sqrt() * self.quality[ad] + (1.0 - QUALITY_SHARE).sqrt() * normal(rng),
                filter: u64::from(rng.random::<f64>() < self.filter_share),
            });
        }
    }

    fn calibrate(
        &mut self,
        settings: &WorldSettings,
        audience: &Audience,
        contracts: &Contracts,
        rng: &mut ChaCha8Rng,
    ) -> Result<()> {
        let (mut levels, mut bests, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        let mut queue = Vec::new();
        for _ in 0..TRIAL_DAYS {
            let day = Conditions::typical(settings, rng);
            for arrival in traffic::arrivals(audience, &day, TRIAL_REQUESTS, rng)? {
                let cell = &audience.cells[arrival.cell];
                let present = contracts.eligible(arrival.cell, arrival.ms).count();
                self.candidates(auction_entries(settings, present), &mut queue, rng);
                let mut top = [f64::NEG_INFINITY; 2];
                for draw in queue.iter().filter(|d| d.filter == 0) {
                    if draw.offset > top[0] {
                        top = [draw.offset, top[0]];
                    } else if draw.offset > top[1] {
                        top[1] = draw.offset;
                    }
                }
                if top[1].is_finite() {
                    levels.push(cell.level + day.price_log(cell.region, arrival.ms));
                    bests.push(top[0]);
                    gaps.push(top[0] - top[1]);
                }
            }
        }
        ensure!(gaps.len() > 1000, "hardly any queue has two auction entries that may be shown; lower `filter_share`");
        gaps.sort_by(f64::total_cmp);
        self.within = settings.top_ratio.ln() / gaps[gaps.len() / 2];
        let logs: Vec<f64> = levels.iter().zip(&bests).map(|(level, best)| level + self.within * best).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let centre = mean(&logs);
        let squares: Vec<f64> = logs.iter().map(|x| (x - centre).powi(2)).collect();
        let variance = mean(&squares);
        let rest = settings.best_log_sd.powi(2) - variance;
        ensure!(
            rest >= 0.0,
            "`best_log_sd = {}` is less than the {:.3} by which cells, hours and ads already spread; \
             raise it, or lower `cell_log_sd` or `top_ratio`",
            settings.best_log_sd,
            variance.sqrt()
        );
        self.personal = rest.sqrt();
        let worths: Vec<f64> = logs.iter().map(|x| x.exp()).collect();
        self.base_log = settings.mean_best_ecpm.ln() - mean(&worths).ln() - rest / 2.0;
        Ok(())
    }
}

/// Returns the number of auction entries of a queue with `contracts` contracts.
pub fn auction_entries(settings: &WorldSettings, contracts: usize) -> usize {
    settings.queue.saturating_sub(contracts).max(2)
}
