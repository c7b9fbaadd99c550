//! Soak of lock-step runs: whatever happens to a run, it must end with the same bytes as an undisturbed run.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::bench::watched::Task;

use super::processes::{LOOK, Member, PATIENCE, await_orphans, children_of, nap, wait_until};
use super::record::{Blow, BlowRecord};
use super::storm::{Tally, choose, some};
use super::victim::{SETS, launch};

/// A lock-step run and its undisturbed result.
pub struct LockStep<'a> {
    task: &'a Task,
    sets: Vec<String>,
    seed: u64,
    /// Contents of both policy files.
    expected: [Vec<u8>; 2],
    takes: Duration,
}

fn policies(run_dir: &Path) -> anyhow::Result<[Vec<u8>; 2]> {
    let read = |name: &str| std::fs::read(run_dir.join("policy").join(name)).with_context(|| format!("no {name}"));
    Ok([read("best.safetensors")?, read("last.safetensors")?])
}

impl<'a> LockStep<'a> {
    /// Trains once, undisturbed.
    pub fn new(task: &'a Task, seed: u64, folder: &Path) -> anyhow::Result<Self> {
        let mut sets = task.sets().to_vec();
        sets.extend(SETS.map(str::to_owned));
        sets.extend(["budget.max_updates=128".into(), "checkpoint.every_s=0.05".into(), format!("run.seed={seed}")]);
        let run_dir = folder.join("undisturbed");
        let mut run = Self { task, sets, seed, expected: Default::default(), takes: Duration::ZERO };
        let start = Instant::now();
        let mut main = run.launch(&run_dir)?;
        let status = main.wait()?;
        ensure!(status.success(), "a lock-step run ended with {status}; see {}", run_dir.display());
        run.takes = start.elapsed();
        run.expected = policies(&run_dir)?;
        std::fs::remove_dir_all(&run_dir)?;
        Ok(run)
    }

    fn launch(&self, run_dir: &Path) -> anyhow::Result<Child> {
        launch(self.task, &self.sets, run_dir, &["--deterministic"])
    }

    /// Trains under `blows` blows, fewer if the run ends before; each is passed to `dealt`.
    ///
    /// # Errors
    /// A run that hangs, fails, or ends with other bytes.
    pub fn run(
        &self,
        run_dir: PathBuf,
        blows: u32,
        rng: &mut ChaCha8Rng,
        dealt: &mut dyn FnMut(BlowRecord) -> anyhow::Result<()>,
    ) -> anyhow::Result<u32> {
        let mut main = Guarded(self.launch(&run_dir)?);
        let mut count = 0;
        loop {
            let moment = self.takes.mul_f64(rng.random_range(0.05..0.7));
            if count == blows || self.ends_within(&mut main.0, moment, &run_dir)? {
                break;
            }
            let blow = choose(rng);
            let (record, over) = self.strike(&mut main.0, &run_dir, blow, rng)?;
            dealt(record)?;
            count += 1;
            if over {
                main = Guarded(self.launch(&run_dir)?);
            }
        }
        let ended = self.ends_within(&mut main.0, PATIENCE + 4 * self.takes, &run_dir)?;
        ensure!(ended, "a hang: the lock-step run does not end; see {}", run_dir.display());
        ensure!(
            policies(&run_dir)? == self.expected,
            "other bytes than undisturbed after {count} blows; see {}",
            run_dir.display()
        );
        std::fs::remove_dir_all(&run_dir)?;
        Ok(count)
    }

    /// Returns whether the run completes within `time`.
    fn ends_within(&self, main: &mut Child, time: Duration, run_dir: &Path) -> anyhow::Result<bool> {
        let start = Instant::now();
        while start.elapsed() < time {
            if let Some(status) = main.try_wait()? {
                ensure!(status.success(), "the lock-step run ended with {status}; see {}", run_dir.display());
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }

    /// Deals a blow; returns its record, and whether the run has to be started again.
    fn strike(
        &self,
        main: &mut Child,
        run_dir: &Path,
        blow: Blow,
        rng: &mut ChaCha8Rng,
    ) -> anyhow::Result<(BlowRecord, bool)> {
        let children = children_of(main.id());
        let itself = Member::main(main.id());
        let mut tally = Tally::default();
        match blow {
            Blow::Kill => some(&children, rng).iter().take(1).for_each(|child| tally.kill(child)),
            Blow::Burst => some(&children, rng).iter().for_each(|child| tally.kill(child)),
            Blow::Main | Blow::Start => tally.kill(&itself),
            Blow::Group => {
                tally.kill(&itself);
                children.iter().for_each(|child| tally.kill(child));
            }
            Blow::Pause => {
                let stopped = some(&[&children[..], &[itself]].concat(), rng);
                stopped.iter().for_each(|m| tally.signal(&m.role, m.pid, Signal::SIGSTOP));
                nap(rng, 20, 400);
                stopped.iter().for_each(|m| tally.signal(&m.role, m.pid, Signal::SIGCONT));
            }
            Blow::Term | Blow::TermTwice | Blow::TermAll | Blow::Shutdown => {
                if blow == Blow::TermAll {
                    children.iter().for_each(|child| tally.signal(&child.role, child.pid, Signal::SIGTERM));
                }
                tally.signal("main", itself.pid, Signal::SIGTERM);
                if blow == Blow::TermTwice {
                    nap(rng, 500, 800);
                    tally.signal("main", itself.pid, Signal::SIGTERM);
                }
                if blow == Blow::Shutdown {
                    nap(rng, 0, 200);
                    some(&children, rng).iter().for_each(|child| tally.kill(child));
                }
            }
        }
        let goes_on = matches!(blow, Blow::Kill | Blow::Burst | Blow::Pause);
        if goes_on {
            return Ok((tally.record(self.seed, blow, true), false));
        }
        let mut status = None;
        wait_until("end of the lock-step run", run_dir, || {
            status = main.try_wait()?;
            Ok(status.is_some())
        })?;
        let orphans_s = await_orphans(&children)?;
        match status.map(|status| status.code()) {
            // It may have completed just before.
            Some(None | Some(0 | 130)) => {}
            other => bail!("the interrupted lock-step run ended with {other:?}; see {}", run_dir.display()),
        }
        Ok((BlowRecord { orphans_s: Some(orphans_s), ..tally.record(self.seed, blow, true) }, true))
    }
}

/// A child that is killed when dropped.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail if it is over already, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
