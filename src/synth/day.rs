//! Draws one day of a world and writes it row by row.

use crate::log::day::{format_date, parse_date};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::conditions::Conditions;
use super::errors::{DayErrors, corrected};
use super::live::Live;
use super::market::{Draw, auction_entries};
use super::posterior::{Observation, Posterior};
use super::random::{Purpose, normal, round};
use super::settings::{Compress, WorldSettings};
use super::traffic::Arrival;
use super::world::World;
use super::{forecast, traffic};
use crate::log::schema::{AdType, ControlRow, DAY_MS, DayFile, ExposureRow, MAX_ECPM, QueueEntry, TrackRow};
use crate::log::write::{self, TableWriter};
use crate::log::write_parquet::ParquetTrack;

/// Share of the personal price variance that is fixed per user; the rest is drawn per request.
const USER_SHARE: f64 = 0.5;
/// Boosts of entries that have one.
const BOOSTS: [f64; 4] = [0.8, 1.2, 1.5, 2.0];
/// Ids reserved per day, so that request ids of different days differ.
const IDS_PER_DAY: u64 = 100_000_000;

/// Writes all files of day number `day` into `dir`, which is created. In a world with errors that includes `truth.tsv`, and, if
/// `posterior` is given, `posterior.tsv`. Returns the observations of the errors in the day's exposures.
pub fn write_day(world: &World, day: u32, dir: &Path, posterior: Option<&Posterior>) -> Result<Vec<Observation>> {
    let settings = &world.settings;
    std::fs::create_dir_all(dir)?;
    remove_older(dir)?;
    let days = parse_date(&settings.start_date).map_err(anyhow::Error::msg)? + i64::from(day);
    let midnight = u64::try_from(days)? * DAY_MS;
    let date = format_date(days);
    write::day(dir, &DayFile { date, utc_offset_minutes: 0 })?;

    let conditions = Conditions::draw(settings, day, &|purpose, day| world.rng(purpose, day));
    let mut demand = world.rng(Purpose::Demand, day);
    let control = world.contracts.control(settings, midnight, &mut demand);
    write::control(&dir.join("control.tsv"), &control, (midnight, midnight + DAY_MS))?;
    let bias = forecast::Bias::draw(settings, &mut world.rng(Purpose::Bias, 0));
    let nodes = forecast::nodes(settings, &world.audience, &bias, &mut world.rng(Purpose::Forecast, day));
    write::inventory(&dir.join("inventory.tsv"), &nodes)?;

    let volume = traffic::volume(&world.audience, &conditions);
    let count = ((f64::from(settings.requests) * volume).round() as usize).max(1);
    let rng = world.rng(Purpose::Traffic, day);
    let parquet = settings.compress == Compress::Parquet;
    let create = if parquet { TableWriter::create_quick } else { TableWriter::create };
    let table = |name: &str, header: &str| -> Result<TableWriter> {
        let path = dir.join(format!("{name}.tsv{}", settings.compress.ending()));
        let mut writer = create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        writeln!(writer, "{header}")?;
        Ok(writer)
    };
    let mut track = if parquet {
        Track::Parquet(ParquetTrack::create(&dir.join(PARQUET))?)
    } else {
        Track::Text(table("track_log", write::TRACK_HEADER)?)
    };
    let mut exposure = table("joined_exposure", write::EXPOSURE_HEADER)?;
    let mut queues = QueueBuilder::new(world, &conditions, &control, world.rng(Purpose::Queues, day));
    let mut live = Live::new(settings, &world.contracts, &control, midnight);
    let mut live_rng = world.rng(Purpose::Live, day);
    let mut errors = world.errors.as_ref().map(|e| DayErrors::new(e, settings, day));
    let values = |name: &str| table(name, write::TRUTH_HEADER);
    let mut truth = errors.as_ref().map(|_| values("truth")).transpose()?;
    let mut known = posterior.map(|p| Ok::<_, anyhow::Error>((p, values("posterior")?))).transpose()?;
    let mut observations = Vec::new();
    let mut number = 0;
    traffic::each_arrival(&world.audience, &conditions, count, &rng, &mut |arrival| {
        number += 1;
        let cell = &world.audience.cells[arrival.cell];
        let mut row = TrackRow {
            request_id: u64::from(day) * IDS_PER_DAY + number,
            ts_ms: midnight + arrival.ms,
            slot_id: cell.slot,
            region: cell.region,
            gender: cell.gender,
            age: cell.age,
            user_id: Some(arrival.user as u64 + 1),
            queue: queues.build(&arrival),
        };
        let mut shown = live.show(&row, &mut live_rng);
        if settings.exposures_only {
            let Some(shown) = &shown else { return Ok(()) };
            row.queue.retain(|entry| entry.ad_id == shown.ad_id);
        }
        if let Some(errors) = &mut errors {
            if let Some(shown) = &mut shown {
                errors.bill(&row, shown);
                observations.extend(observe(errors, &row, shown, day, settings));
            }
            for entry in &row.queue {
                let key = (row.request_id, entry.ad_id);
                if let Some(truth) = &mut truth {
                    let value = errors.truth(&row, entry);
                    write::truth_row(truth, key, value.charge, value.pctr)?;
                }
                if let Some((posterior, table)) = &mut known {
                    let value = corrected(entry, posterior.effect(errors.cell(&row, entry)));
                    write::truth_row(table, key, value.charge, value.pctr)?;
                }
            }
        }
        if let Some(shown) = &shown {
            write::exposure_row(&mut exposure, shown)?;
        }
        track.push(row)
    })?;
    track.finish()?;
    exposure.finish()?;
    for table in truth.into_iter().chain(known.map(|(_, table)| table)) {
        table.finish()?;
    }
    Ok(observations)
}

