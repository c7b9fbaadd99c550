//! Stresses: days that deviate from the plan's expectation.
//!
//! A stress alters a day's rows before they are compiled, so that bound, caps, features and every policy see one consistent
//! day; or it alters the forecast, or the feedback delay. Altered logs are compiled in memory only. All draws are determined by
//! the seed, the day and the altered part, so that every policy sees the same.
//!
//! In text, parts joined by `+`:
//!
//! | part | what happens |
//! |---|---|
//! | `prices=1.4@14` | eCPM of all auction ads times 1.4 from hour 14 on; `@random`: from an hour drawn within 4..20; without `@`: all day |
//! | `volume=0.75` | each request stays with probability 0.75 |
//! | `demands=0.3` | each contract's demand times a log-normal factor of mean 1 and log-sd 0.3, cap alike |
//! | `forecast=0.3` | each node's forecast times such a factor |
//! | `forecast-level=1.3` | the whole forecast times 1.3 |
//! | `delay=600` | policies observe a delivery 600 seconds later; those that predict deliveries do not wait for it |
//! | `flights=0.5` | half of the contracts join or end within the day (a fair coin says which), owing in proportion to the requests left to them |
//! | `newcomers=0.2` | a fifth of the contracts, at least one, gets an id that no training day has seen |
//!
//! Contracts that join or end do so by their control row, which policies may read: the day differs from the training days,
//! without surprises during the day.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use crate::log::schema::{AdType, ControlRow, InventoryRow, MAX_ECPM, TrackRow};
use crate::log::{RawDay, draw};
use crate::plan::Forecast;

const HOUR_MS: f64 = 3_600_000.0;
/// Bit set in the ids of contracts that are renamed to new ones.
const NEW_ID: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// The hour is `None` if it is drawn.
    Prices {
        factor: f64,
        hour: Option<f64>,
    },
    Volume {
        keep: f64,
    },
    Demands {
        log_sd: f64,
    },
    Forecast {
        log_sd: f64,
    },
    ForecastLevel {
        factor: f64,
    },
    Delay {
        seconds: f64,
    },
    Flights {
        share: f64,
    },
    Newcomers {
        share: f64,
    },
}

/// A stress on a day.
#[derive(Debug, Clone, PartialEq)]
pub struct Stress {
    text: String,
    seed: u64,
    parts: Vec<Part>,
}

impl FromStr for Stress {
    type Err = String;

    /// # Errors
    /// If a part is malformed; the error names it and the expected form.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split('+').map(part).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), seed: 0, parts })
    }
}

/// The parts of a stress as they are written, for help and messages.
pub const PARTS: &str = "prices=FACTOR[@HOUR|@random], volume=SHARE, demands=LOG_SD, forecast=LOG_SD, forecast-level=FACTOR, \
                         delay=SECONDS, flights=SHARE, newcomers=SHARE";

fn part(text: &str) -> Result<Part, String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("stress `{text}`: write one of {PARTS}"))?;
    let number = |text: &str, low: f64, high: f64| match text.parse::<f64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("stress `{name}={value}`: `{text}` is not a number within {low}..={high}")),
    };
    Ok(match name {
        "prices" => {
            let (factor, hour) = match value.split_once('@') {
                None => (value, Some(0.0)),
                Some((factor, "random")) => (factor, None),
                Some((factor, hour)) => (factor, Some(number(hour, 0.0, 24.0)?)),
            };
            Part::Prices { factor: number(factor, 0.01, 100.0)?, hour }
        }
        "volume" => Part::Volume { keep: number(value, 0.001, 1.0)? },
        "demands" => Part::Demands { log_sd: number(value, 0.0, 2.0)? },
        "forecast" => Part::Forecast { log_sd: number(value, 0.0, 2.0)? },
        "forecast-level" => Part::ForecastLevel { factor: number(value, 0.01, 100.0)? },
        "delay" => Part::Delay { seconds: number(value, 0.0, 86_400.0)? },
        "flights" => Part::Flights { share: number(value, 0.0, 1.0)? },
        "newcomers" => Part::Newcomers { share: number(value, 0.0, 1.0)? },
        _ => return Err(format!("no stress `{name}`; write one of {PARTS}")),
    })
}

impl fmt::Display for Stress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn log_normal(rng: &mut ChaCha8Rng, log_sd: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(rng);
    (log_sd * normal - 0.5 * log_sd * log_sd).exp()
}

impl Stress {
    /// Returns the same stress with other draws.
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns a text that distinguishes an altered log from others.
    pub(super) fn identity(&self) -> String {
        format!("{}#{}", self.text, self.seed)
    }

    /// Whether the log itself is altered.
    pub(super) fn alters_log(&self) -> bool {
        let outside = |p: &Part| matches!(p, Part::Forecast { .. } | Part::ForecastLevel { .. } | Part::Delay { .. });
        !self.parts.iter().all(outside)
    }

