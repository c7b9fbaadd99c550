//! Overlapped training: within a period no rank waits for another.
//!
//! The rule by which a rank moves its parameters is in [`crate::collective::overlap`]. Here is what runs beside it. Gradients of the
//! last few iterations lie in parameter cells, which a rank publishes and the others read without waiting. Gradients of rows go to the first rank
//! of each table through a ring for each rank, where [`super::writer`] applies them and publishes generations; ranks read the newest of
//! their own table. Tables may be some iterations apart within a period. At the end of a period, of a pass, and when the run stops, the ranks meet: their parameters and moments
//! are averaged, all rows are written, and rank 0 evaluates and saves.
//!
//! What was used when depends on the timing; `ranks.trace` records it in `RUN_DIR/trace`.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;

use crate::collective::overlap::{Global, Overlap, Used, choose, mean};
use crate::run::value_run::RankSegments;
use crate::run::value_snapshot::ValueState;
use crate::run::{RunDirectory, failpoint};
use crate::settings::KEPT_GRADIENTS;
use crate::shm::control::STOP_LEARNING;
use crate::shm::{Broken, Overflow, RingWriter, SampleRing, Written, monotonic};
use crate::values::Block;

use super::arrivals::Arrivals;
use super::busy::Busy;
use super::member::Member;
use super::progress::step_of;
use super::said::{Said, hash};
use super::writer::{GIVEN_HEADER, Work, Writer};

const NAP: Duration = Duration::from_millis(100);

/// An iteration in the trace.
#[derive(Serialize)]
struct Record {
    #[serde(flatten)]
    used: Used,
    /// Generation of the rows that were read.
    generation: u64,
}

/// A rank that trains overlapped.
pub struct Overlapped<'m, 'a> {
    member: &'m mut Member<'a>,
    rank: usize,
    rule: Overlap,
    segments: RankSegments,
    arrivals: Arrivals,
    /// One for each table.
    rows_out: Vec<RingWriter>,
    /// Of the first rank of a table: the thread that writes its rows.
    writer: Option<Writer>,
    /// Iterations since this process began; and those before this period.
    done: u64,
    before: u64,
    /// Hash of the parameters that all had at the beginning of the period.
    agreed: u64,
    /// Losses of this rank in this period.
    click: f64,
    charge: f64,
    trace: Option<BufWriter<File>>,
}

impl<'m, 'a> Overlapped<'m, 'a> {
    /// Opens what the ranks share.
    ///
    /// # Errors
    /// A segment that is missing, or in use.
    pub fn open(prefix: &str, directory: &RunDirectory, member: &'m mut Member<'a>) -> anyhow::Result<Self> {
        let rank = member.seat.rank();
        let segments = RankSegments::open(prefix, member.seat.ranks(), member.settings.ranks.tables)?;
        let table = member.seat.group();
        let rings = (0..segments.ranks()).map(|rank| segments.rows_from(rank)[table].reader());
        let writer = match &member.rows {
            Some(rows) => Some(Writer::start(Work {
                table,
                rows: rows.clone(),
                rings: rings.collect::<Result<_, _>>()?,
                exchange: member.exchange.clone(),
                settings: member.settings.clone(),
                prepared: member.prepared.clone(),
                state: member.state.clone(),
            })?),
            None => None,
        };
        let trace = member.settings.ranks.trace.then(|| -> anyhow::Result<_> {
            let folder = directory.root().join("trace");
            std::fs::create_dir_all(&folder)?;
            Ok(BufWriter::new(File::create(folder.join(format!("rank{rank}.jsonl")))?))
        });
        Ok(Self {
            rank,
            rule: Overlap::new(rank, member.settings.ranks.period),
            rows_out: segments.rows_from(rank).iter().map(SampleRing::writer).collect::<Result<_, _>>()?,
            arrivals: Arrivals::new(segments.ranks()),
            segments,
            writer,
            done: 0,
            before: 0,
            agreed: hash(&member.state.parameters),
            click: 0.0,
            charge: 0.0,
            trace: trace.transpose()?,
            member,
        })
    }

