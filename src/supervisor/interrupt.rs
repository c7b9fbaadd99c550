//! Ctrl-C and SIGTERM: the first asks the run to end with what was learned saved, the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Counts the interrupts.
#[derive(Debug, Clone)]
pub struct Interrupt {
    count: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on.
    pub fn listen() -> anyhow::Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
        let counter = count.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                // Relaxed: a lone counter, read in a polling loop.
                counter.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { count })
    }

    /// How often the run was asked to end.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}
