//! Measures how several days of one inventory deviate from their common daily profile, to set the parameters of a similar synthetic
//! world.
//!
//! An hour's deviation is the logarithm of its requests (or of its mean price) less the level of the day and less the mean of the hour
//! over the days. The variances are corrected for the noise of counting independent arrivals, and for the degrees of freedom lost to
//! the levels and means.

use std::fmt;

use serde::Serialize;

use super::CompiledLog;

const HOURS: usize = 24;
/// Requests below which an hour is ignored.
const LEAST: f64 = 5.0;

/// Requests and prices of a day by hour.
#[derive(Debug, Clone, PartialEq)]
pub struct Hourly {
    pub requests: [f64; HOURS],
    /// Sum and sum of squares of the best auction worth.
    pub price: [f64; HOURS],
    pub price_squares: [f64; HOURS],
}

impl Hourly {
    pub fn of(log: &CompiledLog) -> Self {
        let mut day = Self { requests: [0.0; HOURS], price: [0.0; HOURS], price_squares: [0.0; HOURS] };
        for r in log.requests() {
            let hour = ((r.ts_ms - log.day().start_ms) / 3_600_000).min(HOURS as u64 - 1) as usize;
            day.requests[hour] += 1.0;
            day.price[hour] += r.best;
            day.price_squares[hour] += r.best * r.best;
        }
        day
    }
}

/// Deviations of one quantity. Standard deviations are of the logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Strays {
    /// Standard deviation of an hour, corrected for counting noise.
    pub hourly_sd: f64,
    /// Correlation from one hour to the next; `null` where hours hardly deviate.
    pub hourly_correlation: Option<f64>,
    /// Standard deviation of the days' levels, including the contribution of their hours' deviations.
    pub level_sd: f64,
}

/// Deviations of days from their common profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Wander {
    pub days: usize,
    pub volume: Strays,
    pub price: Strays,
    /// Root mean square of each day's hourly volume deviations, including counting noise.
    pub volatility: Vec<f64>,
}

/// A logarithm with the variance of its noise; `None` where an hour is ignored.
type Cell = Option<(f64, f64)>;
/// Cells by day and hour.
type Cells = Vec<[Cell; HOURS]>;

impl Wander {
    /// Computes the deviations; `None` for fewer than two days, or where fewer than two hours are busy on all of them.
    pub fn of(days: &[Hourly]) -> Option<Self> {
        if days.len() < 2 {
            return None;
        }
        let cells = |value: &dyn Fn(&Hourly, usize) -> Cell| -> Cells {
            let of = |day| std::array::from_fn(|hour| value(day, hour));
            days.iter().map(of).collect()
        };
        let volume = cells(&|day, h| (day.requests[h] >= LEAST).then(|| (day.requests[h].ln(), 1.0 / day.requests[h])));
        let price = cells(&|day, h| {
            let (n, sum, squares) = (day.requests[h], day.price[h], day.price_squares[h]);
            // Variance of the logarithm of a mean, by the delta method.
            (n >= LEAST && sum > 0.0).then(|| ((sum / n).ln(), (squares / sum.powi(2) - 1.0 / n).max(0.0)))
        });
        let (volume, deviations) = strays(volume)?;
        let volatility = deviations.iter().map(|day| root_mean_square(day.iter().flatten().copied())).collect();
        let (price, _) = strays(price)?;
        Some(Self { days: days.len(), volume, price, volatility })
    }
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v * v));
    if n > 0.0 { f64::sqrt(sum / n) } else { 0.0 }
}

