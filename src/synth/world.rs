//! The parts of a world that all days share.

use anyhow::Result;
use rand_chacha::ChaCha8Rng;

use super::audience::Audience;
use super::contracts::Contracts;
use super::draw::{Purpose, stream};
use super::errors::Errors;
use super::market::Market;
use super::settings::WorldSettings;

/// The parts of a world that all days share.
pub struct World {
    pub settings: WorldSettings,
    pub audience: Audience,
    pub contracts: Contracts,
    pub market: Market,
    /// Errors of the logged predictions, if any.
    pub errors: Option<Errors>,
}

impl World {
    /// Draws the parts that all days share.
    ///
    /// # Errors
    /// Settings that leave nobody or nothing to draw from.
    pub fn build(settings: WorldSettings) -> Result<Self> {
        let fixed = |purpose| stream(settings.seed, purpose, 0);
        let audience = Audience::draw(&settings, &mut fixed(Purpose::Audience))?;
        let contracts = Contracts::draw(&settings, &audience, &mut fixed(Purpose::Contracts));
        let mut rng = fixed(Purpose::Market);
        let market = Market::draw(&settings, &audience, &contracts, &mut rng)?;
        let errors = Errors::draw(&settings);
        Ok(Self { settings, audience, contracts, market, errors })
    }

    /// Returns the random stream of a day for one purpose.
    pub fn rng(&self, purpose: Purpose, day: u32) -> ChaCha8Rng {
        stream(self.settings.seed, purpose, day)
    }
}

/// File of a written world's settings, with everything drawn, beside its days.
pub const WORLD_FILE: &str = "world.toml";
