//! Worlds like given days: the same size, prices, contracts and deviations, with users and contracts drawn anew.
//!
//! Such worlds can replace days that cannot be shared or are too few. The parameters that determine how hard days are are taken over;
//! users and their regions are the world's own.

use anyhow::{Context as _, Result, ensure};

use crate::log::CompiledLog;
use crate::log::wander::{Hourly, Wander};

use super::random::round;
use super::settings::WorldSettings;

/// Minimum number of requests with an auction ad from which prices can be estimated.
const LEAST: usize = 100;

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
    if n > 0.0 { sum / n } else { 0.0 }
}

impl WorldSettings {
    /// Returns the settings with every key that can be estimated from `days` replaced; ranges of such keys in `draw` are
    /// dropped.
    ///
    /// # Errors
    /// Fewer than two days, or days too small to compare.
    pub fn like(&self, days: &[CompiledLog]) -> Result<Self> {
        let hourly: Vec<Hourly> = days.iter().map(Hourly::of).collect();
        let wander = Wander::of(&hourly)
            .context("the days cannot be compared: give two or more, with requests in at least two hours of each")?;
        let bests: Vec<f64> = days.iter().flat_map(|d| d.requests()).map(|r| r.best).filter(|b| *b > 0.0).collect();
        ensure!(bests.len() >= LEAST, "hardly any request of the days has an auction ad: {}", bests.len());
        let centre = mean(bests.iter().map(|b| b.ln()));
        let requests = mean(days.iter().map(|d| d.requests().len() as f64));
        let entries = mean(days.iter().map(|d| d.requests().iter().map(|r| d.entries(&r).len()).sum::<usize>() as f64));
        let auctions =
            mean(days.iter().map(|d| d.requests().iter().map(|r| d.auctions(&r).len()).sum::<usize>() as f64));
        let contracts = mean(days.iter().map(|d| d.contracts().len() as f64)).round();
        let of_contracts = |f: &dyn Fn(&CompiledLog, &crate::log::compiled::Contract) -> f64| {
            mean(days.iter().flat_map(|d| d.contracts().iter().map(move |c| f(d, c))))
        };
        let whole = |d: &CompiledLog, c: &crate::log::compiled::Contract| {
            c.start_ms <= d.day().start_ms && c.end_ms >= d.day().end_ms()
        };
        let slack = of_contracts(&|_, c| c.cap as f64 / c.required as f64 - 1.0);
        let price = mean(bests.iter().copied());
        let penalties = || days.iter().flat_map(|d| d.contracts()).map(|c| c.penalty / price).filter(|p| *p > 0.0);
        let (least, most) = penalties().fold((f64::INFINITY, 0.0), |(low, high), p| (p.min(low), p.max(high)));
        // Where no contract has a penalty, all have the least that a world can have.
        let least = least.min(f64::max(most, 0.001));
        let correlation = |found: Option<f64>| found.unwrap_or(0.5).clamp(0.0, 0.99);

        let mut world = self.clone();
        let mut set = |key: &str, value: f64| {
            world.draw.remove(key);
            round(value, 6)
        };
        let s = Self {
            requests: set("requests", requests.round().max(1.0)) as u32,
            volume_noise: set("volume_noise", wander.volume.hourly_sd.min(1.0)),
            volume_correlation: set("volume_correlation", correlation(wander.volume.hourly_correlation)),
            volume_drift: set("volume_drift", wander.volume.level_sd.min(1.0)),
            traffic_noise: set("traffic_noise", 0.0),
            group_price_noise: set("group_price_noise", wander.price.hourly_sd.min(1.0)),
            group_price_correlation: set("group_price_correlation", correlation(wander.price.hourly_correlation)),
            price_drift: set("price_drift", wander.price.level_sd.min(1.0)),
            price_noise: set("price_noise", 0.0),
            mean_best_ecpm: set("mean_best_ecpm", 1000.0 * price),
            best_log_sd: set("best_log_sd", mean(bests.iter().map(|b| (b.ln() - centre).powi(2))).sqrt()),
            ..self.clone()
        };
        let s = if contracts > 0.0 {
            let owed = mean(days.iter().map(|d| d.contracts().iter().map(|c| c.required as f64).sum::<f64>()));
            Self {
                contracts: set("contracts", contracts.min(900.0)) as u32,
                contracts_per_queue: set("contracts_per_queue", (entries / requests).clamp(0.01, 0.95 * contracts)),
                fill: set("fill", (owed / requests).clamp(0.001, 2.0)),
                part_day_share: set("part_day_share", of_contracts(&|d, c| f64::from(u8::from(!whole(d, c))))),
                cap_slack: set("cap_slack", slack.clamp(0.0, 100.0)),
                penalty_min: set("penalty_min", least.clamp(0.001, 1000.0)),
                penalty_max: set("penalty_max", most.clamp(least.clamp(0.001, 1000.0), 1000.0)),
                ..s
            }
        } else {
            Self { contracts: 0, ..s }
        };
        let queue = ((entries + auctions) / requests).round().clamp(2.0, self.auction_ads as f64 / 2.0);
        let queue = set("queue", queue) as usize;
        let world = Self { queue, draw: world.draw, ..s };
        world.validate().context("the days' figures are beyond what a world can have")?;
        Ok(world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{self, CompileOptions};

    #[test]
    fn a_world_like_a_world_s_days_has_its_figures() {
        let dir = tempfile::tempdir().unwrap();
        let origin = WorldSettings {
            requests: 8000,
            volume_noise: 0.35,
            traffic_noise: 0.0,
            price_noise: 0.0,
            shock_min: 1.0,
            shock_max: 1.0,
            contracts: 20,
            fill: 0.6,
            mean_best_ecpm: 5000.0,
            queue: 8,
            ..WorldSettings::default()
        };
        super::super::generate(&origin, dir.path(), 10, 3, &|_| ()).unwrap();
        let days: Vec<CompiledLog> = (0..10)
            .map(|d| log::open(&dir.path().join(format!("day-{d}")), CompileOptions::default()).unwrap())
            .collect();
        let like = WorldSettings::default().like(&days).unwrap();
        let near = |a: f64, b: f64, by: f64| assert!((a / b - 1.0).abs() < by, "{a} is not {b}");
        near(like.requests.into(), 8000.0, 0.15);
        near(like.volume_noise, 0.35, 0.25);
        near(like.mean_best_ecpm, 5000.0, 0.15);
        near(like.fill, 0.6, 0.1);
        assert_eq!(like.contracts, 20);
        assert!(like.group_price_noise < 0.05, "{}", like.group_price_noise);
        assert!(WorldSettings::default().like(&days[..1]).is_err());
    }
}
