//! Soak test: training under a storm of signals, with a check after each blow that everything recovered.
//!
//! A scheduled run dies in ways that no test enumerates. Here real runs are struck at random moments in every kind of process:
//! killed one by one and several at once, including main and the whole group, at their start, while they resume and while they
//! end; stopped and continued; asked to end once, twice, and all at the same time. After each blow the run must have replaced
//! its processes, or must be resumed, and must have made progress. At the end of a session its ledger must balance to the last
//! sample and nothing may be left in memory. Between the sessions, lock-step runs are struck in the same ways and must end with
//! the bytes of an undisturbed run. Every blow is a line of the record, with its seed, so that kills add up over sessions.
//!
//! - [`storm`]: the blows. [`victim`]: a free run under them. [`lockstep`]: lock-step runs under them. [`processes`]: processes
//!   of a run. [`record`]: the record of blows, and its totals.

pub mod lockstep;
pub mod processes;
pub mod record;
pub mod storm;
pub mod victim;

use std::path::PathBuf;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::bench::watched::Task;

use lockstep::LockStep;
use processes::nap;
use record::{BlowRecord, Record, SoakReport};
use victim::Victim;

/// Blows per session; each session has its own run directory and an orderly end.
const SESSION: u32 = 40;
/// Maximum number of blows to a lock-step run, because it has to complete as well.
const LOCK_STEP_BLOWS: u32 = 8;

/// Options of a soak.
#[derive(Debug, Clone)]
pub struct Soak {
    pub kills: u64,
    pub seed: u64,
    /// File to which records are appended.
    pub record: Option<PathBuf>,
    /// Requests per day of the generated world.
    pub requests: u32,
    /// Settings of all runs, as `KEY=VALUE`.
    pub sets: Vec<String>,
}

/// Strikes runs and checks them until the given number of kills has been survived.
///
/// # Errors
/// The first failure; the run directory is kept.
pub fn run(soak: &Soak) -> anyhow::Result<SoakReport> {
    let mut records = soak.record.as_deref().map_or(Ok(vec![]), record::read)?;
    let task = Task::new(None, &soak.sets, soak.requests)?;
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?.keep();
    let mut rng = ChaCha8Rng::seed_from_u64(soak.seed);
    let mut kills = 0;
    let mut note = |kills: &mut u64, record: Record| -> anyhow::Result<()> {
        if let Record::Blow(blow) = &record {
            *kills += u64::from(blow.kills);
            tell(*kills, blow);
        }
        record::append(soak.record.as_deref(), &record)?;
        records.push(record);
        Ok(())
    };
    for session in 0.. {
        let seed = soak.seed.wrapping_mul(1000).wrapping_add(session);
        let run_dir = folder.join(format!("session-{session}"));
        let mut victim = Victim::start(&task, seed, run_dir.clone())?;
        let mut memory = victim.memory();
        for blow in 0..SESSION {
            if kills >= soak.kills {
                break;
            }
            nap(&mut rng, 0, 300);
            let blow_to_deal = storm::choose(&mut rng);
            let record = storm::strike(&mut victim, blow_to_deal, seed, &mut rng)?;
            note(&mut kills, Record::Blow(record))?;
            if blow == SESSION / 2 {
                memory = victim.memory();
            }
        }
        let now = victim.memory();
        victim.end()?;
        let (main_growth_mb, learner_growth_mb) = (now.0 - memory.0, now.1 - memory.1);
        note(&mut kills, Record::Session { seed, main_growth_mb, learner_growth_mb })?;
        std::fs::remove_dir_all(&run_dir)?;
        if kills >= soak.kills {
            break;
        }
        let undisturbed = LockStep::new(&task, seed, &folder)?;
        for run in 0..2 {
            let run_dir = folder.join(format!("lock-step-{session}-{run}"));
            let blows = undisturbed
                .run(run_dir, LOCK_STEP_BLOWS, &mut rng, &mut |blow| note(&mut kills, Record::Blow(blow)))?;
            note(&mut kills, Record::LockStep { seed, blows })?;
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(SoakReport::of(&records))
}

fn tell(kills: u64, blow: &BlowRecord) {
    let BlowRecord { lock_step, victims, progress_s, .. } = blow;
    let run = if *lock_step { "lock-step run" } else { "free run" };
    let after = progress_s.map_or_else(String::new, |s| format!(", got on after {s:.2} s"));
    say!("{kills:>5} kills; {run}: {:?} to {}{after}", blow.blow, victims.join(" "));
}
