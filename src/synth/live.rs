//! The simulated live policy that served the logged days; it generates `joined_exposure`.
//!
//! A contract that lags behind its pace usually goes first, else the best auction entry; a few requests explore. The policy is
//! legal but not clever: it is the baseline that a trained policy must beat.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::contracts::Contracts;
use super::random::{normal, round};
use super::settings::WorldSettings;
use crate::log::schema::{AdType, ControlRow, ExposureRow, QueueEntry, TrackRow};

/// Probability that a lagging contract goes before the best auction entry.
const CONTRACT_FIRST: f64 = 0.85;
/// Standard deviation of the logarithm of the feedback delay.
const DELAY_LOG_SD: f64 = 1.0;

/// The live policy during one day.
pub struct Live<'a> {
    settings: &'a WorldSettings,
    contracts: &'a Contracts,
    control: &'a [ControlRow],
    midnight: u64,
    /// Impressions per contract, including those before the day.
    delivered: Vec<u64>,
    /// Entries of the current request that may be shown.
    legal: Vec<QueueEntry>,
}

impl<'a> Live<'a> {
    /// Creates the policy. `control` has one row per contract, in the world's order; `midnight` is in Unix milliseconds.
    pub fn new(
        settings: &'a WorldSettings,
        contracts: &'a Contracts,
        control: &'a [ControlRow],
        midnight: u64,
    ) -> Self {
        Self {
            settings,
            contracts,
            control,
            midnight,
            delivered: control.iter().map(|c| c.delivered0).collect(),
            legal: Vec::new(),
        }
    }

    /// Shows one entry of the request; `None` where nothing may be shown.
    pub fn show(&mut self, row: &TrackRow, rng: &mut ChaCha8Rng) -> Option<ExposureRow> {
        self.legal.clear();
        for entry in row.queue.iter().filter(|e| e.filter == 0) {
            let legal = match entry.ad_type {
                AdType::Auction => true,
                AdType::Contract => self.may_show(entry.ad_id, row.ts_ms, rng),
            };
            if legal {
                self.legal.push(*entry);
            }
        }
        let greedy = self.preferences(row.ts_ms);
        let total: f64 = greedy.iter().map(|(_, p)| p).sum();
        let explore = rng.random::<f64>() < self.settings.explore;
        let chosen = if explore && !self.legal.is_empty() {
            rng.random_range(0..self.legal.len())
        } else {
            let mut left = rng.random::<f64>() * total;
            let (last, _) = *greedy.last()?;
            let passed = greedy.iter().find(|(_, p)| {
                left -= p;
                left < 0.0
            });
            passed.map_or(last, |&(index, _)| index)
        };
        let by_chance = self.settings.explore / self.legal.len() as f64;
        let by_choice: f64 =
            greedy.iter().filter(|(index, _)| *index == chosen).map(|(_, p)| (1.0 - self.settings.explore) * p).sum();
        let entry = self.legal[chosen];
        let charge = match entry.ad_type {
            AdType::Auction => round(entry.ecpm / 1000.0, 5),
            AdType::Contract => {
                let index = self.index(entry.ad_id);
                self.delivered[index] += 1;
                0.0
            }
        };
        let delay_s = self.settings.delay_median_s * (DELAY_LOG_SD * normal(rng)).exp();
        Some(ExposureRow {
            request_id: row.request_id,
            ts_ms: row.ts_ms,
            arrival_ms: row.ts_ms + (delay_s * 1000.0) as u64,
            ad_id: entry.ad_id,
            ad_type: entry.ad_type,
            charge,
            ecpm: entry.ecpm,
            pctr: entry.pctr,
            click: rng.random::<f64>() < entry.pctr,
            propensity: Some(round(by_chance + by_choice, 6)),
            explore,
        })
    }

    /// Returns the index of a contract; contracts have consecutive ids.
    fn index(&self, ad_id: u64) -> usize {
        (ad_id - self.control[0].ad_id) as usize
    }

    fn may_show(&self, ad_id: u64, ts_ms: u64, rng: &mut ChaCha8Rng) -> bool {
        let j = self.index(ad_id);
        let row = &self.control[j];
        (row.start_ms..row.end_ms).contains(&ts_ms)
            && self.delivered[j] < row.cap
            && (row.rate >= 1.0 || rng.random::<f64>() < row.rate)
    }

    /// Returns the indices of legal entries with the probabilities of showing them when not exploring.
    fn preferences(&self, ts_ms: u64) -> Vec<(usize, f64)> {
        let of_type = |wanted: AdType| {
            let entries = self.legal.iter().enumerate();
            entries.filter(move |(_, e)| e.ad_type == wanted)
        };
        let most_behind = of_type(AdType::Contract)
            .map(|(i, e)| (i, self.lag(self.index(e.ad_id), ts_ms)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let best_auction = of_type(AdType::Auction)
            .max_by(|(_, a), (_, b)| a.ecpm.total_cmp(&b.ecpm).then(b.ad_id.cmp(&a.ad_id)))
            .map(|(i, _)| i);
        match (most_behind, best_auction) {
            (Some((contract, lag)), Some(auction)) if lag > 0.0 => {
                vec![(contract, CONTRACT_FIRST), (auction, 1.0 - CONTRACT_FIRST)]
            }
            (_, Some(auction)) => vec![(auction, 1.0)],
            (Some((contract, _)), None) => vec![(contract, 1.0)],
            (None, None) => Vec::new(),
        }
    }

    /// Returns how far delivery is behind the expected course of supply, as a share of the impressions owed.
    fn lag(&self, j: usize, ts_ms: u64) -> f64 {
        let row = &self.control[j];
        let owed = row.required - row.delivered0;
        if owed == 0 {
            return 0.0;
        }
        let done = (self.delivered[j] - row.delivered0) as f64 / owed as f64;
        self.contracts.list[j].elapsed_at(ts_ms - self.midnight) - done
    }
}
