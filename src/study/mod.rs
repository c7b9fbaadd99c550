//! Studies: worlds x seeds x policies, trained, evaluated and put into one table.
//!
//! A claim about a policy needs several worlds, several seeds, and days that nothing was chosen on. [`config`] is the study file and
//! refuses days that are both trained and reported on. [`worlds`] generates synthetic worlds. [`runs`] determines which plans and training
//! runs are missing, and [`jobs`] executes them as processes of this program. [`evaluation`] replays all policies on the reported days,
//! without and under stress, into [`rows`], collected in [`found`]. [`frontier`] computes the possible trade-offs between shortage and
//! revenue, [`summary`] takes means with intervals and [`paired`] differences ([`statistics`]), [`learning`] reads the learning curves and
//! [`curves`] draws them, and [`report`] renders the table.
//!
//! [`sweep`] makes the variants of a study from a grid or at random and ranks them; [`shard`] is a part of a study on one of many machines.
//!
//! Everything is kept under one folder: a product that was finished with the same settings and the same days is reused, so that an
//! interrupted study continues where it stopped.

pub mod config;
mod curves;
pub mod evaluation;
pub mod found;
pub mod frontier;
pub mod jobs;
pub mod learning;
pub mod paired;
pub mod report;
pub mod rows;
mod runs;
pub mod shard;
pub mod statistics;
pub mod summary;
pub mod sweep;
mod worlds;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;

use crate::plan::Plan;
use crate::supervisor::interrupt::Interrupt;

pub use config::Study;
use config::Variant;
use evaluation::{Field, Trained};
use jobs::Ended;
use learning::Curve;
use runs::{Kind, Product};
pub use shard::Shard;
use summary::Summary;
pub use sweep::Sweep;

/// Interval at which a part checks whether another one has made a world.
const POLL: Duration = Duration::from_millis(100);
/// File with the number of parts of which those that run are.
const COUNT: &str = "shards";

/// Options of a study's execution.
#[derive(Debug, Clone)]
pub struct Options {
    /// Output folder.
    pub out: PathBuf,
    /// Number of concurrent trainings, and later evaluations.
    pub jobs: usize,
    /// Whether to train nothing and evaluate the finished runs.
    pub evaluate_only: bool,
    /// Part of the plans and runs to make, without a table.
    pub shard: Option<Shard>,
}

/// How the execution of a study ended.
#[derive(Debug)]
pub enum End {
    Interrupted,
    /// A part is made: number of its plans and runs that exist, and failures.
    Made {
        there: usize,
        failures: Vec<String>,
    },
    Done(Box<Done>),
}

/// A completed study.
#[derive(Debug)]
pub struct Done {
    pub report: Report,
    /// Failures of runs, which are missing from the report.
    pub failures: Vec<String>,
}

/// The results, and the table that renders them.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub summary: Summary,
    pub learning: Vec<Curve>,
    #[serde(skip)]
    pub table: String,
}

