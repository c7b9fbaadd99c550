//! When requests arrive and from whom.

use anyhow::Result;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::audience::{Audience, BIN_MS};
use super::conditions::Conditions;

/// One request before its queue is known.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Milliseconds after midnight.
    pub ms: u64,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the user.
    pub user: usize,
}

/// Draws `count` requests of a day, in the order of their times.
///
/// # Errors
/// Only if the day's curve is degenerate.
pub fn arrivals(audience: &Audience, day: &Conditions, count: usize, rng: &mut ChaCha8Rng) -> Result<Vec<Arrival>> {
    let bins = audience
        .curves
        .iter()
        .map(|curve| {
            let weights = curve.iter().enumerate();
            WeightedAliasIndex::new(weights.map(|(b, w)| w * day.hour_traffic[b / 2]).collect())
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut arrivals: Vec<Arrival> = (0..count)
        .map(|_| {
            let (cell, user) = audience.pick(rng);
            let region = audience.cells[cell].region as usize - 1;
            let bin = bins[region].sample(rng) as u64;
            Arrival { ms: bin * BIN_MS + rng.random_range(0..BIN_MS), cell, user }
        })
        .collect();
    arrivals.sort_by_key(|a| a.ms);
    Ok(arrivals)
}
