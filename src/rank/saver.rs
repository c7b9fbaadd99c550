//! Snapshots of a run: when they are due, and how they are taken.

use std::time::{Duration, Instant};

use crate::run::value_run::{ValueSegments, ValueSnapshot, ValueState};
use crate::run::{RunDirectory, failpoint};
use crate::settings::Checkpoint;
use crate::shm::Ledger;

use super::store::Store;

/// Takes the snapshots of a run.
pub struct Saver<'a> {
    directory: &'a RunDirectory,
    segments: &'a ValueSegments,
    every: Option<Duration>,
    keep: usize,
    /// Number of the newest snapshot, and when the last one was taken.
    number: u64,
    taken: Instant,
}

impl<'a> Saver<'a> {
    /// `number` is the snapshot that the run goes on from, 0 for none.
    pub fn new(directory: &'a RunDirectory, segments: &'a ValueSegments, settings: Checkpoint, number: u64) -> Self {
        let every = (settings.every_s > 0.0).then(|| Duration::from_secs_f64(settings.every_s));
        Self { directory, segments, every, keep: settings.keep, number, taken: Instant::now() }
    }

    /// Whether snapshots are taken at all.
    pub fn saves(&self) -> bool {
        self.every.is_some()
    }

    pub fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.taken.elapsed() > every)
    }

    /// Puts the next snapshot off after one that could not be written.
    pub fn failed(&mut self) {
        self.segments.control.checkpoint.failures.add(1);
        self.taken = Instant::now();
    }

    /// Takes a snapshot between two updates.
    ///
    /// # Errors
    /// What the file system says; the snapshots that were there stay.
    pub fn save(&mut self, state: &ValueState, store: &mut Store) -> anyhow::Result<()> {
        let begun = Instant::now();
        store.flush();
        let mut state = state.clone();
        let now = self.segments.rings.iter().map(|ring| ring.ledger().closed());
        state.ledger = Ledger::sum(now.chain([state.ledger]));
        let number = self.number + 1;
        failpoint::reached("rank.snapshot");
        let bytes = ValueSnapshot::write(self.directory, number, &state, store.table(), self.keep)?;
        self.number = number;
        let stats = &self.segments.control.checkpoint;
        stats.snapshots.add(1);
        stats.bytes.add(bytes);
        stats.write_ns.add(begun.elapsed().as_nanos() as u64);
        self.segments.control.learner.snapshot_ns.add(begun.elapsed().as_nanos() as u64);
        self.taken = Instant::now();
        Ok(())
    }
}
