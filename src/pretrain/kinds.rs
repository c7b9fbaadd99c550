//! Kinds of worlds to learn from: most wander as the world file says, some are calm.
//!
//! A model that learns only from worlds that wander expects prices and volume to return to their forecast. In a calm world they stay
//! where they jumped.

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::synth;

    #[test]
    fn every_ninth_world_is_calm_and_can_be_made() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/synth/volatile.toml");
        let wandering = synth::load(&file).unwrap();
        let kinds = Kinds::of(&wandering);
        let calm: Vec<usize> = (0..20).filter(|&i| kinds.of_world(i).draw != wandering.draw).collect();
        assert_eq!(calm, [8, 17]);
        for (key, range) in DRAWN {
            assert_eq!(kinds.of_world(8).draw[key], range);
            assert!(
                range[1] <= wandering.draw[key][0],
                "{key} is drawn from no higher values than in worlds that wander"
            );
        }
        let mut small = kinds.of_world(8).clone();
        small.draw.insert("requests".into(), [2000.0, 3000.0]);
        synth::generate(&small, tempfile::tempdir().unwrap().path(), 1, 1, &|_| {}).unwrap();
    }
}