/// Executes a study or one part of it. A failed run is named in the result and does not stop the others.
///
/// # Errors
/// A folder that cannot be written or that another study uses, a log that cannot be used, or nothing to evaluate.
pub fn run(title: &str, study: &Study, options: &Options, interrupt: &Interrupt) -> anyhow::Result<End> {
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    let out = options.out.canonicalize().with_context(|| format!("cannot use {}", options.out.display()))?;
    let _locks = lock(&out, options.shard)?;
    // Read first: the rest takes hours, and somebody may change the files meanwhile.
    let settings = base_settings(&study.base)?;
    let weights = study
        .variants
        .iter()
        .map(|v| Ok((v.name.clone(), base_settings(v)?.reward.contract_delivery)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for world in &study.worlds {
        let Some(_alone) = wait_for(&out.join("worlds.lock"), interrupt)? else { return Ok(End::Interrupted) };
        if interrupt.count() > 0 {
            return Ok(End::Interrupted);
        }
        worlds::provide(world, &out)?;
    }
    let mut products = Vec::new();
    for i in 0..study.worlds.len() {
        products.extend(Product::of_world(study, i, &out)?);
    }
    if let Some(shard) = options.shard {
        let mut i = 0..;
        products.retain(|_| i.next().is_some_and(|i| shard.has(i)));
    }
    let failures = if options.evaluate_only {
        let missing = products.iter().filter(|p| !p.is_there());
        missing.map(|p| format!("{}: not finished with these settings; left out", p.name(study))).collect()
    } else {
        make(study, &products, options.jobs, interrupt)?
    };
    if interrupt.count() > 0 {
        return Ok(End::Interrupted);
    }
    if options.shard.is_some() {
        let there = products.iter().filter(|p| p.is_there()).count();
        return Ok(End::Made { there, failures });
    }
    let (fields, curves) = collect(study, &products, &out)?;
    if let Some(chart) = curves::draw(study, &curves) {
        write(&out.join("curves.svg"), chart.as_bytes())?;
    }
    let mut found = match evaluation::evaluate(study, &fields, &settings, options.jobs, interrupt) {
        Err(_) if interrupt.count() > 0 => return Ok(End::Interrupted),
        found => found?,
    };
    if study.choose {
        found.choose(&curves);
    }
    let summary = Summary::of(&found, &weights);
    let table = report::render(title, study, &summary, &curves);
    write_lines(&out.join("results.jsonl"), &found.rows)?;
    write_lines(&out.join("validation.jsonl"), &found.validation)?;
    write_lines(&out.join("differences.jsonl"), &summary.differences)?;
    write_lines(&out.join("frontier.jsonl"), &found.frontier)?;
    write_lines(&out.join("learning.jsonl"), &curves)?;
    write(&out.join("table.md"), table.as_bytes())?;
    Ok(End::Done(Box::new(Done { report: Report { summary, learning: curves, table }, failures })))
}

/// Locks the folder against a second study; different parts may run at the same time, but not parts of another number, which would
/// make the same products.
fn lock(out: &Path, shard: Option<Shard>) -> anyhow::Result<Vec<Flock<File>>> {
    let Some(shard) = shard else { return Ok(vec![lock_or_refuse(out, "lock", FlockArg::LockExclusiveNonblock)?]) };
    let counts = out.join(COUNT);
    let file = File::options().append(true).create(true).open(&counts);
    let file = file.with_context(|| format!("cannot write {}", counts.display()))?;
    // One part after the other finds out whether others run.
    let _turn = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .with_context(|| format!("cannot lock {}", counts.display()))?;
    let is_first = lock_or_refuse(out, "lock", FlockArg::LockExclusiveNonblock).is_ok();
    let shared = lock_or_refuse(out, "lock", FlockArg::LockSharedNonblock)?;
    if is_first {
        write(&counts, shard.number_of_parts().to_string().as_bytes())?;
    }
    let count = std::fs::read_to_string(&counts).with_context(|| format!("cannot read {}", counts.display()))?;
    if count != shard.number_of_parts().to_string() {
        bail!(
            "{} is in use by shards I/{count}, and this is {shard}: start shards I/{count}, or wait until those have ended",
            out.display()
        );
    }
    Ok(vec![shared, lock_or_refuse(out, &shard.lock(), FlockArg::LockExclusiveNonblock)?])
}

/// Locks a file of the folder.
///
/// # Errors
/// Another process that has it.
fn lock_or_refuse(out: &Path, name: &str, how: FlockArg) -> anyhow::Result<Flock<File>> {
    let path = out.join(name);
    match Flock::lock(open_lock(&path)?, how) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "{} is in use by a running `admix study` or `admix sweep`; wait for it or choose another --out",
            out.display()
        ),
        Err((_, e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn open_lock(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until no other process has the lock; `None` after an interrupt.
fn wait_for(path: &Path, interrupt: &Interrupt) -> anyhow::Result<Option<Flock<File>>> {
    let mut file = open_lock(path)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) if interrupt.count() == 0 => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, e)) => return Err(e).with_context(|| format!("cannot lock {}", path.display())),
        };
        std::thread::sleep(POLL);
    }
}

/// Loads the settings without a world's days, which are set per run.
fn base_settings(variant: &Variant) -> anyhow::Result<crate::settings::Settings> {
    Ok(variant.settings(&["data.train=[\"-\"]".into(), "data.validation=[\"-\"]".into()])?)
}

