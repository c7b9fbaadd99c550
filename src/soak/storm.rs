//! The blows to a free run, each followed by a check that everything recovered.

use std::time::Instant;

use nix::sys::signal::Signal;
use rand::{RngExt as _, seq::IndexedRandom as _};
use rand_chacha::ChaCha8Rng;

use super::processes::{Member, children_of, nap, send};
use super::record::{Blow, BlowRecord};
use super::victim::Victim;

/// Relative frequency of each blow, in the order of [`Blow::ALL`].
const WEIGHTS: [u32; 10] = [30, 20, 8, 6, 8, 8, 5, 4, 5, 6];

/// Draws a blow.
pub fn choose(rng: &mut ChaCha8Rng) -> Blow {
    let mut left = rng.random_range(0..WEIGHTS.iter().sum());
    let mut blows = Blow::ALL.into_iter().zip(WEIGHTS);
    loop {
        match blows.next() {
            Some((blow, weight)) if left < weight => return blow,
            Some((_, weight)) => left -= weight,
            None => return Blow::Kill,
        }
    }
}

/// Signals sent so far, and their targets.
#[derive(Default)]
pub struct Tally {
    pub victims: Vec<String>,
    pub kills: u32,
    pub signals: u32,
    /// Pids that must be replaced.
    pub dead: Vec<u32>,
}

impl Tally {
    pub fn kill(&mut self, member: &Member) {
        send(member.pid, Signal::SIGKILL);
        self.victims.push(member.role.clone());
        self.kills += 1;
        self.dead.push(member.pid);
    }

    pub fn signal(&mut self, role: &str, pid: u32, signal: Signal) {
        send(pid, signal);
        self.victims.push(role.to_owned());
        self.signals += 1;
    }

    pub fn record(self, seed: u64, blow: Blow, lock_step: bool) -> BlowRecord {
        let Self { victims, kills, signals, .. } = self;
        BlowRecord {
            seed,
            blow,
            lock_step,
            victims,
            kills,
            signals,
            replaced_s: None,
            progress_s: None,
            orphans_s: None,
        }
    }
}

/// Draws some of the members, at least one, in random order.
pub fn some(members: &[Member], rng: &mut ChaCha8Rng) -> Vec<Member> {
    let most = members.len();
    let count = if most == 0 { 0 } else { rng.random_range(1..=most) };
    members.sample(rng, count).cloned().collect()
}

/// Deals a blow, checks that the run recovers, and resumes the run if the blow ended it.
///
/// # Errors
/// Anything that did not recover.
pub fn strike(victim: &mut Victim, blow: Blow, seed: u64, rng: &mut ChaCha8Rng) -> anyhow::Result<BlowRecord> {
    let mut tally = Tally::default();
    let children = victim.children();
    let main = victim.main.id();
    let start = Instant::now();
    let mut orphans_s = None;
    match blow {
        Blow::Kill => some(&children, rng).iter().take(1).for_each(|child| tally.kill(child)),
        Blow::Burst => {
            let waves = if rng.random_bool(0.5) { 1 } else { 2 };
            for _ in 0..waves {
                some(&victim.children(), rng).iter().for_each(|child| tally.kill(child));
                nap(rng, 0, 80);
            }
        }
        Blow::Main | Blow::Group | Blow::Start => {
            tally.kill(&Member::main(main));
            if blow == Blow::Group {
                children.iter().for_each(|child| tally.kill(child));
            }
            orphans_s = Some(victim.bury(&children)?);
            if blow == Blow::Start {
                kill_at_the_start(victim, &mut tally, rng)?;
            }
        }
        Blow::Pause => {
            let mut all = children;
            all.push(Member::main(main));
            let stopped = some(&all, rng);
            stopped.iter().for_each(|m| tally.signal(&m.role, m.pid, Signal::SIGSTOP));
            nap(rng, 20, 800);
            if rng.random_bool(0.3)
                && let Some(child) = stopped.iter().find(|m| m.pid != main)
            {
                tally.kill(child);
            }
            stopped.iter().for_each(|m| tally.signal(&m.role, m.pid, Signal::SIGCONT));
        }
        Blow::Term | Blow::TermTwice | Blow::TermAll | Blow::Shutdown => {
            if blow == Blow::TermAll {
                children.iter().for_each(|child| tally.signal(&child.role, child.pid, Signal::SIGTERM));
            }
            tally.signal("main", main, Signal::SIGTERM);
            if blow == Blow::TermTwice {
                // Far enough apart to count as two.
                nap(rng, 500, 800);
                tally.signal("main", main, Signal::SIGTERM);
            }
            if blow == Blow::Shutdown {
                nap(rng, 0, 300);
                some(&children, rng).iter().for_each(|child| tally.kill(child));
            }
            if blow == Blow::Shutdown && rng.random_bool(0.3) {
                nap(rng, 0, 50);
                tally.kill(&Member::main(main));
                orphans_s = Some(victim.bury(&children)?);
            } else {
                victim.wait_for_end(&children, blow == Blow::TermTwice)?;
            }
        }
    }
    let ended = !matches!(blow, Blow::Kill | Blow::Burst | Blow::Pause);
    if ended {
        let main = victim.launch()?;
        victim.adopt(main)?;
    }
    victim.wait_until_complete(&tally.dead)?;
    let replaced_s = start.elapsed().as_secs_f64();
    victim.wait_for_progress()?;
    let progress_s = start.elapsed().as_secs_f64();
    Ok(BlowRecord {
        replaced_s: Some(replaced_s),
        progress_s: Some(progress_s),
        orphans_s,
        ..tally.record(seed, blow, false)
    })
}

/// Starts the run again a few times and kills its processes during the start: main before and after it has shared memory, the
/// children while they read their snapshot.
fn kill_at_the_start(victim: &mut Victim, tally: &mut Tally, rng: &mut ChaCha8Rng) -> anyhow::Result<()> {
    for _ in 0..rng.random_range(1..=3) {
        let mut main = victim.launch()?;
        nap(rng, 0, 700);
        let children = children_of(main.id());
        if rng.random_bool(0.4) {
            some(&children, rng).iter().for_each(|child| tally.kill(child));
            nap(rng, 0, 100);
        }
        tally.kill(&Member::main(main.id()));
        main.wait()?;
        super::processes::await_orphans(&children_of(main.id()))?;
    }
    Ok(())
}
