//! The audience: cells of slot x region x gender x age with their share of the traffic, daily curve and worth.

use anyhow::Result;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::random::{normal, normalise};
use super::settings::WorldSettings;

/// Number of half hours of a day: the resolution of curves and flights.
pub const BINS: usize = 48;
/// Milliseconds per half hour.
pub const BIN_MS: u64 = crate::log::schema::DAY_MS / BINS as u64;

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Cell {
    pub slot: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    /// Expected share of the day's requests; all cells sum to 1.
    pub share: f64,
    /// Logarithm of the price relative to the mean cell.
    pub level: f64,
    /// The users of the cell are `first_user .. first_user + users`.
    first_user: usize,
    users: usize,
}

/// The users and places of a world, which are the same every day.
pub struct Audience {
    /// In the order region, gender, age, slot.
    pub cells: Vec<Cell>,
    /// Per region (from 0): expected share of the region's requests by half hour, summing to 1.
    pub curves: Vec<Vec<f64>>,
    /// Standard normal worth of each user.
    pub user_worth: Vec<f64>,
    picker: WeightedAliasIndex<f64>,
}

impl Audience {
    /// Draws an audience.
    ///
    /// # Errors
    /// Only if the shares are degenerate.
    pub fn draw(settings: &WorldSettings, rng: &mut ChaCha8Rng) -> Result<Self> {
        let mut effects = |n: usize, sd: f64| -> Vec<f64> { (0..n).map(|_| sd * normal(&mut *rng)).collect() };
        let (regions, slots) = (settings.regions as usize, settings.slots as usize);
        let ages = usize::from(settings.ages) + 1;
        let zipf = |n: usize, power: f64| (1..=n).map(move |i| (i as f64).powf(-power));
        let region_share: Vec<f64> = zipf(regions, 0.8).collect();
        let slot_share: Vec<f64> = zipf(slots, 0.6).collect();
        let gender_share = [0.08, 0.48, 0.44];
        // The middle buckets are the largest; bucket 0 means unknown.
        let mut age_share: Vec<f64> =
            (0..ages).map(|a| (-((a as f64 / ages as f64 - 0.45) / 0.3).powi(2)).exp()).collect();
        age_share[0] = 0.08 * age_share.iter().skip(1).sum::<f64>();

        let region_level = effects(regions, 0.6);
        let slot_level = effects(slots, 0.5);
        let gender_level = effects(3, 0.25);
        let age_level = effects(ages, 0.4);

        let mut cells = Vec::with_capacity(regions * 3 * ages * slots);
        for region in 0..regions {
            for gender in 0..3 {
                for age in 0..ages {
                    let crowd = (0.2 * normal(rng)).exp();
                    let group_level = region_level[region] + gender_level[gender] + age_level[age] + 0.25 * normal(rng);
                    for slot in 0..slots {
                        cells.push(Cell {
                            slot: slot as u32 + 1,
                            region: region as u32 + 1,
                            gender: gender as u8,
                            age: age as u8,
                            share: region_share[region]
                                * gender_share[gender]
                                * age_share[age]
                                * slot_share[slot]
                                * crowd,
                            level: group_level + slot_level[slot] + 0.1 * normal(rng),
                            first_user: 0,
                            users: 0,
                        });
                    }
                }
            }
        }
        standardise(&mut cells, settings.cell_log_sd);

        let mut first_user = 0;
        for group in cells.chunks_mut(slots) {
            let share: f64 = group.iter().map(|c| c.share).sum();
            let users = ((share * f64::from(settings.users)).round() as usize).max(1);
            for cell in group {
                (cell.first_user, cell.users) = (first_user, users);
            }
            first_user += users;
        }
        Ok(Self {
            picker: WeightedAliasIndex::new(cells.iter().map(|c| c.share).collect())?,
            cells,
            curves: (0..regions).map(|_| draw_curve(rng)).collect(),
            user_worth: (0..first_user).map(|_| normal(rng)).collect(),
        })
    }

    /// Draws a cell and one of its users.
    pub fn pick(&self, rng: &mut ChaCha8Rng) -> (usize, usize) {
        let cell = self.picker.sample(rng);
        let c = &self.cells[cell];
        (cell, c.first_user + rng.random_range(0..c.users))
    }

    /// Returns the expected curve of a cell.
    pub fn curve(&self, cell: &Cell) -> &[f64] {
        &self.curves[cell.region as usize - 1]
    }
}

/// Scales shares to sum to 1, and levels to mean 0 and the given standard deviation over the traffic.
fn standardise(cells: &mut [Cell], sd: f64) {
    let total: f64 = cells.iter().map(|c| c.share).sum();
    cells.iter_mut().for_each(|c| c.share /= total);
    let mean: f64 = cells.iter().map(|c| c.share * c.level).sum();
    let variance: f64 = cells.iter().map(|c| c.share * (c.level - mean).powi(2)).sum();
    let scale = if variance > 0.0 { sd / variance.sqrt() } else { 0.0 };
    cells.iter_mut().for_each(|c| c.level = (c.level - mean) * scale);
}

/// Draws a curve with a quiet night, a morning peak and a higher evening one, whose sizes and hours vary by region.
fn draw_curve(rng: &mut ChaCha8Rng) -> Vec<f64> {
    let morning = 0.6 * (0.15 * normal(rng)).exp();
    let evening = (0.15 * normal(rng)).exp();
    let shift = rng.random_range(-0.5..0.5);
    let bump = |hour: f64, at: f64, width: f64| (-((hour - at - shift) / width).powi(2)).exp();
    let mut curve: Vec<f64> = (0..BINS)
        .map(|bin| {
            let hour = (bin as f64 + 0.5) / 2.0;
            0.12 + morning * bump(hour, 9.5, 2.2) + 0.4 * bump(hour, 14.5, 5.0) + evening * bump(hour, 20.5, 2.6)
        })
        .collect();
    normalise(&mut curve);
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn shares_levels_and_curves_are_standardised() {
        let settings = WorldSettings::default();
        let a = Audience::draw(&settings, &mut ChaCha8Rng::seed_from_u64(3)).unwrap();
        assert_eq!(a.cells.len(), 12 * 3 * 7 * 4);
        let sum = |f: &dyn Fn(&Cell) -> f64| a.cells.iter().map(f).sum::<f64>();
        assert!((sum(&|c| c.share) - 1.0).abs() < 1e-9);
        assert!(sum(&|c| c.share * c.level).abs() < 1e-9);
        assert!((sum(&|c| c.share * c.level * c.level).sqrt() - 0.4).abs() < 1e-9);
        for curve in &a.curves {
            assert!((curve.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let at = |hour: usize| curve[2 * hour];
            assert!(at(9) > 2.0 * at(3) && at(20) > at(16) && at(9) > at(6));
        }
    }
}
