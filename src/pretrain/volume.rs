//! Shipped moments of the planner's volume model: the deviation of volume from its forecast in many worlds.

use std::path::Path;

use anyhow::Context as _;

use crate::log::{self, CompileOptions};
use crate::plan::volume::Moments;
use crate::plan::{DayVolume, Forecast};
use crate::synth::{self, WorldSettings};

use super::kinds::Kinds;

/// Days of a world. Each day is predicted from the others of its group; group sizes vary because users have few days or many.
const DAYS: u32 = 6;
const GROUPS: [usize; 3] = [6, 3, 2];

/// Levels of a day beside its own, with their weights: a day may miss a quarter of its requests as no other day did.
const LEVELS: [(f64, f64); 3] = [(1.0, 1.0), (0.75, 0.06), (1.0 / 0.75, 0.06)];

/// Generates `worlds` worlds, with seeds from `first_seed` on, and sums their moments. Worlds are written to `scratch` one at
/// a time.
///
/// # Errors
/// If a world cannot be generated, or there is no room for it.
pub fn moments(world: &WorldSettings, first_seed: u64, worlds: usize, scratch: &Path) -> anyhow::Result<Moments> {
    let mut all = Moments::default();
    let kinds = Kinds::of(world);
    for (i, seed) in (first_seed..).take(worlds).enumerate() {
        let folder = tempfile::tempdir_in(scratch)?;
        synth::generate(kinds.of_world(i), folder.path(), DAYS, seed, &|_| {})
            .with_context(|| format!("world {seed} cannot be made"))?;
        let mut days = Vec::new();
        for day in 0..DAYS {
            let dir = folder.path().join(format!("day-{day}"));
            let log = log::open(&dir, CompileOptions::default())?;
            let forecast = Forecast::of_directory(&dir)?.context("a drawn day has a forecast")?;
            days.push(DayVolume::of(&log, &forecast));
        }
        for group in GROUPS {
            days.chunks_exact(group)
                .for_each(|days| all.add(&Moments::of_levels(days, &LEVELS), 1.0 / GROUPS.len() as f64));
        }
        say!("world {seed}: {} days so far", all.days().round());
    }
    Ok(all)
}