/// File name of a track log in Parquet.
const PARQUET: &str = "track_log.parquet";

/// The track log being written.
enum Track {
    Text(TableWriter),
    Parquet(ParquetTrack),
}

impl Track {
    fn push(&mut self, row: TrackRow) -> Result<()> {
        match self {
            Self::Text(writer) => write::track_row(writer, &row)?,
            Self::Parquet(writer) => writer.push(row)?,
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Text(writer) => writer.finish()?,
            Self::Parquet(writer) => writer.finish()?,
        }
        Ok(())
    }
}

/// Converts an exposure of a training day to an observation for the posterior.
fn observe(
    errors: &DayErrors,
    row: &TrackRow,
    shown: &ExposureRow,
    day: u32,
    settings: &WorldSettings,
) -> Option<Observation> {
    let planted = settings.errors.filter(|e| day < e.train_days)?;
    let entry = row.queue.iter().find(|e| e.ad_id == shown.ad_id)?;
    let centre = 0.5 * planted.charge_noise.powi(2);
    let charged = shown.ad_type == AdType::Auction && shown.charge > 0.0 && entry.ecpm > 0.0;
    Some(Observation {
        cell: errors.cell(row, entry),
        day: day as usize,
        charge: charged.then(|| (shown.charge / (entry.ecpm / 1000.0)).ln() + centre),
        logit: (entry.pctr / (1.0 - entry.pctr)).ln(),
        click: shown.click,
    })
}

/// Removes tables of an earlier run in another compression: two of one name would be ambiguous.
fn remove_older(dir: &Path) -> Result<()> {
    for name in ["track_log", "joined_exposure", "truth", "posterior"] {
        let texts = [Compress::Zst, Compress::Gz, Compress::None].map(|c| format!("{name}.tsv{}", c.ending()));
        for file in texts.iter().map(String::as_str).chain([PARQUET]) {
            let path = dir.join(file);
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot replace {}", path.display()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Fills the queues of one day's requests, in order.
pub struct QueueBuilder<'a> {
    world: &'a World,
    conditions: &'a Conditions,
    control: &'a [ControlRow],
    rng: ChaCha8Rng,
    draws: Vec<Draw>,
}

impl<'a> QueueBuilder<'a> {
    pub fn new(world: &'a World, conditions: &'a Conditions, control: &'a [ControlRow], rng: ChaCha8Rng) -> Self {
        Self { world, conditions, control, rng, draws: Vec::new() }
    }

    /// Builds a queue: all contracts that match and are in flight, and the auction ads drawn; the highest eCPM first.
    pub fn build(&mut self, arrival: &Arrival) -> Vec<QueueEntry> {
        let World { settings, audience, contracts, market, .. } = self.world;
        let cell = &audience.cells[arrival.cell];
        let moment = normal(&mut self.rng);
        let personal = market.personal
            * (USER_SHARE.sqrt() * audience.user_worth[arrival.user] + (1.0 - USER_SHARE).sqrt() * moment);
        // A user's worth raises both price and click probability; the day's price level raises only the price.
        let worth = cell.level + personal;
        let price = market.base_log + worth + self.conditions.price_log(cell.region, arrival.ms);
        let slope = settings.pctr_price_slope;
        let spread = settings.cell_log_sd.powi(2) + market.personal.powi(2);
        let click_base = slope * worth - slope * slope * spread / 2.0;

        let mut queue = Vec::with_capacity(settings.queue);
        for j in contracts.eligible(arrival.cell, arrival.ms) {
            let terms = &self.control[j];
            let mean = contracts.list[j].pctr;
            let pctr = self.pctr(mean, click_base);
            let ecpm = if settings.contract_ecpm {
                let ecpm = terms.click_value * pctr * 1000.0;
                round(ecpm.min(MAX_ECPM), settings.ecpm_decimals)
            } else {
                0.0
            };
            queue.push(QueueEntry {
                ad_id: terms.ad_id,
                ad_type: AdType::Contract,
                ecpm,
                pctr,
                filter: 0,
                boost: self.boost(),
            });
        }
        let mut draws = std::mem::take(&mut self.draws);
        let count = auction_entries(settings, queue.len());
        market.candidates(count, &mut draws, &mut self.rng);
        for draw in &draws {
            let offset = market.within * draw.offset;
            let click = click_base + slope * offset + market.click_log[draw.ad];
            queue.push(QueueEntry {
                ad_id: market.ad_id(draw.ad),
                ad_type: AdType::Auction,
                ecpm: round((price + offset).exp().min(MAX_ECPM), settings.ecpm_decimals),
                pctr: self.pctr(settings.mean_pctr, click),
                filter: draw.filter,
                boost: self.boost(),
            });
        }
        self.draws = draws;
        queue.sort_by(|a, b| b.ecpm.total_cmp(&a.ecpm).then(a.ad_id.cmp(&b.ad_id)));
        queue
    }

    /// Draws the predicted click probability around `mean * exp(log)`.
    fn pctr(&mut self, mean: f64, log: f64) -> f64 {
        let noise = 0.2 * normal(&mut self.rng) - 0.02;
        let value = mean * (log + noise).exp();
        round(value.clamp(1e-3, 0.5), self.world.settings.pctr_decimals)
    }

    fn boost(&mut self) -> f64 {
        if self.rng.random::<f64>() < self.world.settings.boost_share {
            BOOSTS[self.rng.random_range(0..BOOSTS.len())]
        } else {
            1.0
        }
    }
}
