//! The true process of a written world, for the reference policy that knows it and for nothing else.
//!
//! A world's file ([`WORLD_FILE`]) has the parameters from which its days were drawn. It gives the expected traffic and any number
//! of requests of a day without deviations. The draws of the written days have separate streams, so knowing the process reveals
//! nothing about a day's own future.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::audience::BINS;
use super::conditions::Conditions;
use super::day::QueueBuilder;
use super::settings::WorldSettings;
use super::traffic;
use super::world::World;
use super::world_file::{WORLD_FILE, load};
use crate::log::schema::{AdType, ControlRow};

/// Slot, region, gender and age of a request.
type Kind = (u32, u32, u8, u8);

/// The process of a world.
pub struct Truth {
    world: World,
    /// Index of each cell.
    cells: HashMap<Kind, usize>,
}

/// A request of a day without deviations from the expected one.
#[derive(Debug, Clone, PartialEq)]
pub struct Typical {
    /// Milliseconds from midnight.
    pub ms: u64,
    pub region: u32,
    /// Best auction worth, minor units per impression; 0 if there is none.
    pub best: f64,
    /// Logarithm of the usual worth for its kind and time.
    pub usual: f64,
    /// Number of auction ads that may be shown.
    pub auctions: usize,
    /// Id and predicted click probability of each contract that may be shown.
    pub contracts: Vec<(u64, f64)>,
}

impl Truth {
    /// Returns the process of the world to which a day's directory belongs; `None` where there is no world file beside it.
    ///
    /// # Errors
    /// A world file that cannot be used.
    pub fn beside(day: &Path) -> Result<Option<Self>> {
        let Some(folder) = day.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned)) else {
            return Ok(None);
        };
        let path = folder.join(WORLD_FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let settings = load(&path)?.drawn()?;
        Ok(Some(Self::of(settings).with_context(|| format!("in the world file {}", path.display()))?))
    }

    /// Builds the process of a world from fully drawn settings.
    ///
    /// # Errors
    /// Inconsistent settings.
    pub fn of(settings: WorldSettings) -> Result<Self> {
        let world = World::build(settings)?;
        let cells = world.audience.cells.iter().enumerate();
        let cells = cells.map(|(i, c)| ((c.slot, c.region, c.gender, c.age), i)).collect();
        Ok(Self { world, cells })
    }

    pub fn settings(&self) -> &WorldSettings {
        &self.world.settings
    }

    /// Returns the expected requests of a mean day by region (from 0) and half hour.
    pub fn expected(&self) -> Vec<[f64; BINS]> {
        let audience = &self.world.audience;
        let mut shares = vec![0.0; audience.curves.len()];
        for cell in &audience.cells {
            shares[cell.region as usize - 1] += cell.share;
        }
        let requests = f64::from(self.world.settings.requests);
        let of = |(share, curve): (f64, &Vec<f64>)| std::array::from_fn(|bin| requests * share * curve[bin]);
        shares.into_iter().zip(&audience.curves).map(of).collect()
    }

    /// Returns the logarithm of the usual auction worth for a kind of request at a time of the day, without the effect of the
    /// number of auction ads; `None` for a kind that the world does not have.
    pub fn usual(&self, kind: Kind, ms: u64) -> Option<f64> {
        let cell = &self.world.audience.cells[*self.cells.get(&kind)?];
        Some(self.usual_of(cell.level, ms))
    }

    fn usual_of(&self, level: f64, ms: u64) -> f64 {
        self.world.market.base_log - 1000f64.ln() + level + Conditions::expected().price_log(1, ms)
    }

    /// Draws `count` requests of a day without deviations, in time order.
    ///
    /// # Errors
    /// Only if the world is degenerate.
    pub fn typical(&self, count: usize, seed: u64) -> Result<Vec<Typical>> {
        let World { settings, audience, contracts, .. } = &self.world;
        let conditions = Conditions::expected();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let control: Vec<ControlRow> = contracts.control(settings, 0, &mut rng);
        let arrivals = traffic::arrivals(audience, &conditions, count, &mut rng)?;
        let mut queues = QueueBuilder::new(&self.world, &conditions, &control, rng);
        let typical = |arrival: &traffic::Arrival| {
            let cell = &audience.cells[arrival.cell];
            let queue = queues.build(arrival);
            let shown = |wanted| queue.iter().filter(move |e| e.ad_type == wanted && e.filter == 0);
            Typical {
                ms: arrival.ms,
                region: cell.region,
                best: shown(AdType::Auction).map(|e| e.ecpm / 1000.0).fold(0.0, f64::max),
                usual: self.usual_of(cell.level, arrival.ms),
                auctions: shown(AdType::Auction).count(),
                contracts: shown(AdType::Contract).map(|e| (e.ad_id, e.pctr)).collect(),
            }
        };
        Ok(arrivals.iter().map(typical).collect())
    }
}
