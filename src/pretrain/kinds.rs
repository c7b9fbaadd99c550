//! Kinds of worlds to learn from: most wander as the world file says, some are calm.
//!
//! Who learns from worlds that wander only expects prices and volume to return to their forecast. In a calm world what jumps stays.

use crate::synth::WorldSettings;

/// One world in this many is calm.
const EVERY: usize = 9;
/// What a calm world draws: log-sd of the volume of hours and of the prices of groups of regions.
const DRAWN: [(&str, [f64; 2]); 2] = [("volume_noise", [0.02, 0.08]), ("group_price_noise", [0.01, 0.05])];

/// A world file and the same with calm hours.
pub struct Kinds {
    wandering: WorldSettings,
    calm: WorldSettings,
}

impl Kinds {
    pub fn of(world: &WorldSettings) -> Self {
        let mut calm = world.clone();
        calm.draw.extend(DRAWN.map(|(key, range)| (key.to_owned(), range)));
        Self { wandering: world.clone(), calm }
    }

    /// Returns the world file of the `i`th world.
    pub fn of_world(&self, i: usize) -> &WorldSettings {
        if i % EVERY == EVERY - 1 { &self.calm } else { &self.wandering }
    }
}