/// Returns the statistics, and the residual of each cell after subtracting day levels and hour means.
fn strays(cells: Cells) -> Option<(Strays, Vec<[Option<f64>; HOURS]>)> {
    // Only hours that are known on every day can be compared.
    let common: Vec<usize> = (0..HOURS).filter(|&h| cells.iter().all(|day| day[h].is_some())).collect();
    if common.len() < 2 {
        return None;
    }
    let (days, hours) = (cells.len() as f64, common.len() as f64);
    let at = |day: &[Cell; HOURS], h: usize| day[h].unwrap_or_default();
    let levels: Vec<f64> = cells.iter().map(|day| common.iter().map(|&h| at(day, h).0).sum::<f64>() / hours).collect();
    let centre = levels.iter().sum::<f64>() / days;
    let mut deviations = vec![[None; HOURS]; cells.len()];
    let mut noise = 0.0;
    for &h in &common {
        let mean = cells.iter().zip(&levels).map(|(day, level)| at(day, h).0 - level).sum::<f64>() / days;
        for ((day, level), deviation) in cells.iter().zip(&levels).zip(&mut deviations) {
            deviation[h] = Some(at(day, h).0 - level - mean);
            noise += at(day, h).1;
        }
    }
    // Subtracting the means leaves (D-1)(H-1) of D x H degrees of freedom.
    let free = (days - 1.0) * (hours - 1.0);
    let squares: f64 = deviations.iter().flatten().flatten().map(|d| d * d).sum();
    let variance = (squares / free - noise / (days * hours)).max(0.0);
    let pairs = deviations.iter().flat_map(|day| (1..HOURS).filter_map(|h| Some(day[h - 1]? * day[h]?)));
    let (n, products) = pairs.fold((0.0, 0.0), |(n, sum), p| (n + 1.0, sum + p));
    let covariance = if n > 0.0 { products / n * days * hours / free } else { 0.0 };
    let level_squares: f64 = levels.iter().map(|level| (level - centre).powi(2)).sum();
    let figures = Strays {
        hourly_sd: variance.sqrt(),
        hourly_correlation: (variance > 1e-4).then(|| (covariance / variance).clamp(-1.0, 1.0)),
        level_sd: (level_squares / (days - 1.0)).sqrt(),
    };
    Some((figures, deviations))
}

impl fmt::Display for Wander {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} days against each other, standard deviations of logarithms", self.days)?;
        for (name, s) in [("volume", &self.volume), ("price", &self.price)] {
            let correlation = s.hourly_correlation.map_or_else(|| "-".to_owned(), |c| format!("{c:.2}"));
            writeln!(
                f,
                "  {name:11}  hours stray by {:.3} (correlation {correlation} after an hour), levels by {:.3}",
                s.hourly_sd, s.level_sd
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;
    use rand_distr::{Distribution as _, Poisson, StandardNormal};

    /// Draws days of an AR(1) process with Poisson counts and log-normal prices around a common profile.
    fn draw(days: usize, sd: f64, correlation: f64, requests: f64) -> Vec<Hourly> {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
        let logs: Vec<[f64; HOURS]> = (0..days)
            .map(|_| {
                let mut value = normal();
                std::array::from_fn(|_| {
                    let now = value;
                    value = correlation * value + (1.0 - correlation * correlation).sqrt() * normal();
                    sd * now
                })
            })
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut day = |log: &[f64; HOURS]| {
            let count = |h: usize| requests * (1.0 + (h as f64 / 4.0).sin().abs()) * log[h].exp();
            let requests: [f64; HOURS] = std::array::from_fn(|h| Poisson::new(count(h)).unwrap().sample(&mut rng));
            Hourly { requests, price: requests.map(|n| 2.0 * n), price_squares: requests.map(|n| 5.0 * n) }
        };
        logs.iter().map(&mut day).collect()
    }

    #[test]
    fn the_process_is_found_again_and_counting_is_no_straying() {
        for (sd, correlation, requests) in [(0.3, 0.3, 2000.0), (0.3, 0.3, 60.0), (0.4, 0.5, 500.0)] {
            let found = Wander::of(&draw(60, sd, correlation, requests)).unwrap().volume;
            // Subtracting a day's level hides what is common to its hours.
            assert!((found.hourly_sd / sd - 1.0).abs() < 0.12, "{found:?}");
            assert!((found.hourly_correlation.unwrap() - correlation).abs() < 0.13, "{found:?}");
        }
        let calm = Wander::of(&draw(60, 0.0, 0.0, 60.0)).unwrap();
        assert!(calm.volume.hourly_sd < 0.02 && calm.price.hourly_sd < 1e-9, "{calm:?}");
        assert_eq!(calm.volatility.len(), 60);
    }

    #[test]
    fn one_day_or_empty_hours_say_nothing() {
        assert_eq!(Wander::of(&draw(1, 0.3, 0.3, 100.0)), None);
        let mut days = draw(3, 0.3, 0.3, 100.0);
        days[1].requests = [0.0; HOURS];
        assert_eq!(Wander::of(&days), None);
    }
}
