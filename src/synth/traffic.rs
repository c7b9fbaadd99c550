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

/// Requests to expect of a day under its conditions, over those of a mean day.
pub fn volume(audience: &Audience, day: &Conditions) -> f64 {
    let mut shares = vec![0.0; audience.curves.len()];
    for cell in &audience.cells {
        shares[cell.region as usize - 1] += cell.share;
    }
    let (mut all, mut more) = (0.0, 0.0);
    for (share, curve) in shares.iter().zip(&audience.curves) {
        for (bin, part) in curve.iter().enumerate() {
            let weight = share * part * day.hour_traffic[bin / 2];
            all += weight;
            more += weight * (day.wander.volume[bin / 2] - 1.0);
        }
    }
    day.volume * (1.0 + more / all)
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
    let most = day.wander.volume.iter().copied().fold(0.0, f64::max);
    let mut arrivals = Vec::with_capacity(count);
    while arrivals.len() < count {
        let (cell, user) = audience.pick(rng);
        let region = audience.cells[cell].region as usize - 1;
        let bin = bins[region].sample(rng);
        // Quiet hours turn requests away. A day that does not wander draws nothing for it.
        let kept = day.wander.volume[bin / 2] / most;
        if kept < 1.0 && rng.random::<f64>() >= kept {
            continue;
        }
        arrivals.push(Arrival { ms: bin as u64 * BIN_MS + rng.random_range(0..BIN_MS), cell, user });
    }
    arrivals.sort_by_key(|a| a.ms);
    Ok(arrivals)
}
