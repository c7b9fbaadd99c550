//! Synthetic ad logs: worlds whose difficulty is known and can be dialled.
//!
//! Real logs with guaranteed contracts are not public, and public logs show neither what would have been possible nor why a day
//! was hard. A synthetic world has the properties that make the real problem hard: prices that vary by a factor of five between
//! requests, demand that competes, days that differ from yesterday and from the forecast. Each has its own key, so that a claim
//! about a policy can be tested against the cause that it names.
//!
//! The fixed parts (users, contracts, ads) are drawn once from the seed. Every day then draws each of its parts from a separate
//! stream, so that days can be written in any order, by any number of threads, with the same bytes, and changing one key (the
//! demands, say) leaves the other draws alone.
//!
//! | files | contents |
//! |---|---|
//! | [`settings`], [`error_settings`], [`world_file`] | the keys of a world file, and reading one |
//! | [`process`], [`like`] | keys that each world draws; worlds like given days |
//! | [`world`]: [`audience`], [`contract`], [`contracts`], [`demand`], [`market`] | what all days share |
//! | [`errors`], [`posterior`] | planted errors, and what can be learned of them |
//! | [`conditions`], [`wander`], [`traffic`], [`forecast`] | what differs from day to day |
//! | [`day`], [`live`] | drawing and writing a day; the policy that served it |
//! | [`truth`] | the process of a written world, for the reference policy that knows it |
//! | [`random`] | random streams |

mod audience;
mod conditions;
mod contract;
mod contracts;
mod day;
mod demand;
mod error_settings;
mod errors;
mod forecast;
mod like;
mod live;
mod market;
mod posterior;
mod process;
mod random;
mod settings;
mod traffic;
mod truth;
mod wander;
mod world;
mod world_file;

use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;

pub use conditions::HOUR_CORRELATION;
pub use error_settings::{Billing, ErrorSettings};
use posterior::{Observation, Posterior};
pub use settings::{Compress, Jump, WorldSettings};
pub use truth::{Truth, Typical};
pub use wander::group_of;
use world::World;
pub use world_file::{WORLD_FILE, load};

/// Writes `out/day-0` .. `out/day-(days-1)` of the world that `seed` draws, and then [`WORLD_FILE`]. `days` and `seed` override
/// the settings'.
///
/// `progress` is called with the number of finished days. The bytes depend on the settings, except `days`, and on the seed, but
/// not on the number of threads.
///
/// # Errors
/// Inconsistent settings, or files that cannot be written.
pub fn generate(world: &WorldSettings, out: &Path, days: u32, seed: u64, progress: &dyn Fn(u32)) -> Result<()> {
    let settings = WorldSettings { days, seed, ..world.clone() }.drawn()?;
    let described = toml::to_string(&settings).context("world settings are plain values")?;
    let world = World::build(settings)?;
    let write = |days: std::ops::Range<u32>, posterior: Option<&Posterior>| -> Result<Vec<Observation>> {
        let mut seen = Vec::new();
        let days: Vec<u32> = days.collect();
        for batch in days.chunks(rayon::current_num_threads()) {
            let written = batch.par_iter().map(|&day| {
                let dir = out.join(format!("day-{day}"));
                let written = day::write_day(&world, day, &dir, posterior);
                written.with_context(|| format!("cannot write {}", dir.display()))
            });
            for observations in written.collect::<Result<Vec<_>>>()? {
                seen.extend(observations);
            }
            for day in batch {
                progress(day + 1);
            }
        }
        Ok(seen)
    };
    if let Some(errors) = &world.errors {
        let train = errors.settings.train_days.min(days);
        let seen = write(0..train, None)?;
        let wanted = train < days && !world.settings.exposures_only && errors.settings.billing == Billing::Impressions;
        let posterior = wanted.then(|| Posterior::learn(errors, train as usize, &seen));
        if posterior.is_some() {
            // The training days are written again, because a policy that uses the posterior also plans with it.
            write(0..train, posterior.as_ref())?;
        }
        write(train..days, posterior.as_ref())?;
    } else {
        write(0..days, None)?;
    }
    // Last, so that it exists only beside complete worlds.
    let path = out.join(WORLD_FILE);
    std::fs::write(&path, described).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests;