/// Makes the plans and runs that are missing; returns the failures.
fn make(study: &Study, products: &[Product], at_once: usize, interrupt: &Interrupt) -> anyhow::Result<Vec<String>> {
    let missing: Vec<&Product> = products.iter().filter(|p| !p.is_there()).collect();
    let reused = products.len() - missing.len();
    if reused > 0 {
        say!("{reused} of {} plans and runs are there already", products.len());
    }
    let jobs = missing.iter().map(|p| p.job(study)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut failures = Vec::new();
    let mut done = 0;
    let mut ended = |end: Ended| {
        done += 1;
        let Ended { job, seconds, failure } = end;
        let name = &jobs[job].name;
        let failure = failure.or_else(|| missing[job].complete().err().map(|e| format!("{e:#}")));
        let place = format!("({done} of {})", jobs.len());
        match failure {
            None => say!("{name}: done in {seconds:.0} s {place}"),
            Some(_) if interrupt.count() > 0 => say!("{name}: interrupted {place}"),
            Some(why) => {
                say!("{name}: FAILED {place}: {why}");
                failures.push(format!("{name}: {why}"));
            }
        }
    };
    jobs::run(&jobs, at_once, interrupt, &mut ended)?;
    Ok(failures)
}

/// Loads the plans and runs that exist.
fn collect(study: &Study, products: &[Product], out: &Path) -> anyhow::Result<(Vec<Field>, Vec<Curve>)> {
    let field = |world: usize| Field {
        world,
        dirs: study.worlds[world].dirs(out),
        plan: None,
        known: OnceLock::new(),
        trained: vec![],
    };
    let mut fields: Vec<Field> = (0..study.worlds.len()).map(field).collect();
    let mut curves = Vec::new();
    for product in products.iter().filter(|p| p.is_there()) {
        let field = &mut fields[product.world];
        match &product.kind {
            Kind::Plan { file } => field.plan = Some(Plan::read(file)?),
            Kind::Run { variant, seed, dir } => {
                let trained = Trained::read(study, *variant, *seed, dir)?;
                if field.plan.is_none() && products.iter().any(|plan| product.can_replace(plan)) {
                    say!("{}: its plan takes the place of the world's, which is missing", product.name(study));
                    field.plan = Some(trained.policies[0].policy.plan().clone());
                }
                field.trained.push(trained);
                let world = &study.worlds[product.world].name;
                curves.push(Curve::read(dir, world, &study.variants[*variant].name, *seed)?);
            }
        }
    }
    fields.retain(|f| f.plan.is_some() || !f.trained.is_empty());
    if fields.is_empty() {
        bail!("there is nothing to evaluate: no plan and no finished run in {}", out.display());
    }
    Ok((fields, curves))
}

fn write_lines(path: &Path, rows: &[impl Serialize]) -> anyhow::Result<()> {
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, row)?;
        writeln!(text)?;
    }
    write(path, &text)
}

fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of different numbers ran at once, and two of them made the same run in the same folder.
    #[test]
    fn parts_of_another_number_wait_until_the_others_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let shard = |text: &str| Some(text.parse().unwrap());
        let refused = |text: Option<Shard>| lock(folder.path(), text).map(drop).unwrap_err().to_string();
        let first = lock(folder.path(), shard("1/2")).unwrap();
        let second = lock(folder.path(), shard("2/2")).unwrap();
        assert!(refused(shard("1/3")).contains("shards I/2, and this is 1/3"));
        assert!(refused(shard("1/2")).contains("in use by a running"));
        assert!(refused(None).contains("in use by a running"));
        drop(first);
        assert!(refused(shard("1/3")).contains("shards I/2"), "the other one still runs");
        drop(second);
        let other = lock(folder.path(), shard("1/3")).unwrap();
        assert!(refused(shard("2/2")).contains("shards I/3"));
        drop(other);
        let whole = lock(folder.path(), None).unwrap();
        assert!(refused(shard("1/3")).contains("in use by a running"));
        drop(whole);
    }
}
