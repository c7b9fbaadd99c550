//! Planted errors of the logged predictions: worlds in which the true worth of an impression differs from the log.
//!
//! The truth is the prediction times the exponential of effects of the ad, of the slot, of the ad in the region and of the day;
//! charges and click odds have separate effects. The logged queues do not depend on them, so a world with errors differs from the
//! same world without them only in its exposures and in `truth.tsv`.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::error_settings::{Billing, ErrorSettings};
use super::random::{Purpose, normal, round, stream};
use super::settings::WorldSettings;
use super::{contracts, market};
use crate::log::schema::{AdType, ExposureRow, QueueEntry, TrackRow};

/// True worth of an impression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truth {
    /// Expected charge, minor units per impression; 0 for a contract.
    pub charge: f64,
    /// Click probability.
    pub pctr: f64,
}

/// Effects on charges and on click odds, natural logarithms.
pub type Effect = [f64; 2];

/// Indices of the effects that apply to an impression: ad, slot and region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    pub ad: usize,
    pub slot: usize,
    pub region: usize,
}

/// Effects that all days share.
pub struct Errors {
    pub settings: ErrorSettings,
    contracts: usize,
    regions: usize,
    ad: Vec<Effect>,
    slot: Vec<Effect>,
    ad_region: Vec<Effect>,
}

impl Errors {
    /// Draws the effects of a world; `None` where it has no errors.
    pub fn draw(world: &WorldSettings) -> Option<Self> {
        let settings = world.errors?;
        let mut rng = stream(world.seed, Purpose::Errors, 0);
        let (contracts, regions) = (world.contracts as usize, world.regions as usize);
        let ads = contracts + world.auction_ads as usize;
        let mut effects = |n: usize, sd: f64| -> Vec<Effect> {
            (0..n).map(|_| [sd * normal(&mut rng), sd * normal(&mut rng)]).collect()
        };
        Some(Self {
            ad: effects(ads, settings.ad),
            slot: effects(world.slots as usize, settings.slot),
            ad_region: effects(ads * regions, settings.ad_region),
            settings,
            contracts,
            regions,
        })
    }

    /// Returns the numbers of ads, slots and regions.
    pub fn sizes(&self) -> [usize; 3] {
        [self.ad.len(), self.slot.len(), self.regions]
    }

    /// Returns the indices of the effects that apply to an entry of a request.
    pub fn cell(&self, row: &TrackRow, entry: &QueueEntry) -> Cell {
        let ad = match entry.ad_type {
            AdType::Contract => (entry.ad_id - contracts::FIRST_ID) as usize,
            AdType::Auction => self.contracts + (entry.ad_id - market::FIRST_ID) as usize,
        };
        Cell { ad, slot: row.slot_id as usize - 1, region: row.region as usize - 1 }
    }

    /// Returns the log errors of charge and of click odds without the day's.
    fn lasting(&self, cell: Cell) -> Effect {
        let parts = [self.ad[cell.ad], self.slot[cell.slot], self.ad_region[cell.ad * self.regions + cell.region]];
        [0, 1].map(|head| parts.iter().map(|part| part[head]).sum())
    }
}

/// Errors of one day, with a random stream for its charges and clicks.
pub struct DayErrors<'a> {
    errors: &'a Errors,
    day: Effect,
    rng: ChaCha8Rng,
}

impl<'a> DayErrors<'a> {
    pub fn new(errors: &'a Errors, world: &WorldSettings, day: u32) -> Self {
        let mut rng = stream(world.seed, Purpose::Errors, day + 1);
        let sd = errors.settings.day;
        Self { errors, day: [sd * normal(&mut rng), sd * normal(&mut rng)], rng }
    }

    pub fn cell(&self, row: &TrackRow, entry: &QueueEntry) -> Cell {
        self.errors.cell(row, entry)
    }

    pub fn truth(&self, row: &TrackRow, entry: &QueueEntry) -> Truth {
        let lasting = self.errors.lasting(self.cell(row, entry));
        corrected(entry, [0, 1].map(|head| lasting[head] + self.day[head]))
    }

    /// Replaces charge and click of an exposure by draws from the truth.
    pub fn bill(&mut self, row: &TrackRow, exposure: &mut ExposureRow) {
        let Some(entry) = row.queue.iter().find(|e| e.ad_id == exposure.ad_id) else { return };
        let truth = self.truth(row, entry);
        let sd = self.errors.settings.charge_noise;
        let noise = (sd * normal(&mut self.rng) - 0.5 * sd * sd).exp();
        exposure.click = self.rng.random::<f64>() < truth.pctr;
        let charge = match (self.errors.settings.billing, exposure.click) {
            (Billing::Impressions, _) => truth.charge * noise,
            (Billing::Clicks, true) => truth.charge / truth.pctr * noise,
            (Billing::Clicks, false) => 0.0,
        };
        exposure.charge = round(charge, 5);
    }
}

/// Corrects a logged prediction by log effects on its charge and its click odds.
pub fn corrected(entry: &QueueEntry, effect: Effect) -> Truth {
    let charge = match entry.ad_type {
        AdType::Auction => entry.ecpm / 1000.0 * effect[0].exp(),
        AdType::Contract => 0.0,
    };
    let odds = entry.pctr / (1.0 - entry.pctr) * effect[1].exp();
    Truth { charge, pctr: odds / (1.0 + odds) }
}
