//! The supply forecast of a day: the expected traffic of each cell, with the errors of a forecaster.

use rand_chacha::ChaCha8Rng;

use super::audience::Audience;
use super::random::{normal, round};
use super::settings::WorldSettings;
use crate::log::schema::InventoryRow;

/// Shares are written in millionths, which are distributed so that they sum to exactly one.
const UNITS: f64 = 1e6;

/// Bias of a world's forecaster, the same on every day, in the logarithm.
pub struct Bias {
    all: f64,
    regions: Vec<f64>,
}

impl Bias {
    pub fn draw(settings: &WorldSettings, rng: &mut ChaCha8Rng) -> Self {
        let mut one = || settings.forecast_bias * normal(rng);
        Self { all: one(), regions: (0..settings.regions).map(|_| one()).collect() }
    }

    fn of(&self, region: u32) -> f64 {
        self.all + self.regions[region as usize - 1]
    }
}

/// Draws the forecast, one node per cell. It does not include the day's own volume and hours.
pub fn nodes(settings: &WorldSettings, audience: &Audience, bias: &Bias, rng: &mut ChaCha8Rng) -> Vec<InventoryRow> {
    let common = settings.forecast_common_error * normal(rng);
    let curves: Vec<Vec<f64>> = audience.curves.iter().map(|c| printable(c)).collect();
    (1..)
        .zip(&audience.cells)
        .map(|(node_id, cell)| {
            let error = common + bias.of(cell.region) + settings.forecast_error * normal(rng);
            InventoryRow {
                node_id,
                slot_id: cell.slot,
                region: cell.region,
                gender: cell.gender,
                age: cell.age,
                pv: round(f64::from(settings.requests) * cell.share * error.exp(), 3),
                curve: curves[cell.region as usize - 1].clone(),
                ad_ids: Vec::new(),
            }
        })
        .collect()
}

/// Rounds shares to the written precision; the largest one takes the remainder.
fn printable(curve: &[f64]) -> Vec<f64> {
    let mut units: Vec<f64> = curve.iter().map(|s| (s * UNITS).round()).collect();
    let rest = UNITS - units.iter().sum::<f64>();
    if let Some(largest) = units.iter_mut().max_by(|a, b| a.total_cmp(b)) {
        *largest += rest;
    }
    units.into_iter().map(|u| u / UNITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn printed_curves_sum_to_one_and_pv_has_the_configured_error() {
        let settings = WorldSettings { forecast_common_error: 0.0, ..WorldSettings::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let audience = Audience::draw(&settings, &mut rng).unwrap();
        let bias = Bias::draw(&settings, &mut rng);
        let rows = nodes(&settings, &audience, &bias, &mut rng);
        let mut squares = 0.0;
        for (row, cell) in rows.iter().zip(&audience.cells) {
            let printed: Vec<String> = row.curve.iter().map(f64::to_string).collect();
            let sum: f64 = printed.iter().map(|s| s.parse::<f64>().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            assert!(printed.iter().all(|s| s.len() <= 8), "{printed:?}");
            // Only cells whose rounding to a thousandth of a view is far below the error.
            if cell.share > 1e-4 {
                squares += (row.pv / (60_000.0 * cell.share)).ln().powi(2);
            }
        }
        let counted = audience.cells.iter().filter(|c| c.share > 1e-4).count();
        let sd = (squares / counted as f64).sqrt();
        assert!(counted > 300 && (sd - 0.1).abs() < 0.015, "{sd}");
    }
}
