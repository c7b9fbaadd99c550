//! Ctrl-C and SIGTERM: the first one asks for an orderly end, with results saved; the second one ends the program at once.
//!
//! A signal that comes within a quarter of a second of the first is the same request: GNU `timeout` signals its child, and then the
//! process group that the child belongs to.
//!
//! This holds in every phase. While a run trains, its main loop checks the count and ends the children in order; before and
//! after, long computations are cancelled ([`crate::cancel`]). A process that has not ended within the grace period, or shortly
//! after the second signal, is ended from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::awake::Deadline;
use crate::cancel;

/// Counts the interrupts.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    count: AtomicUsize,
    /// Whether a main loop checks the count and ends the run in order.
    supervised: AtomicBool,
    grace_ms: AtomicU64,
    grace_is_over: AtomicBool,
}

/// Exit code of an interrupted run.
const INTERRUPTED: i32 = 130;
/// Time that the main loop of a run may take to end its processes and write its results after the grace period.
const MARGIN: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);
/// Time after the first interrupt from which another one is a second request.
const APART: Duration = Duration::from_millis(250);

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP (unless ignored, as under `nohup`) from now on. `grace_s` seconds after the first
    /// one the process ends, whatever it is doing.
    ///
    /// # Errors
    /// Signals that cannot be handled on this system.
    pub fn listen(grace_s: f64) -> anyhow::Result<Self> {
        let interrupt = Self::default();
        interrupt.0.grace_ms.store((grace_s * 1000.0) as u64, Ordering::Relaxed);
        let mut heeded = vec![SIGINT, SIGTERM];
        if !is_ignored(SIGHUP) {
            heeded.push(SIGHUP);
        }
        let mut signals = signal_hook::iterator::Signals::new(heeded).context("cannot handle signals")?;
        let state = interrupt.0.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut first: Option<Instant> = None;
            for _ in signals.forever() {
                if first.is_none_or(|first| first.elapsed() >= APART) {
                    first.get_or_insert_with(Instant::now);
                    state.heed();
                }
            }
        })?;
        Ok(interrupt)
    }

    /// Declares that a main loop now checks the count and ends the run in order.
    pub fn supervise(&self) {
        self.0.supervised.store(true, Ordering::Relaxed);
    }

    /// Ends the supervision; from now on an interrupt cancels computations.
    pub fn leave(&self) {
        self.0.supervised.store(false, Ordering::Relaxed);
        // The main loop did not see an interrupt that came at its very end.
        if self.count() > 0 {
            cancel::request();
        }
    }

    /// Returns whether everything that still runs is to be ended: the grace period since the first interrupt is over, or there
    /// was a second one.
    pub fn is_pressing(&self) -> bool {
        self.count() > 1 || self.0.grace_is_over.load(Ordering::Relaxed)
    }

    /// Returns how often the process was asked to end.
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }
}

impl State {
    fn heed(self: &Arc<Self>) {
        // Relaxed: independent counters, read in polling loops.
        let earlier = self.count.fetch_add(1, Ordering::Relaxed);
        let supervised = self.supervised.load(Ordering::Relaxed);
        if !supervised {
            cancel::request();
        }
        match earlier {
            0 => {
                self.end_after(Duration::from_millis(self.grace_ms.load(Ordering::Relaxed)), "within watchdog.grace_s")
            }
            _ if supervised => self.end_after(Duration::ZERO, "at once"),
            _ => std::process::exit(INTERRUPTED),
        }
    }

    /// Ends the process after some awake time, plus a margin if a main loop ends it in order.
    fn end_after(self: &Arc<Self>, time: Duration, when: &'static str) {
        let state = self.clone();
        let wait = move || {
            let (mut deadline, mut with_margin) = (Deadline::after(time), Deadline::after(time + MARGIN));
            loop {
                std::thread::sleep(LOOK);
                let (over, far_over) = (deadline.is_over(), with_margin.is_over());
                state.grace_is_over.fetch_or(over, Ordering::Relaxed);
                if far_over || over && !state.supervised.load(Ordering::Relaxed) {
                    say!("not ended {when} after an interrupt; ending now");
                    std::process::exit(INTERRUPTED);
                }
            }
        };
        // Without the thread only a second interrupt ends the process.
        let _ = std::thread::Builder::new().name("grace".into()).spawn(wait);
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: queries the action of a signal into zeroed memory, which is a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Turns a write beyond the file size limit into an error, which every writer handles, instead of a fatal signal. Children
/// inherit it.
pub fn survive_file_size_limits() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
