//! Replays all policies on the reported days.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context as _, bail};

use crate::evaluate::{self, ComparedPolicy, DayReport, PolicyReport, Stress, TestDay};
use crate::log;
use crate::log::wander::{Hourly, Wander};
use crate::plan::Plan;
use crate::policy::informed::{self, Known};
use crate::run::context::compile_options;
use crate::settings::Settings;
use crate::supervisor::interrupt::Interrupt;
use crate::values::Told;

use super::config::Study;
use super::found::Found;
use super::frontier;
use super::rows::{CALM, Row, Volatility};

/// A world with the plan and the policies made from its training days.
pub struct Field {
    pub world: usize,
    pub dirs: Vec<PathBuf>,
    /// The plan of the baselines; without one, those that need it are left out.
    pub plan: Option<Plan>,
    /// The world's true process, set once a day has asked for it; `None` where it is not known.
    pub known: OnceLock<Option<Arc<Known>>>,
    pub trained: Vec<Trained>,
}

/// A finished run: the chosen policy first, then the policies shown beside it.
pub struct Trained {
    pub variant: usize,
    pub seed: u64,
    pub policies: Vec<ComparedPolicy>,
}

impl Trained {
    /// Reads the policies of a run directory.
    ///
    /// # Errors
    /// A policy that cannot be read.
    pub fn read(study: &Study, variant: usize, seed: u64, dir: &Path) -> anyhow::Result<Self> {
        let policies = ComparedPolicy::of_run(&format!("{}-{seed}", study.variants[variant].name), dir);
        let policies =
            policies.with_context(|| format!("remove {}, and the same command trains it again", dir.display()))?;
        Ok(Self { variant, seed, policies })
    }
}

/// A day of a world under a stress.
#[derive(Clone, Copy)]
struct Task<'a> {
    field: &'a Field,
    day: usize,
    stress: Option<&'a Stress>,
    /// Whether the day is reported; on a validation day only the baselines are replayed.
    reported: bool,
}

/// Evaluates every world on its reported days, without and under each stress, on `threads` threads; rows come in the order of
/// the worlds.
///
/// # Errors
/// A day that cannot be used, or an interrupt.
pub fn evaluate(
    study: &Study,
    fields: &[Field],
    settings: &Settings,
    threads: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Found> {
    let mut tasks = Vec::new();
    for field in fields {
        for &day in &study.worlds[field.world].days.report {
            let stresses = std::iter::once(None).chain(study.stresses.iter().map(Some));
            tasks.extend(stresses.map(|stress| Task { field, day, stress, reported: true }));
        }
        let validation = study.worlds[field.world].days.validation.iter();
        tasks.extend(validation.map(|&day| Task { field, day, stress: None, reported: false }));
    }
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let found: Mutex<Vec<Option<anyhow::Result<Found>>>> = Mutex::new(tasks.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    // Relaxed: the counter implies no other ordering.
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&task) = tasks.get(i) else { break };
                    let result = task.carry_out(study, settings, interrupt);
                    let failed = result.is_err();
                    found.lock().expect("nobody panics with it")[i] = Some(result);
                    if failed {
                        next.store(tasks.len(), Ordering::Relaxed);
                        break;
                    }
                    let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                    say!("evaluated {} ({n} of {})", task.name(study), tasks.len());
                }
            });
        }
    });
    let mut all = Found::default();
    // A task is missing only if another one failed, whose error is returned.
    for result in found.into_inner().expect("nobody panics with it").into_iter().flatten() {
        let part = result?;
        all.rows.extend(part.rows);
        all.validation.extend(part.validation);
        all.frontier.extend(part.frontier);
    }
    for field in fields {
        all.volatility.extend(volatility(study, field, settings)?);
    }
    let unplanned = fields.iter().filter(|field| field.plan.is_none());
    all.worlds_without_plan = unplanned.map(|field| study.worlds[field.world].name.clone()).collect();
    all.name_best_baseline();
    Ok(all)
}