    /// Trains until training is over or the run stops.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn train(mut self) -> anyhow::Result<()> {
        let result = self.run();
        // That the exchange broke is what followed.
        match self.writer.as_ref().and_then(Writer::failure) {
            Some(error) if result.is_ok() || !error.is::<Broken>() => Err(error),
            _ => result,
        }
    }

    fn run(&mut self) -> anyhow::Result<()> {
        self.member.report();
        while !self.member.state.finished {
            if self.member.state.cursor.pass_ended() {
                let stops = self.meet()?;
                self.member.end_pass()?;
                if stops {
                    break;
                }
                continue;
            }
            if self.rule.period_ended() && self.meet()? {
                break;
            }
            // Readers give blocks until the ranks have met.
            let batch = match self.member.blocks.next() {
                Some(batch) => batch,
                None => {
                    self.member.blocks.take(&self.member.state.cursor)?;
                    continue;
                }
            };
            if batch.block.whole() == 0 {
                self.member.state.cursor = batch.after;
                continue;
            }
            self.iterate(batch)?;
            failpoint::reached(self.member.named(["rank.update", "table.update", "other.update"]));
        }
        Ok(())
    }

    fn iterate(&mut self, batch: super::blocks::Batch) -> anyhow::Result<()> {
        let begun = Instant::now();
        let member = &mut *self.member;
        let (block, whole) = (&batch.block, batch.block.whole());
        member.blocks.give_back(&batch.after);
        member.before_rows(block);
        self.done += 1;
        let generation = member.read_shared_rows(self.done)?;
        failpoint::reached(member.named(["rank.computing", "table.computing", "other.computing"]));
        let losses = member.compute(block)?;
        self.click += losses.click;
        self.charge += losses.charge;
        for out in &mut self.rows_out {
            give_rows(member, out, self.done, block)?;
        }
        let gradient = member.network.gradient(member.state.parameters.len());
        let bell = member.exchange.news();
        self.segments.gradient(self.rank, self.done).publish(self.done, bytemuck::cast_slice(gradient), bell)?;
        let pushed = |rank| (0..KEPT_GRADIENTS as u64).map(|i| self.segments.gradient(rank, i).version()).max();
        let arrived = self.arrivals.look(|rank| pushed(rank).unwrap_or(0));
        let (quorum, own) = (member.settings.ranks.quorum, (self.rank, &*gradient));
        let global = pull(&self.segments, &self.rule, quorum, arrived, self.before..self.done, own);
        let used = self.rule.direction(gradient, global.as_ref())?;
        member.state.cursor = batch.after;
        member.state.samples += whole;
        member.sums_samples += whole;
        let (_, rate) = step_of(member.settings, member.prepared, &member.state);
        member.network.apply(&mut member.state, rate);
        member.state.updates += 1;
        member.tell_updates(begun);
        if let Some(trace) = &mut self.trace {
            serde_json::to_writer(&mut *trace, &Record { used, generation })?;
            trace.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Ends a period with all ranks; true when the run stops.
    fn meet(&mut self) -> anyhow::Result<bool> {
        let member = &mut *self.member;
        let begun = Instant::now();
        member.seat.has_read(self.done + 1);
        // The first rank looks at what all have counted when they have met.
        member.busy.iter_mut().for_each(Busy::count);
        let stops = member.is_first() && member.segments.control.stop_level() >= STOP_LEARNING;
        let (click, charge) = (self.click, self.charge);
        let said = Said { stops, wish: member.wish(), parameters: self.agreed, click, charge, ..Said::default() };
        let point = member.named(["rank.exchange", "table.exchange", "other.exchange"]);
        let ValueState { parameters, adam, .. } = &mut member.state;
        let mut all = [&parameters[..], &adam.first, &adam.second].concat();
        let mut heard = Vec::new();
        failpoint::reached(point);
        failpoint::reached("exchange.latency");
        member.seat.exchange(&mut all, &said.encode(), &mut |_, message| heard.extend(Said::decode(message)))?;
        ensure!(heard.len() == member.seat.ranks(), "a rank said nothing at the end of a period");
        Said::agree(&heard)?;
        let n = parameters.len();
        parameters.copy_from_slice(&all[..n]);
        adam.first.copy_from_slice(&all[n..2 * n]);
        adam.second.copy_from_slice(&all[2 * n..]);
        self.agreed = hash(parameters);
        if let Some(writer) = &mut self.writer {
            writer.finish(self.done, (&member.exchange, member.seat.group()), || member.slot.beat())?;
        }
        member.seat.wait_published(self.done)?;
        member.exchanging += begun.elapsed();
        member.sums.click += heard.iter().map(|said| said.click).sum::<f64>();
        member.sums.charge += heard.iter().map(|said| said.charge).sum::<f64>();
        (self.click, self.charge) = (0.0, 0.0);
        self.before = self.done;
        self.rule.next_period();
        if let Some(trace) = &mut self.trace {
            trace.flush()?;
        }
        member.after_update(&heard)?;
        Ok(heard.iter().any(|said| said.stops))
    }
}

/// Hands the gradients of iteration `number`'s rows to the writer of a table; waits only while its ring is full.
fn give_rows(member: &mut Member<'_>, out: &mut RingWriter, number: u64, block: &Block) -> anyhow::Result<()> {
    loop {
        let seen = out.ring().space().value();
        if let Some(mut region) = out.claim(1, Overflow::Wait) {
            let (head, payload) = region.payload().split_at_mut(GIVEN_HEADER);
            let Written { bytes, .. } = member.shard.write(&block.weight, true, payload);
            ensure!(bytes <= payload.len(), "{bytes} bytes of row gradients");
            let now = monotonic().as_nanos() as u64;
            head.copy_from_slice(bytemuck::bytes_of(&[block.whole().to_le(), now.to_le()]));
            region.check_only(GIVEN_HEADER);
            region.commit(GIVEN_HEADER + bytes, number, member.exchange.news());
            return Ok(());
        }
        if let Some(broken) = member.exchange.broken() {
            return Err(broken.into());
        }
        member.slot.beat();
        out.ring().space().wait(seen, NAP);
    }
}

/// The newest global gradient that may be used, if there is one, where the iterations up to `arrived` of each rank have arrived.
/// Iterations are counted from 1 over all periods there: this period's are those behind `iterations.start`. The last one of `iterations`
/// is the one whose gradient this rank has at hand, `own`.
fn pull(
    segments: &RankSegments,
    rule: &Overlap,
    quorum: usize,
    arrived: &[u64],
    iterations: Range<u64>,
    (rank, own): (usize, &[f32]),
) -> Option<Global> {
    let ranks = segments.ranks();
    let quorum = if quorum == 0 { ranks } else { quorum.min(ranks) };
    let (period, _) = rule.position();
    let Range { start: before, end: done } = iterations;
    // Of each rank the newest iterations of this period that are kept, counted within it.
    let kept = KEPT_GRADIENTS as u64;
    let within = |number: u64| number.max(before) - before;
    let mut given: Vec<_> =
        arrived.iter().map(|&newest| within(newest.saturating_sub(kept))..within(newest.min(done))).collect();
    let mut words = Vec::new();
    'next: loop {
        let (iteration, members) = choose(&given, (rank, quorum), |iteration| rule.may_use(period, iteration))?;
        let number = before + iteration + 1;
        let mut gradients: Vec<Vec<f32>> = Vec::new();
        for member in (0..ranks).filter(|member| members >> member & 1 == 1) {
            if member == rank && number == done {
                gradients.push(own.to_vec());
            } else if segments.gradient(member, number).read(&mut words) == Some(number) {
                gradients.push(bytemuck::cast_slice(&words).to_vec());
            } else {
                // Its writer has come round to the cell again.
                given[member].start = iteration + 1;
                continue 'next;
            }
        }
        return Some(Global { period, iteration, ranks: members, mean: mean(gradients.iter().map(|g| &g[..])) });
    }
}
