//! Training in step: all ranks exchange everything of an update at once, and make the same update.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::run::failpoint;
use crate::run::value_cursor::Cursor;
use crate::run::value_run::RANK_HEADER;
use crate::shm::Written;
use crate::shm::control::STOP_LEARNING;

use super::blocks::Batch;
use super::member::{Member, lock};
use super::merged::{MergedCopies, Moment};
use super::progress::step_of;
use super::said::{Copied, Said, hash};

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
        let mut begun = Instant::now();
        let parameters = hash(&self.state.parameters);
        let mut said = Said { stops: batch.is_none(), wish: self.wish(), parameters, ..Said::default() };
        if let Some(batch) = &batch {
            let writer_knows = self.shard.knows_next();
            // All ranks shall give regions back at the same moment. Those that write no table come here earlier, so they do so below.
            if self.rows.is_some() {
                begun += self.blocks.give_back(&batch.after);
            }
            self.before_rows(&batch.block);
            self.look_ahead(&batch.after)?;
            let waiting = Instant::now();
            if writer_knows {
                self.seat.wait_wanted(self.written)?;
            } else {
                self.seat.wait_published(self.written)?;
            }
            self.exchanging += waiting.elapsed();
            self.read_rows();
            if self.rows.is_none() {
                begun += self.blocks.give_back(&batch.after);
            }
            let losses = self.compute(&batch.block)?;
            (said.click, said.charge) = (losses.click, losses.charge);
            said.copies = self.copies.as_ref().map(MergedCopies::copied).unwrap_or_default();
        }
        let all = self.give_all(&said, batch.as_ref())?;
        let Some(batch) = batch.filter(|_| nobody_stops(&all)) else { return Ok(None) };
        let whole = batch.block.whole();
        self.state.cursor = batch.after;
        let (_, rate) = step_of(self.settings, self.prepared, &self.state);
        self.written += 1;
        self.network.apply(&mut self.state, rate);
        self.state.updates += 1;
        self.sums.click += all.iter().map(|said| said.click).sum::<f64>();
        self.sums.charge += all.iter().map(|said| said.charge).sum::<f64>();
        self.sums_samples += whole;
        self.copied = Copied::sum(&all);
        self.tell_updates(begun);
        Ok(Some(all))
    }

    /// Finds the unique ids of the batch behind `cursor`, if it is at hand, so that the first rank of the table can write their rows first.
    /// They are told with the gradients of this batch; it is done before, where this rank would only wait.
    fn look_ahead(&mut self, cursor: &Cursor) -> anyhow::Result<()> {
        // Where a test makes it fail, the writer is told nothing.
        if self.rows.is_some() || failpoint::reached("other.ahead") {
            return Ok(());
        }
        let Some(Batch { block, .. }) = self.blocks.peek(cursor)? else { return Ok(()) };
        if block.whole() > 0 {
            self.shard.look_ahead(&block.ids);
        }
        Ok(())
    }

    /// Gives gradients and what this rank says to all; returns what each rank said. The parameters' gradient is the mean of all then. Where
    /// nobody stops, the samples of `batch` are counted, and the first rank of each table has written and published its rows.
    fn give_all(&mut self, said: &Said, batch: Option<&Batch>) -> anyhow::Result<Vec<Said>> {
        let begun = Instant::now();
        let exchanging = self.named(["rank.exchange", "table.exchange", "other.exchange"]);
        let writing = self.named(["rank.write", "table.write", "other.write"]);
        let wanted = self.named(["rank.wanted", "table.wanted", "other.wanted"]);
        let written = self.named(["rank.written", "table.written", "other.written"]);
        let Self { settings, prepared, exchange, seat, network, shard, rows, copies, state, .. } = self;
        let (group, generation) = (seat.group(), self.written + 1);
        let gradient = network.gradient(state.parameters.len());
        let mut wrote = Duration::ZERO;
        // Whoever keeps copies has looked for few records.
        let knows_records = copies.is_none();
        let mut encoded = Duration::ZERO;
        let mut write = |area: &mut [u8]| {
            let begun = Instant::now();
            let (head, area) = area.split_at_mut(RANK_HEADER);
            head.copy_from_slice(&said.encode());
            let given = batch.map(|batch| shard.write(&batch.block.weight, knows_records, area));
            let Written { bytes, here } = given.unwrap_or(Written { bytes: 0, here: 0 });
            encoded = begun.elapsed();
            Written { bytes: RANK_HEADER + bytes, here }
        };
        // Messages are read where the ranks left them.
        let mut hear = |messages: &[&[u8]]| -> anyhow::Result<Vec<Said>> {
            let said = messages.iter().enumerate().map(|(rank, message)| {
                Said::decode(message).with_context(|| format!("rank {rank} gave {} bytes", message.len()))
            });
            let all = said.collect::<anyhow::Result<Vec<_>>>()?;
            Said::agree(&all)?;
            let Some(batch) = batch.filter(|_| nobody_stops(&all)) else { return Ok(all) };
            let whole = batch.block.whole();
            state.samples += whole;
            let begun = Instant::now();
            let (step, _) = step_of(settings, prepared, state);
            let given = messages.iter().map(|message| &message[RANK_HEADER..]);
            if let Some(copies) = copies {
                // Where a test makes it fail, these copies miss an update.
                if !failpoint::reached(writing) {
                    copies.write(given, settings, step, whole)?;
                }
                wrote = begun.elapsed();
                return Ok(all);
            }
            let Some(rows) = rows else { return Ok(all) };
            // Where a test makes it fail, this table misses a write.
            if !failpoint::reached(writing) {
                let publish_wanted = |moment| {
                    if moment == Moment::Rest {
                        exchange.publish_wanted(group, generation);
                        failpoint::reached(wanted);
                    }
                    Ok(())
                };
                lock(rows).write(given, settings, step, whole, publish_wanted)?;
            }
            failpoint::reached(written);
            exchange.publish(group, generation);
            wrote = begun.elapsed();
            Ok(all)
        };
        failpoint::reached(exchanging);
        failpoint::reached("exchange.latency");
        let mut heard = Ok(vec![]);
        seat.exchange_while(gradient, &mut write, &mut |messages| heard = hear(messages), &|| {})?;
        self.exchanging += begun.elapsed().saturating_sub(encoded + wrote);
        heard
    }
}

fn nobody_stops(all: &[Said]) -> bool {
    all.iter().all(|said| !said.stops)
}