/// Returns the volatility of the reported days of a world, relative to all of its days.
fn volatility(study: &Study, field: &Field, settings: &Settings) -> anyhow::Result<Vec<Volatility>> {
    let world = &study.worlds[field.world];
    let hourly = |dir: &PathBuf| Ok(Hourly::of(&log::open(dir, compile_options(settings))?));
    let days = field.dirs.iter().map(hourly).collect::<anyhow::Result<Vec<_>>>()?;
    let Some(wander) = Wander::of(&days) else { return Ok(vec![]) };
    let of = |&day: &usize| Volatility { world: world.name.clone(), day, volatility: wander.volatility[day] };
    Ok(world.days.report.iter().map(of).collect())
}

impl Task<'_> {
    fn name(&self, study: &Study) -> String {
        let place = format!("{} day {}", study.worlds[self.field.world].name, self.day);
        self.stress.map_or_else(|| place.clone(), |stress| format!("{place} under {stress}"))
    }

    fn carry_out(self, study: &Study, settings: &Settings, interrupt: &Interrupt) -> anyhow::Result<Found> {
        let Self { field, day, stress, reported } = self;
        let trained = if reported { &field.trained[..] } else { &[] };
        let policies: Vec<ComparedPolicy> = trained.iter().flat_map(|run| run.policies.clone()).collect();
        let mut watch = |_: &str, _| match interrupt.count() {
            0 => Ok(()),
            _ => bail!("interrupted"),
        };
        let test_day =
            TestDay::open(&field.dirs[day], compile_options(settings), (&Told::Logged, &Told::Logged), stress)?;
        let plan = field.plan.as_ref();
        let mut names = study.baselines.clone();
        let test_day = if study.informed && reported && stress.is_none() {
            names.push(informed::NAME.to_owned());
            let known = match field.known.get() {
                Some(known) => known.clone(),
                // Two threads may compute it at once; the results are equal.
                None => {
                    let made = test_day.known()?;
                    field.known.get_or_init(|| made).clone()
                }
            };
            test_day.sharing(known)
        } else {
            test_day
        };
        let report = evaluate::compare(&test_day, &policies, plan, &names, settings, &mut watch)
            .with_context(|| self.name(study))?;
        let frontier = match (plan.or(field.trained.first().map(|run| run.policies[0].policy.plan())), stress) {
            (Some(plan), None) if reported => {
                let model = test_day.model(plan, Arc::default());
                let world = &study.worlds[field.world].name;
                frontier::hindsight(world, day, &model, &study.frontier, settings.env.rate_seed)
            }
            _ => vec![],
        };
        let stress = stress.map_or_else(|| CALM.to_owned(), ToString::to_string);
        let rows = rows_of(study, field, day, &stress, &report);
        Ok(match reported {
            true => Found { rows, frontier, ..Found::default() },
            false => Found { validation: rows, ..Found::default() },
        })
    }
}

fn rows_of(study: &Study, field: &Field, day: usize, stress: &str, report: &DayReport) -> Vec<Row> {
    // Seeds of one variant share its name; a policy shown beside the chosen one keeps its suffix.
    let place = |row: &PolicyReport| {
        let mut all = field.trained.iter().flat_map(|run| run.policies.iter().map(move |entry| (run, entry)));
        let (run, entry) = all.find(|(_, entry)| entry.name == row.name)?;
        let suffix = entry.name.strip_prefix(&run.policies[0].name).unwrap_or_default();
        Some((format!("{}{suffix}", study.variants[run.variant].name), run.seed))
    };
    report
        .policies
        .iter()
        .map(|p| {
            let (name, seed) = place(p).map_or((p.name.clone(), None), |(name, seed)| (name, Some(seed)));
            Row {
                world: study.worlds[field.world].name.clone(),
                day,
                log: report.log.clone(),
                stress: stress.to_owned(),
                seed,
                report: PolicyReport { name, ..p.clone() },
                ub: report.bound.ub,
                stake: report.bound.stake,
                told: report.told.clone(),
                judged: report.judged.clone(),
                contracts_declared: report.contracts_declared,
            }
        })
        .collect()
}
