//! The thread of a table's first rank that writes its rows while ranks overlap.
//!
//! It takes the gradients of rows of all ranks from their rings, applies them in the order of iterations and ranks, and publishes
//! generations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};

use crate::run::failpoint;
use crate::run::value_run::Prepared;
use crate::run::value_snapshot::ValueState;
use crate::settings::ValueSettings;
use crate::shm::{Exchange, RingReader};

use super::merged::MergedRows;
use super::progress::step_of;

const NAP: Duration = Duration::from_millis(100);

/// The thread, from outside.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and whoever started it share.
#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    failed: Mutex<Option<anyhow::Error>>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(mut work: Work) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let with = shared.clone();
        let thread = std::thread::Builder::new().name("rows".into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| work.run(&with)));
            let ended = ended.unwrap_or_else(|_| Err(anyhow!("the thread that writes rows has panicked; see above")));
            if let Err(error) = ended {
                *with.failed.lock().expect("nobody panics with it") = Some(error);
                // Whoever reads rows would wait for them.
                work.exchange.died(work.exchange.shape().publisher(work.table));
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What the thread failed with, once.
    pub fn failure(&self) -> Option<anyhow::Error> {
        self.shared.failed.lock().expect("nobody panics with it").take()
    }

    /// Waits until the rows of `iterations` are written.
    pub fn finish(
        &mut self,
        iterations: u64,
        (exchange, table): (&Exchange, usize),
        beat: impl Fn(),
    ) -> anyhow::Result<()> {
        loop {
            let seen = exchange.news().value();
            if exchange.published(table) >= iterations {
                return Ok(());
            }
            if let Some(error) = self.failure() {
                return Err(error);
            }
            ensure!(!self.thread.as_ref().is_none_or(JoinHandle::is_finished), "the thread that writes rows has ended");
            beat();
            exchange.news().wait(seen, NAP);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It looks at least every nap; what it failed with was told.
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
pub struct Work {
    /// Number of the table, and its rows.
    pub table: usize,
    pub rows: Arc<Mutex<MergedRows>>,
    /// Of each rank, in their order.
    pub rings: Vec<RingReader>,
    pub exchange: Arc<Exchange>,
    pub settings: ValueSettings,
    pub prepared: Prepared,
    /// As far as rates depend on it: updates and samples behind each iteration.
    pub state: ValueState,
}

impl Work {
    fn run(&mut self, shared: &Shared) -> anyhow::Result<()> {
        for iteration in 1.. {
            let Some(whole) = self.collect(iteration, shared)? else { return Ok(()) };
            failpoint::reached("exchange.latency");
            self.state.samples += whole;
            let (step, _) = step_of(&self.settings, &self.prepared, &self.state);
            let mut rows = self.rows.lock().expect("whoever reads the table works");
            self.exchange.begin_write(self.table);
            rows.write(&self.settings, step, whole)?;
            drop(rows);
            failpoint::reached(if self.table == 0 { "rank.written" } else { "table.written" });
            self.exchange.publish(self.table, iteration);
        }
        Ok(())
    }

    /// Takes the gradients of an iteration from all ranks, in their order; `None` at the end. Returns the samples of the batch.
    fn collect(&mut self, iteration: u64, shared: &Shared) -> anyhow::Result<Option<u64>> {
        self.rows.lock().expect("whoever reads the table works").begin();
        let mut whole = 0;
        for (rank, ring) in self.rings.iter_mut().enumerate() {
            loop {
                let seen = self.exchange.news().value();
                if let Some(guard) = ring.take()? {
                    let (payload, number) = (guard.payload(), guard.info().param_version);
                    ensure!(number == iteration, "rank {rank} gave rows of iteration {number}, not {iteration}");
                    let (samples, message) = payload.split_at_checked(8).context("an empty message")?;
                    whole = u64::from_le_bytes(samples.try_into()?);
                    self.rows.lock().expect("whoever reads the table works").add(message, self.settings.values.dim)?;
                    guard.release();
                    break;
                }
                if shared.ends.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                self.exchange.news().wait(seen, NAP);
            }
        }
        Ok(Some(whole))
    }
}
