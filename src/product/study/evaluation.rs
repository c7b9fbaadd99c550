//! Replays everybody on the reported days.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::evaluate::{self, DayReport, Kind, TestDay};
use crate::plan::Plan;
use crate::policy::file::PolicyFile;
use crate::run::context::compile_options;
use crate::settings::Settings;
use crate::supervisor::interrupt::Interrupt;

use super::config::Study;

/// One policy on one day of one world. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub world: String,
    /// Index of the day in its world.
    pub day: usize,
    pub log: String,
    pub stress: String,
    /// Name of the variant, the baseline, or `oracle`.
    pub policy: String,
    pub kind: Kind,
    /// Of the training run; `null` for those that are not trained.
    pub seed: Option<u64>,
    pub j: f64,
    pub share: Option<f64>,
    pub gap: Option<f64>,
    pub shortage_rate: f64,
    pub auction_revenue: f64,
    /// Minor units per 1,000 impressions.
    pub mean_auction_ecpm: f64,
    pub mean_contract_ctr: f64,
    pub contract_impressions: u64,
    pub auction_impressions: u64,
    pub unfilled: u64,
    pub ub: f64,
    pub stake: f64,
}

/// A world with what was made of its training days.
pub struct Field {
    pub world: usize,
    pub dirs: Vec<PathBuf>,
    pub plan: Option<Plan>,
    /// Variant and seed of each trained policy.
    pub trained: Vec<(usize, u64, PolicyFile)>,
}

/// No stress.
pub const CALM: &str = "none";

/// Evaluates every world on its reported days, on `threads` threads; rows come in the order of the worlds.
///
/// # Errors
/// A day that cannot be used, or an interrupt.
pub fn evaluate(
    study: &Study,
    fields: &[Field],
    settings: &Settings,
    threads: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Row>> {
    let tasks: Vec<(&Field, usize)> =
        fields.iter().flat_map(|f| study.worlds[f.world].days.report.iter().map(move |&d| (f, d))).collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let found: Mutex<Vec<Option<anyhow::Result<Vec<Row>>>>> = Mutex::new(tasks.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    // Relaxed: the counters order nothing else.
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(field, day)) = tasks.get(i) else { break };
                    let rows = day_rows(study, field, day, settings, interrupt);
                    let failed = rows.is_err();
                    found.lock().expect("nobody panics with it")[i] = Some(rows);
                    if failed {
                        next.store(tasks.len(), Ordering::Relaxed);
                        break;
                    }
                    let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                    let world = &study.worlds[field.world].name;
                    eprintln!("evaluated {world} day {day} ({n} of {})", tasks.len());
                }
            });
        }
    });
    let mut rows = Vec::new();
    let mut missing = false;
    for result in found.into_inner().expect("nobody panics with it") {
        match result {
            Some(found) => rows.extend(found?),
            None => missing = true,
        }
    }
    assert!(!missing, "a failed task ends the others, and its error is returned");
    Ok(rows)
}

fn day_rows(
    study: &Study,
    field: &Field,
    day: usize,
    settings: &Settings,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Row>> {
    let policies: Vec<(String, PolicyFile)> = field
        .trained
        .iter()
        .map(|(variant, seed, file)| (format!("{}-{seed}", study.variants[*variant].name), file.clone()))
        .collect();
    let world = &study.worlds[field.world].name;
    let mut watch = |_: &str, _| match interrupt.count() {
        0 => Ok(()),
        _ => bail!("interrupted"),
    };
    let test_day = TestDay::open(&field.dirs[day], compile_options(settings))?;
    let report = evaluate::compare(&test_day, &policies, field.plan.as_ref(), &study.baselines, settings, &mut watch)
        .with_context(|| format!("world {world}, day {day}"))?;
    Ok(rows_of(study, field, day, CALM, &report))
}

fn rows_of(study: &Study, field: &Field, day: usize, stress: &str, report: &DayReport) -> Vec<Row> {
    let mut trained = field.trained.iter();
    report
        .policies
        .iter()
        .map(|p| {
            let run = if p.kind == Kind::Trained { trained.next() } else { None };
            Row {
                world: study.worlds[field.world].name.clone(),
                day,
                log: report.log.clone(),
                stress: stress.to_owned(),
                policy: run.map_or_else(|| p.name.clone(), |(variant, ..)| study.variants[*variant].name.clone()),
                kind: p.kind,
                seed: run.map(|(_, seed, _)| *seed),
                j: p.j,
                share: p.share,
                gap: p.gap,
                shortage_rate: p.shortage_rate,
                auction_revenue: p.auction_revenue,
                mean_auction_ecpm: p.mean_auction_ecpm,
                mean_contract_ctr: p.mean_contract_ctr,
                contract_impressions: p.contract_impressions,
                auction_impressions: p.auction_impressions,
                unfilled: p.unfilled,
                ub: report.bound.ub,
                stake: report.bound.stake,
            }
        })
        .collect()
}
