//! Ctrl-C and SIGTERM: the first asks the run to end with what was learned saved, the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Counts the interrupts.
#[derive(Debug, Clone)]
pub struct Interrupt {
    count: Arc<AtomicUsize>,
    supervised: Arc<AtomicBool>,
}

/// The exit code of an interrupted run.
const INTERRUPTED: i32 = 130;

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on.
    pub fn listen() -> anyhow::Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
        let supervised = Arc::new(AtomicBool::new(false));
        let (counter, watched) = (count.clone(), supervised.clone());
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                // Relaxed: a lone counter, read in a polling loop.
                let earlier = counter.fetch_add(1, Ordering::Relaxed);
                // Before the run there is nothing to save and nobody who looks at the count.
                if earlier > 0 && !watched.load(Ordering::Relaxed) {
                    std::process::exit(INTERRUPTED);
                }
            }
        })?;
        Ok(Self { count, supervised })
    }

    /// From now on somebody looks at the count and ends the run in order.
    pub fn supervise(&self) {
        self.supervised.store(true, Ordering::Relaxed);
    }

    /// How often the run was asked to end.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}
