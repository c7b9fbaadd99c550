//! Training in step: all ranks exchange everything of an update at once, and make the same update.

use std::time::Instant;

use crate::run::failpoint;
use crate::run::value_run::RANK_HEADER;
use crate::shm::control::STOP_LEARNING;

use super::blocks::Batch;
use super::member::{Member, lock};
use super::progress::step_of;
use super::said::{Said, hash};

impl Member<'_> {
    /// Trains until training is over or the run stops.
    ///
    /// # Errors
    /// As [`super::run`], and a rank that is gone ([`crate::shm::Broken`]).
    pub fn train_in_step(&mut self) -> anyhow::Result<()> {
        self.report();
        while !self.state.finished {
            if self.state.cursor.pass_ended() {
                self.end_pass()?;
                continue;
            }
            let next = self.next_batch()?;
            if let Some(Batch { block, after }) = &next
                && block.whole() == 0
            {
                self.state.cursor.clone_from(after);
                continue;
            }
            let Some(all) = self.update(next)? else { break };
            self.after_update(&all)?;
            failpoint::reached(self.named(["rank.update", "table.update", "other.update"]));
        }
        Ok(())
    }

    /// This rank's shard of the next batch; `None` when the run stops.
    fn next_batch(&mut self) -> anyhow::Result<Option<Batch>> {
        loop {
            let stops = self.segments.control.stop_level() >= STOP_LEARNING;
            // Rank 0 decides; the others stop by themselves only where the readers give no more.
            if stops && self.is_first() {
                return Ok(None);
            }
            if let Some(batch) = self.blocks.next() {
                return Ok(Some(batch));
            }
            if self.blocks.take(&self.state.cursor)?.is_none() && stops {
                return Ok(None);
            }
        }
    }

    /// Makes an update with all ranks, and returns what they said; `None` when one of them stops.
    fn update(&mut self, batch: Option<Batch>) -> anyhow::Result<Option<Vec<Said>>> {
        let begun = Instant::now();
        let parameters = hash(&self.state.parameters);
        let mut said = Said { stops: batch.is_none(), wish: self.wish(), parameters, click: 0.0, charge: 0.0 };
        if let Some(batch) = &batch {
            self.before_rows(&batch.block);
            let waiting = Instant::now();
            self.seat.wait_published(self.written)?;
            self.exchanging += waiting.elapsed();
            let losses = self.compute(&batch.block)?.1;
            (said.click, said.charge) = (losses.click, losses.charge);
        }
        said.encode(&mut self.message);
        debug_assert_eq!(self.message.len(), RANK_HEADER);
        if let Some(batch) = &batch {
            self.encode_rows(&batch.block);
        }
        let all = self.give_all()?;
        Said::agree(&all)?;
        let Some(batch) = batch.filter(|_| all.iter().all(|said| !said.stops)) else { return Ok(None) };
        let whole = batch.block.whole();
        self.state.cursor = batch.after;
        self.state.samples += whole;
        let (of_rows, rate) = step_of(self.settings, self.prepared, &self.state);
        self.written += 1;
        if let Some(rows) = &self.rows {
            // Where a test makes it fail, this table misses a write.
            if !failpoint::reached(self.named(["rank.write", "table.write", "other.write"])) {
                lock(rows).write(self.settings, of_rows, whole)?;
            }
            failpoint::reached(self.named(["rank.written", "table.written", "other.written"]));
            self.exchange.publish(self.seat.group(), self.written);
        }
        self.dense.apply(&mut self.state, rate);
        self.state.updates += 1;
        self.sums.click += all.iter().map(|said| said.click).sum::<f64>();
        self.sums.charge += all.iter().map(|said| said.charge).sum::<f64>();
        self.sums_samples += whole;
        self.tell_updates(begun);
        Ok(Some(all))
    }

    /// Gives gradients and message to all; returns what each rank said. The parameters' gradient is the mean of all then, and the first
    /// rank of each table has the rows of all.
    fn give_all(&mut self) -> anyhow::Result<Vec<Said>> {
        let begun = Instant::now();
        let dim = self.settings.values.dim;
        let point = self.named(["rank.exchange", "table.exchange", "other.exchange"]);
        let mut rows = self.rows.as_deref().map(lock);
        if let Some(rows) = &mut rows {
            rows.begin();
        }
        let mut all = Vec::with_capacity(self.seat.ranks());
        let mut failed = None;
        let gradient = self.dense.gradient(self.state.parameters.len());
        failpoint::reached(point);
        failpoint::reached("exchange.latency");
        self.seat.exchange(gradient, &self.message, &mut |rank, message| {
            let Some(said) = Said::decode(message) else {
                failed.get_or_insert_with(|| anyhow::anyhow!("rank {rank} gave {} bytes", message.len()));
                return;
            };
            if let Some(rows) = rows.as_mut().filter(|_| !said.stops)
                && let Err(damaged) = rows.add(&message[RANK_HEADER..], dim)
            {
                failed.get_or_insert(damaged.into());
            }
            all.push(said);
        })?;
        self.exchanging += begun.elapsed();
        failed.map_or(Ok(all), Err)
    }
}
