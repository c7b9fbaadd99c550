//! A day made in memory for benchmarks: requests with a given number of entries, contracts that owe enough to last.

use std::sync::Arc;

use anyhow::Context as _;

use crate::env::{DayModel, Vocabulary};
use crate::log::schema::{AdType, ControlRow, DAY_MS, DayFile, QueueEntry, TrackRow};
use crate::log::targeting::Targeting;
use crate::log::{self, CompileOptions, write};
use crate::plan::Plan;
use crate::policy::PolicySpec;
use crate::run::context::episode_sample;
use crate::settings::Settings;

/// Ids of contracts are below this, those of auction ads are not.
pub const FIRST_AUCTION_AD: u64 = 10_000;

/// Sizes of a benchmark day.
#[derive(Debug, Clone, Copy)]
pub struct WorldSize {
    pub requests: usize,
    /// Entries of a queue.
    pub queue: usize,
    /// Of these, contracts at most.
    pub eligible: usize,
    /// Probability that one of these contracts may not be shown on a request.
    pub masked: f64,
    /// Contracts of the day.
    pub contracts: usize,
}

/// Writes such a day to a temporary directory.
pub fn written(size: WorldSize) -> anyhow::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    let path = dir.path();
    write::day(path, &DayFile { date: "2026-01-05".into(), utc_offset_minutes: 0 })?;
    let start_ms = 1_767_571_200_000;
    let contracts: Vec<ControlRow> = (0..size.contracts as u64)
        .map(|j| {
            let required = (size.requests * size.eligible / size.contracts) as u64 / 2 + 1;
            ControlRow {
                ad_id: 1 + j,
                required,
                cap: required,
                delivered0: 0,
                start_ms,
                end_ms: start_ms + DAY_MS,
                targeting: Targeting::default(),
                theta: None,
                rate: 1.0,
                penalty: 3.0 + (j % 7) as f64,
                click_value: 100.0,
                pctr: None,
            }
        })
        .collect();
    write::control(&path.join("control.tsv"), &contracts, (start_ms, start_ms + DAY_MS))?;
    let mut w = write::TableWriter::create(&path.join("track_log.tsv"))?;
    std::io::Write::write_all(&mut w, format!("{}\n", write::TRACK_HEADER).as_bytes())?;
    for i in 0..size.requests {
        let hash = |k: u64| log::draw::hash64(1, i as u64, k) as f64 / u64::MAX as f64;
        let queue = (0..size.queue)
            .map(|k| {
                let contract = k < size.eligible;
                let masked = contract && hash((size.queue + k) as u64) < size.masked;
                QueueEntry {
                    ad_id: if contract { 1 + ((i + k) % size.contracts) as u64 } else { FIRST_AUCTION_AD + k as u64 },
                    ad_type: if contract { AdType::Contract } else { AdType::Auction },
                    ecpm: (200_000.0 * (1.0 + 4.0 * hash(k as u64))).round() / 100.0,
                    pctr: 0.005,
                    filter: u64::from(masked),
                    boost: 1.0,
                }
            })
            .collect::<Vec<_>>();
        let row = TrackRow {
            request_id: i as u64,
            ts_ms: start_ms + i as u64 * DAY_MS / size.requests as u64,
            slot_id: 1,
            region: (i % 12) as u32,
            gender: (i % 3) as u8,
            age: (i % 10) as u8,
            user_id: None,
            queue,
        };
        write::track_row(&mut w, &row)?;
    }
    w.finish()?;
    Ok(dir)
}

/// Writes such a day to a temporary directory, compiles and plans it, and makes a training day of it.
pub fn day(size: WorldSize) -> anyhow::Result<(DayModel, Plan)> {
    let dir = written(size)?;
    let path = dir.path();
    let log = log::open(path, CompileOptions::default())?;
    let plan = Plan::from_days(&[&log], 0)?;
    let vocabulary = Arc::new(Vocabulary::of_days(&[&log], false));
    let mut day = DayModel::new(path, log, &plan, vocabulary)?;
    day.sample = episode_sample(&plan, &day.log);
    Ok((day, plan))
}

/// The policy of the settings, for the contracts of a day.
pub fn spec(day: &DayModel, settings: &Settings) -> Arc<PolicySpec> {
    Arc::new(PolicySpec {
        score_mode: settings.score_mode,
        policy: settings.policy.clone(),
        vocabulary: (*day.vocabulary).clone(),
    })
}
