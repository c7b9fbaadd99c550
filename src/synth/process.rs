//! Keys that a world file leaves open: each world draws them from its seed.
//!
//! A claim about wandering traffic needs worlds with different parameters, not one process with different noise. A `[draw]`
//! table names keys and ranges; [`WorldSettings::drawn`] is one world of that file. Each key has its own random stream, so that
//! another key in the table leaves the other draws alone.

use anyhow::{Context, Result, bail, ensure};
use rand::RngExt;
use toml::Value;

use super::random::{Purpose, round, stream};
use super::settings::WorldSettings;

/// Keys that identify a world and control its writing; they cannot be drawn themselves.
const FIXED: [&str; 3] = ["seed", "days", "draw"];

impl WorldSettings {
    /// Returns the world that the seed draws: every key of `draw` has a value, and `draw` is empty.
    ///
    /// # Errors
    /// A key that cannot be drawn, or whose drawn value does not fit the others.
    pub fn drawn(&self) -> Result<Self> {
        let at = |key: &str, range: [f64; 2]| {
            // FNV-1a of the name: the stream must not depend on the other keys of the table.
            let place = key.bytes().fold(0x811C_9DC5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
            let unit: f64 = stream(self.seed, Purpose::Process, place).random();
            range[0] + unit * (range[1] - range[0])
        };
        let world = self.with_drawn(at)?;
        world.validate().with_context(|| format!("in the world that seed {} draws", self.seed))?;
        Ok(world)
    }

    /// Checks that every key of `draw` can be drawn, and that both ends of all ranges are valid.
    pub(super) fn check_draws(&self) -> Result<()> {
        for (key, [low, high]) in &self.draw {
            ensure!(low <= high, "`draw.{key} = [{low}, {high}]`: the first must not exceed the second");
        }
        for end in [0, 1] {
            self.with_drawn(|_, range| range[end])?.validate().context("in the `[draw]` table")?;
        }
        Ok(())
    }

    fn with_drawn(&self, at: impl Fn(&str, [f64; 2]) -> f64) -> Result<Self> {
        if self.draw.is_empty() {
            return Ok(self.clone());
        }
        let mut table = toml::Table::try_from(Self { draw: std::collections::BTreeMap::new(), ..self.clone() })?;
        for (key, &range) in &self.draw {
            if FIXED.contains(&key.as_str()) {
                bail!("`draw.{key}`: this key is not a world's to draw; set `{key}` itself");
            }
            let value = at(key, range);
            let place = table.get_mut(key).with_context(|| format!("`draw.{key}`: there is no key `{key}`"))?;
            *place = match place {
                Value::Integer(_) => Value::Integer(value.round() as i64),
                // Six digits are precise enough and short.
                Value::Float(_) => Value::Float(round(value, 6)),
                _ => bail!("`draw.{key}`: only numbers can be drawn"),
            };
        }
        Ok(table.try_into()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(draw: &str) -> WorldSettings {
        toml::from_str(&format!("seed = 5\n[draw]\n{draw}")).unwrap()
    }

    #[test]
    fn draws_lie_in_their_range_and_depend_on_the_seed_and_their_own_key_alone() {
        let one = world("requests = [10000, 60000]\nvolume_noise = [0.15, 0.45]");
        let a = one.drawn().unwrap();
        assert!((10_000..=60_000).contains(&a.requests) && (0.15..=0.45).contains(&a.volume_noise));
        assert!(a.draw.is_empty());
        assert_eq!(a, one.drawn().unwrap());
        assert_eq!(a, a.drawn().unwrap(), "a world that is drawn stays as it is");
        let alone = world("volume_noise = [0.15, 0.45]").drawn().unwrap();
        assert_eq!(alone.volume_noise, a.volume_noise);
        assert_eq!(alone.requests, WorldSettings::default().requests);
        let other = WorldSettings { seed: 6, ..one }.drawn().unwrap();
        assert!(other.volume_noise != a.volume_noise && other.requests != a.requests);
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        for (draw, why) in [
            ("seed = [1, 9]", "draw.seed"),
            ("volum_noise = [0.1, 0.2]", "volum_noise"),
            ("compress = [0, 1]", "only numbers"),
            ("fill = [0.6, 0.2]", "must not exceed"),
            ("part_day_share = [0.0, 1.5]", "part_day_share = 1.5"),
        ] {
            let message = format!("{:#}", world(draw).check_draws().unwrap_err());
            assert!(message.contains(why), "{draw}: {message}");
        }
    }
}
