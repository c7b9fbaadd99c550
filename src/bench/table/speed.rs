//! How fast updates are, as training makes them: rows on a thread of their own, beside the network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rank::device::DeviceDense;
use crate::rank::network::Network;
use crate::rank::rows::{RowStep, Rows};
use crate::rank::store::Store;
use crate::sparse::TableShape;
use crate::values::Block;

use super::shape::{DISPERSION, NET_RATE, ROW_RATE, TableBench, first_state, net_shape};

/// How fast updates are in one form.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Speed {
    pub updates_per_s: f64,
    pub samples_per_s: f64,
    pub step_ms: f64,
    /// Share of the time that the dense products waited for the row thread.
    pub waited: f64,
}

impl Speed {
    /// The speed of the round in the middle.
    pub(super) fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        rounds[rounds.len() / 2]
    }
}

/// A figure over the rounds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    pub(super) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self { least: figures[0], median: figures[figures.len() / 2], most: figures[figures.len() - 1] }
    }
}

/// Updates before the clock starts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Warm {
    /// A cache of 1 % of ten million rows is full after 32.
    Short,
    /// Every batch has come once: what has room in a cache of any size is there.
    EveryBatch,
}

impl Warm {
    pub(super) fn updates(self, batches: usize) -> u64 {
        match self {
            Self::Short => 32,
            Self::EveryBatch => batches as u64,
        }
    }
}

/// Counts updates once the first are over.
pub(super) struct Clock {
    seconds: Duration,
    warm: u64,
    pub(super) done: u64,
    began: Instant,
    /// What the dense products had waited when the clock started.
    waited: Duration,
}

impl Clock {
    pub(super) fn new(seconds: f64, warm: u64) -> Self {
        Self { seconds: Duration::from_secs_f64(seconds), warm, done: 0, began: Instant::now(), waited: Duration::ZERO }
    }

    pub(super) fn runs(&mut self, waited: Duration) -> bool {
        if self.done == self.warm {
            (self.began, self.waited) = (Instant::now(), waited);
        }
        self.done += 1;
        self.done <= self.warm + 1 || self.began.elapsed() < self.seconds
    }

    pub(super) fn speed(&self, batch: usize, waited: Duration) -> Speed {
        let seconds = self.began.elapsed().as_secs_f64();
        let updates_per_s = (self.done - 1 - self.warm) as f64 / seconds;
        Speed {
            updates_per_s,
            samples_per_s: updates_per_s * batch as f64,
            step_ms: 1e3 / updates_per_s,
            waited: (waited - self.waited).as_secs_f64() / seconds,
        }
    }
}

/// As training does it: rows on a thread of their own.
pub(super) fn on_row_thread(
    bench: &TableBench,
    shape: TableShape,
    (store, device): (Store, Option<Box<dyn DeviceDense>>),
    blocks: &[Arc<Block>],
    (ahead, warm): (usize, Warm),
) -> anyhow::Result<(Speed, Store)> {
    let mut state = first_state(bench, shape);
    let mut network = Network::new(net_shape(bench, shape), DISPERSION, device, &state);
    let mut rows = Rows::start(store, None, None, ahead)?;
    let (mut clock, mut asked) = (Clock::new(bench.seconds, warm.updates(blocks.len())), 0);
    while clock.runs(rows.waited() + network.waited()) {
        while rows.has_room() {
            asked += 1;
            rows.ask(blocks[asked % blocks.len()].clone());
        }
        let block = &blocks[clock.done as usize % blocks.len()];
        network.begin(&state, block);
        let mut looked_up = rows.looked_up(|| ())?;
        let (_, batch, gradients) = looked_up.parts();
        network.interact(&state, block, batch, gradients)?;
        looked_up.ready(RowStep { rate: ROW_RATE, passes: 1.0, snapshot: None });
        network.step(&mut state, block, NET_RATE)?;
    }
    network.settle(&state)?;
    let speed = clock.speed(bench.batch, rows.waited() + network.waited());
    Ok((speed, rows.end()))
}