    /// Alters the rows of a day, and the ids in its inventory.
    pub fn alter(&self, day: &mut RawDay, mut inventory: Option<&mut Vec<InventoryRow>>) {
        for (i, part) in self.parts.iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(draw::hash64(i as u64, day.day.start_ms, 0));
            match *part {
                Part::Prices { factor, hour } => {
                    let hour = hour.unwrap_or_else(|| rng.random_range(4.0..20.0));
                    raise_prices(&mut day.rows, factor, day.day.start_ms + (hour * HOUR_MS) as u64);
                }
                Part::Volume { keep } => {
                    let seed = rng.random();
                    day.rows.retain(|row| draw::passes(seed, row.request_id, 0, keep));
                }
                Part::Demands { log_sd } => {
                    day.contracts.iter_mut().for_each(|c| scale_demand(c, log_normal(&mut rng, log_sd)));
                }
                Part::Flights { share } => cut_flights(day, share, &mut rng),
                Part::Newcomers { share } => {
                    let renamed = rename(day, share, &mut rng);
                    for id in inventory.iter_mut().flat_map(|rows| rows.iter_mut()).flat_map(|node| &mut node.ad_ids) {
                        *id = renamed.get(id).copied().unwrap_or(*id);
                    }
                }
                Part::Forecast { .. } | Part::ForecastLevel { .. } | Part::Delay { .. } => {}
            }
        }
    }

    /// Returns the altered forecast. A node's error depends on its attributes, not on its position, so that forecasts
    /// of the same nodes have the same errors.
    pub(super) fn forecast(&self, forecast: &Forecast) -> Forecast {
        let mut forecast = forecast.clone();
        for (i, part) in self.parts.iter().enumerate() {
            for node in &mut forecast.nodes {
                match *part {
                    Part::Forecast { log_sd } => {
                        let place = draw::hash64(i as u64, u64::from(node.slot_id), u64::from(node.region));
                        let people = draw::hash64(place, node.gender.into(), node.age.into());
                        let mut rng = ChaCha8Rng::seed_from_u64(draw::hash64(self.seed, people, node.curve as u64));
                        node.pv *= log_normal(&mut rng, log_sd);
                    }
                    Part::ForecastLevel { factor } => node.pv *= factor,
                    _ => {}
                }
            }
        }
        forecast
    }

    /// Returns the seconds until a policy observes a delivery, if the stress sets them.
    pub fn feedback_delay_s(&self) -> Option<f64> {
        let delay = |p: &Part| if let Part::Delay { seconds } = p { Some(*seconds) } else { None };
        self.parts.iter().rev().find_map(delay)
    }
}

fn raise_prices(rows: &mut [TrackRow], factor: f64, from_ms: u64) {
    for entry in rows.iter_mut().filter(|r| r.ts_ms >= from_ms).flat_map(|r| &mut r.queue) {
        if entry.ad_type == AdType::Auction {
            entry.ecpm = (entry.ecpm * factor).min(MAX_ECPM);
        }
    }
}

fn scale_demand(c: &mut ControlRow, factor: f64) {
    let scaled = |n: u64| (n as f64 * factor).round() as u64;
    c.required = scaled(c.required).max(1);
    // Deliveries before the day do not change.
    c.cap = scaled(c.cap).max(c.required).max(c.delivered0);
}

/// Cuts the flights of a share of the contracts by 10 to 60 % at one end.
fn cut_flights(day: &mut RawDay, share: f64, rng: &mut ChaCha8Rng) {
    for j in 0..day.contracts.len() {
        let (cut, joins, rest) = (rng.random::<f64>() < share, rng.random::<bool>(), rng.random_range(0.1..0.6));
        if !cut {
            continue;
        }
        let c = &day.contracts[j];
        let (start, end) = (c.start_ms.max(day.day.start_ms), c.end_ms.min(day.day.end_ms()));
        if start >= end {
            continue;
        }
        let length = ((end - start) as f64 * rest) as u64;
        let (new_start, new_end) = if joins { (start + length, end) } else { (start, end - length) };
        let wanted = |from: u64, to: u64| {
            let inside = day.rows.iter().filter(|r| (from..to).contains(&r.ts_ms));
            inside.filter(|r| c.targeting.matches(r.slot_id, r.region, r.gender, r.age)).count()
        };
        let (before, after) = (wanted(start, end), wanted(new_start, new_end));
        let c = &mut day.contracts[j];
        (c.start_ms, c.end_ms) = (new_start, new_end);
        if before > 0 {
            scale_demand(c, after as f64 / before as f64);
        }
    }
}

/// Renames a share of the contracts, at least one; returns the new ids by the old.
fn rename(day: &mut RawDay, share: f64, rng: &mut ChaCha8Rng) -> BTreeMap<u64, u64> {
    let mut ids: Vec<u64> = day.contracts.iter().map(|c| c.ad_id).collect();
    ids.sort_unstable();
    ids.shuffle(rng);
    ids.truncate(((share * ids.len() as f64).round() as usize).max(1));
    let renamed: BTreeMap<u64, u64> = ids.into_iter().map(|id| (id, id ^ NEW_ID)).collect();
    for c in &mut day.contracts {
        c.ad_id = renamed.get(&c.ad_id).copied().unwrap_or(c.ad_id);
    }
    for entry in day.rows.iter_mut().flat_map(|r| &mut r.queue).filter(|e| e.ad_type == AdType::Contract) {
        entry.ad_id = renamed.get(&entry.ad_id).copied().unwrap_or(entry.ad_id);
    }
    renamed
}
