//! The thread of a table's first rank that writes its rows while ranks overlap.
//!
//! It takes the gradients of rows of all ranks from their rings, applies them in the order of iterations and ranks, and publishes
//! generations. It writes while the ranks compute: the rows of an iteration when all ranks have read those of the next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};

use crate::run::failpoint;
use crate::run::value_run::Prepared;
use crate::run::value_snapshot::ValueState;
use crate::settings::ValueSettings;
use crate::shm::{Broken, Exchange, ReadGuard, RingReader, monotonic};

use super::merged::{MergedRows, Moment};
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
            // It looks at least every nap, or as soon as nobody reads; what it failed with was told.
            let _ = thread.join();
        }
    }
}

/// Bytes before a rank's row gradients in its ring: samples of the whole batch, and when they were given.
pub const GIVEN_HEADER: usize = 16;

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
        let Self { table, rows, rings, exchange, settings, prepared, state } = self;
        let timeout = Duration::from_secs_f64(settings.ranks.timeout_s);
        for iteration in 1.. {
            let Some(given) = collect(rings, iteration, exchange, timeout, shared)? else { return Ok(()) };
            let parts = given.iter().map(|guard| Given::decode(guard.payload()).context("a message without a header"));
            let parts = parts.collect::<anyhow::Result<Vec<_>>>()?;
            let whole = parts[0].whole;
            ensure!(parts.iter().all(|part| part.whole == whole), "ranks are at different batches");
            if let Some(latency) = failpoint::wait_at("exchange.latency") {
                // A network carries several messages at a time: each arrives that much after it was given.
                let newest = parts.iter().map(|part| part.at).max().unwrap_or_default();
                std::thread::sleep((newest + latency).saturating_sub(monotonic()));
            }
            state.samples += whole;
            let (step, _) = step_of(settings, prepared, state);
            let mut rows = rows.lock().expect("whoever reads the table works");
            let changes = |moment| {
                if moment == Moment::Changes {
                    // If rows were written before, the last rank would wait for them: it reads soon after it has given its gradients.
                    let ends = || shared.ends.load(Ordering::Relaxed);
                    exchange.wait_read(*table, iteration + 1, timeout, ends)?;
                    exchange.begin_write(*table, timeout)?;
                }
                Ok(())
            };
            rows.write(parts.iter().map(|part| part.rows), settings, step, whole, changes)?;
            drop(rows);
            failpoint::reached(if *table == 0 { "rank.written" } else { "table.written" });
            exchange.publish(*table, iteration);
            given.into_iter().for_each(ReadGuard::release);
        }
        Ok(())
    }
}

/// What a rank gave of an iteration.
struct Given<'a> {
    /// Samples of the whole batch.
    whole: u64,
    /// When it was given, by the monotonic clock.
    at: Duration,
    rows: &'a [u8],
}

impl<'a> Given<'a> {
    fn decode(payload: &'a [u8]) -> Option<Self> {
        let (whole, rest) = payload.split_first_chunk()?;
        let (at, rows) = rest.split_first_chunk()?;
        Some(Self { whole: u64::from_le_bytes(*whole), at: Duration::from_nanos(u64::from_le_bytes(*at)), rows })
    }
}

/// Takes the row gradients of an iteration from the rings of all ranks, in their order; `None` at the end.
fn collect<'r>(
    rings: &'r mut [RingReader],
    iteration: u64,
    exchange: &Exchange,
    timeout: Duration,
    shared: &Shared,
) -> anyhow::Result<Option<Vec<ReadGuard<'r>>>> {
    if !all_have_given(rings, exchange, timeout, shared)? {
        return Ok(None);
    }
    let mut given = Vec::with_capacity(rings.len());
    for (rank, ring) in rings.iter_mut().enumerate() {
        let guard = ring.take()?.context("a block that was there is gone")?;
        let number = guard.info().param_version;
        ensure!(number == iteration, "rank {rank} gave rows of iteration {number}, not {iteration}");
        given.push(guard);
    }
    Ok(Some(given))
}

/// Waits until there is something in the rings of all ranks; false at the end. A rank that gives nothing for `timeout` after another has given
/// breaks the exchange. While the ranks meet, and while rank 0 evaluates, nobody gives, and nothing counts.
///
/// # Errors
/// [`Broken`].
fn all_have_given(
    rings: &[RingReader],
    exchange: &Exchange,
    timeout: Duration,
    shared: &Shared,
) -> Result<bool, Broken> {
    let mut first: Option<Instant> = None;
    loop {
        let seen = exchange.news().value();
        let Some(missing) = rings.iter().position(RingReader::is_empty) else { return Ok(true) };
        if shared.ends.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if let Some(broken) = exchange.broken() {
            return Err(broken);
        }
        if first.is_none() && !rings.iter().all(RingReader::is_empty) {
            first = Some(Instant::now());
        }
        if first.is_some_and(|first| first.elapsed() >= timeout) {
            exchange.late(missing);
        } else {
            exchange.news().wait(seen, NAP);
        }
    }
}
