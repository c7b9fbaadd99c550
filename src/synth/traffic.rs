//! Arrival times of requests, with their cells and users.

use anyhow::Result;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::audience::{Audience, BIN_MS};
use super::conditions::Conditions;
use crate::log::schema::DAY_MS;

/// One request before its queue is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Milliseconds after midnight.
    pub ms: u64,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the user.
    pub user: usize,
}

/// Compact form of an arrival while a day is sorted.
#[derive(Clone, Copy)]
struct Packed {
    ms: u32,
    cell: u32,
    user: u32,
}

/// Returns the expected requests of a day under its conditions, relative to a mean day.
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

/// Draws `count` requests of a day, in time order.
///
/// # Errors
/// Only if the day's curve is degenerate.
pub fn arrivals(audience: &Audience, day: &Conditions, count: usize, rng: &mut ChaCha8Rng) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::with_capacity(count);
    *rng = draw(audience, day, count, rng.clone(), 0..DAY_MS, &mut |arrival| arrivals.push(arrival))?;
    Ok(arrivals)
}

/// Maximum number of arrivals in memory.
const HELD: usize = 2_000_000;

/// Passes the requests of a day to `each`, in time order. They are those of [`arrivals`], but a long day is drawn several times and
/// sorted part by part, so that memory stays small.
///
/// # Errors
/// As [`arrivals`], or any error of `each`.
pub fn each_arrival(
    audience: &Audience,
    day: &Conditions,
    count: usize,
    rng: &ChaCha8Rng,
    each: &mut dyn FnMut(Arrival) -> Result<()>,
) -> Result<()> {
    in_parts(audience, day, count, rng, count.div_ceil(HELD).max(1) as u64, each)
}

fn in_parts(
    audience: &Audience,
    day: &Conditions,
    count: usize,
    rng: &ChaCha8Rng,
    parts: u64,
    each: &mut dyn FnMut(Arrival) -> Result<()>,
) -> Result<()> {
    for part in 0..parts {
        let times = part * DAY_MS / parts..(part + 1) * DAY_MS / parts;
        let mut outcome = Ok(());
        draw(audience, day, count, rng.clone(), times, &mut |arrival| {
            if outcome.is_ok() {
                outcome = each(arrival);
            }
        })?;
        outcome?;
    }
    Ok(())
}

/// Draws all requests of a day and passes those within `times` on, sorted; returns the state of the random stream afterwards.
fn draw(
    audience: &Audience,
    day: &Conditions,
    count: usize,
    mut rng: ChaCha8Rng,
    times: std::ops::Range<u64>,
    each: &mut dyn FnMut(Arrival),
) -> Result<ChaCha8Rng> {
    let bins = audience
        .curves
        .iter()
        .map(|curve| {
            let weights = curve.iter().enumerate();
            WeightedAliasIndex::new(weights.map(|(b, w)| w * day.hour_traffic[b / 2]).collect())
        })
        .collect::<Result<Vec<_>, _>>()?;
    let most = day.wander.volume.iter().copied().fold(0.0, f64::max);
    let (mut held, mut drawn) = (Vec::new(), 0);
    while drawn < count {
        let (cell, user) = audience.pick(&mut rng);
        let region = audience.cells[cell].region as usize - 1;
        let bin = bins[region].sample(&mut rng);
        // Quiet hours reject requests. A day without wandering draws no random number for that.
        let kept = day.wander.volume[bin / 2] / most;
        if kept < 1.0 && rng.random::<f64>() >= kept {
            continue;
        }
        drawn += 1;
        let ms = bin as u64 * BIN_MS + rng.random_range(0..BIN_MS);
        if times.contains(&ms) {
            held.push(Packed { ms: ms as u32, cell: cell as u32, user: user as u32 });
        }
    }
    held.sort_by_key(|a| a.ms);
    for Packed { ms, cell, user } in held {
        each(Arrival { ms: ms.into(), cell: cell as usize, user: user as usize });
    }
    Ok(rng)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use crate::synth::settings::WorldSettings;

    #[test]
    fn a_day_that_is_drawn_part_by_part_is_the_one_that_is_drawn_at_once() {
        let audience = Audience::draw(&WorldSettings::default(), &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        let rng = ChaCha8Rng::seed_from_u64(7);
        let drawn = |parts| {
            let mut all = Vec::new();
            let each = &mut |a: Arrival| {
                all.push((a.ms, a.cell, a.user));
                Ok(())
            };
            in_parts(&audience, &Conditions::expected(), 5_000, &rng, parts, each).unwrap();
            all
        };
        let whole = drawn(1);
        assert_eq!(whole.len(), 5_000);
        assert!([2, 7, 1_000].into_iter().all(|parts| drawn(parts) == whole));
    }
}
