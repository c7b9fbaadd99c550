//! Ctrl-C and SIGTERM: the first asks to end, with what is known saved; the second ends at once.
//!
//! In every phase: while a run trains, its main loop looks at the count and ends the children in order; before and after, long
//! computations are cancelled ([`crate::cancel`]). What has not ended within the time of grace, or an instant after the second
//! signal, is ended from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

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
    /// Somebody looks at the count and ends the run in order.
    supervised: AtomicBool,
    grace_ms: AtomicU64,
    grace_is_over: AtomicBool,
}

/// The exit code of an interrupted run.
const INTERRUPTED: i32 = 130;
/// What the main loop of a run may take to end its processes and close its books, once it has to.
const MARGIN: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and, where it is not ignored as under `nohup`, SIGHUP from now on. `grace_s` seconds after the
    /// first the process ends, whatever it is at.
    ///
    /// # Errors
    /// A system that lets nobody listen.
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
            for _ in signals.forever() {
                state.heed();
            }
        })?;
        Ok(interrupt)
    }

    /// From now on somebody looks at the count and ends the run in order.
    pub fn supervise(&self) {
        self.0.supervised.store(true, Ordering::Relaxed);
    }

    /// From now on nobody does; computations are cancelled.
    pub fn leave(&self) {
        self.0.supervised.store(false, Ordering::Relaxed);
        // One that came too late for whoever looked until now.
        if self.count() > 0 {
            cancel::request();
        }
    }

    /// Whether what has not ended by now is to be ended: the time of grace since the first interrupt is over, or there was a
    /// second.
    pub fn is_pressing(&self) -> bool {
        self.count() > 1 || self.0.grace_is_over.load(Ordering::Relaxed)
    }

    /// How often the process was asked to end.
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }
}

impl State {
    fn heed(self: &Arc<Self>) {
        // Relaxed: lone counters, read in polling loops.
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

    /// Ends the process after some time awake, and a margin for a main loop that ends it in order.
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
        // Without the thread only a second interrupt is left.
        let _ = std::thread::Builder::new().name("grace".into()).spawn(wait);
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks for the action of a signal, into zeroed memory, which is a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Makes a write beyond the limit on the size of files an error, which every writer expects, instead of the end of the process.
/// Children inherit it.
pub fn survive_file_size_limits() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
