//! A logged day's traffic against its forecast.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::log::schema::DAY_MS;
use crate::log::{CompiledLog, LogError};
use crate::plan::forecast::{Counted, Forecast, GRID};

use super::deviation::Deviation;
use super::spans::{EDGES, SPANS};

const MINUTES: usize = 1440;
const MINUTE_MS: u64 = DAY_MS / MINUTES as u64;
/// Minutes of a cell of the grid.
const CELL: usize = MINUTES / GRID;
/// Minutes between two moments of the training data.
const EVERY: usize = 30;
/// Time constants of the observed counts, minutes; those of the counters that replay keeps ([`crate::env::State`]).
const MEMORIES: [f64; 2] = [10.0, 60.0];
/// Minimum forecast requests of a span in the training data.
const LEAST: f64 = 20.0;
/// Minutes of an hour, and the least forecast requests of one whose ratio counts.
const HOUR: usize = 60;
const LEAST_OF_HOUR: f64 = 5.0;
/// Weight of the forecast in a region's ratio, requests.
const REGION_PRIOR: f64 = 5.0;

/// Requests of a day, actual and forecast.
#[derive(Debug, Clone)]
pub struct DayVolume {
    /// Cumulative requests before each minute, and after the last.
    seen: Vec<f64>,
    expected: Vec<f64>,
    /// Actual and forecast requests of each region.
    regions: BTreeMap<u32, (f64, f64)>,
}

/// One moment of a day and one span after it.
pub(super) struct Moment {
    pub deviation: Deviation,
    /// Share of the forecast traffic before the moment.
    pub elapsed: f64,
    pub span: usize,
    /// Logarithm of actual over forecast requests of the span.
    pub log_ratio: f64,
    /// Share of the day's forecast traffic in the span.
    pub weight: f64,
}

impl DayVolume {
    /// Counts logged days against their forecasts; `dirs` are their directories. A day without a forecast is compared with the other days;
    /// a single such day gives nothing.
    ///
    /// # Errors
    /// An inventory that cannot be read.
    pub fn of_days(dirs: &[PathBuf], logs: &[&CompiledLog]) -> Result<Vec<Self>, LogError> {
        let mut volumes = Vec::new();
        // Counted when the first day without a forecast needs them, and once.
        let counted: OnceCell<Vec<Counted>> = OnceCell::new();
        for (i, (dir, log)) in dirs.iter().zip(logs).enumerate() {
            let forecast = match Forecast::of_directory(dir)? {
                Some(forecast) => forecast,
                None if logs.len() > 1 => {
                    let counted = counted.get_or_init(|| logs.iter().map(|log| Counted::of(log)).collect());
                    Counted::sum(counted.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, day)| day)).forecast()
                }
                None => continue,
            };
            volumes.push(Self::of(log, &forecast));
        }
        Ok(volumes)
    }

    /// Counts a log against the forecast that was made for it.
    pub fn of(log: &CompiledLog, forecast: &Forecast) -> Self {
        let traffic = forecast.traffic();
        let mut regions = BTreeMap::<u32, (f64, f64)>::new();
        for node in &forecast.nodes {
            regions.entry(node.region).or_default().1 += node.pv;
        }
        let mut seen = vec![0.0; MINUTES + 1];
        for r in log.requests() {
            let minute = ((r.ts_ms - log.day().start_ms) / MINUTE_MS) as usize;
            seen[minute.min(MINUTES - 1) + 1] += 1.0;
            regions.entry(r.region).or_default().0 += 1.0;
        }
        for minute in 0..MINUTES {
            seen[minute + 1] += seen[minute];
        }
        let expected = (0..=MINUTES).map(|minute| traffic.before(minute as u64 * MINUTE_MS)).collect();
        Self { seen, expected, regions }
    }

    /// Returns the logarithm of actual over forecast requests of the day.
    pub(super) fn log_ratio(&self) -> f64 {
        ((self.seen[MINUTES] + 1.0) / (self.expected[MINUTES] + 1.0)).ln()
    }

    /// Returns the variance of the hours' ratios about that of the day, less the noise of counting; below 0 if there is no other.
    pub(super) fn hourly_variance(&self) -> f64 {
        let all = self.log_ratio();
        let (mut sum, mut weight) = (0.0, 0.0);
        for hour in (0..MINUTES).step_by(HOUR) {
            let [seen, expected] = [&self.seen, &self.expected].map(|of| of[hour + HOUR] - of[hour]);
            if expected >= LEAST_OF_HOUR {
                let log = ((seen + 2.0) / (expected + 2.0)).ln() - all;
                sum += expected * (log * log - 1.0 / (seen + 2.0));
                weight += expected;
            }
        }
        if weight > 0.0 { sum / weight } else { 0.0 }
    }

    /// Returns the day as it would be with `level` times its requests.
    pub(super) fn times(&self, level: f64) -> Self {
        Self { seen: self.seen.iter().map(|seen| level * seen).collect(), ..self.clone() }
    }

    /// Returns the same ratio of each region, relative to that of all requests.
    pub(super) fn region_ratios(&self) -> impl Iterator<Item = (u32, f64)> {
        let all = self.log_ratio().exp();
        self.regions.iter().map(move |(&region, (seen, expected))| {
            (region, ((seen + REGION_PRIOR) / (expected * all + REGION_PRIOR)).ln())
        })
    }

    /// Returns a region's share of the forecast.
    pub(super) fn region_share(&self, region: u32) -> f64 {
        self.regions.get(&region).map_or(0.0, |(_, expected)| expected / self.expected[MINUTES].max(1e-9))
    }

    /// Calls `visit` for every half hour of the day with each span after it.
    pub(super) fn each_moment(&self, mut visit: impl FnMut(Moment)) {
        let total = self.expected[MINUTES].max(1e-9);
        let mut recent = [[0.0; 2]; 2];
        for minute in 0..MINUTES {
            if minute % EVERY == 0 {
                let so_far = [self.seen[minute], self.expected[minute]];
                let deviation = Deviation::of([recent[0], recent[1], so_far], 1.0);
                for span in 0..SPANS {
                    let [from, to] = [EDGES[span], EDGES[span + 1]].map(|edge| (minute + CELL * edge).min(MINUTES));
                    let expected = self.expected[to] - self.expected[from];
                    if expected < LEAST {
                        continue;
                    }
                    let log_ratio = ((self.seen[to] - self.seen[from] + 1.0) / (expected + 1.0)).ln();
                    let elapsed = self.expected[minute] / total;
                    visit(Moment { deviation, elapsed, span, log_ratio, weight: expected / total });
                }
            }
            for (level, memory) in recent.iter_mut().zip(MEMORIES) {
                let decay = (-1.0 / memory).exp();
                for (sum, of) in level.iter_mut().zip([&self.seen, &self.expected]) {
                    *sum = *sum * decay + of[minute + 1] - of[minute];
                }
            }
        }
    }
}

#[cfg(test)]
impl DayVolume {
    /// Creates a day with a flat forecast; `factor` returns the ratio of actual to forecast requests of each minute.
    pub(super) fn of_rates(requests: f64, factor: impl Fn(usize) -> f64) -> Self {
        let each = requests / MINUTES as f64;
        let (mut seen, mut expected) = (vec![0.0], vec![0.0]);
        for minute in 0..MINUTES {
            seen.push(seen[minute] + each * factor(minute));
            expected.push(expected[minute] + each);
        }
        Self { seen, expected, regions: BTreeMap::new() }
    }

    pub(super) fn set_region(&mut self, region: u32, seen: f64, expected: f64) {
        self.regions.insert(region, (seen, expected));
    }
}
