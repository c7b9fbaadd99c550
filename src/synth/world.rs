//! A world: the parts that all days share, drawn once from the seed.

use anyhow::Result;
use rand_chacha::ChaCha8Rng;

use super::audience::Audience;
use super::contracts::Contracts;
use super::errors::Errors;
use super::market::Market;
use super::random::{Purpose, stream};
use super::settings::WorldSettings;

/// The parts of a world.
pub struct World {
    pub settings: WorldSettings,
    pub audience: Audience,
    pub contracts: Contracts,
    pub market: Market,
    /// Errors of the logged predictions, if any.
    pub errors: Option<Errors>,
}

impl World {
    /// Draws the parts.
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
