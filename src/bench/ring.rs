//! How fast samples get from an actor to the learner, beside what the machine can copy.
//!
//! Two real processes, as in a run: a writer that stamps opaque records and copies whole blocks into its
//! ring, and this one, which takes and verifies them. The ring does per byte one copy, one checksum on each
//! side and nothing else, so its speed is judged by that of a plain `memcpy` on one core, measured in the
//! same run. Afterwards this process waits on the silent ring, to show what waiting costs.

use std::fmt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::shm::{Control, Ledger, Overflow, RingReader, RingShape, RunNames, SampleRing, ShmError};

use super::proc::thread_cpu_time;

const RECORD: usize = 256;
const BLOCK: usize = 512 << 10;
const RECORDS_PER_BLOCK: u64 = (BLOCK / RECORD) as u64;
const COPY: usize = 256 << 20;
const COPIES: usize = 9;
/// After this long without news each side looks whether the other one is still there.
const PATIENCE: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Debug, Clone)]
pub struct RingBench {
    /// Records of 256 bytes to send, rounded up to whole blocks of 512 KB.
    pub records: u64,
    pub regions: usize,
    /// How long to wait on the silent ring.
    pub idle: Duration,
}

impl Default for RingBench {
    fn default() -> Self {
        Self { records: 4_000_000, regions: 2, idle: Duration::from_secs(2) }
    }
}

/// What was measured.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RingReport {
    pub records: u64,
    pub record_bytes: usize,
    pub block_bytes: usize,
    pub regions: usize,
    /// From the first block's arrival to the last one's release.
    pub seconds: f64,
    pub records_per_second: f64,
    pub bytes_per_second: f64,
    pub memcpy_best_bytes_per_second: f64,
    pub memcpy_median_bytes_per_second: f64,
    /// Ring over memcpy.
    pub ratio_to_best: f64,
    pub ratio_to_median: f64,
    /// Blocks with a wrong checksum.
    pub torn_blocks: u64,
    /// Blocks out of order, or whose first or last record is not the one expected.
    pub wrong_blocks: u64,
    /// CPU time over wall time while waiting on the silent ring, 1 being a whole core.
    pub waiting_cpu_share: f64,
    pub ledger: Ledger,
}

impl fmt::Display for RingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ring: {:.2} M records/s, {:.2} GB/s, {:.0} % of memcpy at its best ({:.2} GB/s; median {:.2}); {} records \
             in {:.2} s, {} torn and {} wrong blocks; waiting takes {:.3} % of a core",
            self.records_per_second / 1e6,
            self.bytes_per_second / 1e9,
            self.ratio_to_best * 100.0,
            self.memcpy_best_bytes_per_second / 1e9,
            self.memcpy_median_bytes_per_second / 1e9,
            self.records,
            self.seconds,
            self.torn_blocks,
            self.wrong_blocks,
            self.waiting_cpu_share * 100.0,
        )
    }
}

/// Runs the bench: creates the ring, starts the writer, reads everything.
///
/// # Errors
/// When shared memory is short, or the writer cannot be started or fails. Damage is not an error but a figure.
pub fn run_ring(opts: &RingBench) -> anyhow::Result<RingReport> {
    let blocks = opts.records.div_ceil(RECORDS_PER_BLOCK);
    ensure!(blocks >= 2, "nothing to measure in fewer than two blocks");
    let names = RunNames::for_this_process("bench")?;
    let control = Control::create(&names.part("control"))?;
    let shape = RingShape { actor: 0, regions: opts.regions, capacity: BLOCK };
    let ring = SampleRing::create(&names.part("ring0"), shape)?;
    let mut reader = ring.reader()?;

    let (memcpy_best, memcpy_median) = memcpy_speed();
    let mut writer = Writer::spawn(ring.name(), blocks)?;
    let (seconds, wrong_blocks) = consume(&mut reader, &control, &mut writer, blocks)?;
    writer.finish()?;
    let waiting_cpu_share = wait_in_silence(&mut reader, &control, opts.idle)?;

    // The clock starts when the first block is there.
    let records = blocks * RECORDS_PER_BLOCK;
    let records_per_second = (records - RECORDS_PER_BLOCK) as f64 / seconds;
    let bytes_per_second = records_per_second * RECORD as f64;
    let ledger = ring.ledger();
    ledger.balance()?;
    Ok(RingReport {
        records,
        record_bytes: RECORD,
        block_bytes: BLOCK,
        regions: opts.regions,
        seconds,
        records_per_second,
        bytes_per_second,
        memcpy_best_bytes_per_second: memcpy_best,
        memcpy_median_bytes_per_second: memcpy_median,
        ratio_to_best: bytes_per_second / memcpy_best,
        ratio_to_median: bytes_per_second / memcpy_median,
        torn_blocks: ledger.torn_blocks,
        wrong_blocks,
        waiting_cpu_share,
        ledger,
    })
}

/// The writer's process: sends `blocks` blocks to the ring `name`.
///
/// # Errors
/// When the ring cannot be opened.
pub fn ring_writer(name: &str, blocks: u64) -> anyhow::Result<()> {
    let (names, _) = RunNames::parse(name).context("not the name of a segment")?;
    let control = Control::open(&names.part("control"))?;
    let ring = SampleRing::open(name)?;
    let mut writer = ring.writer()?;
    let mut source: Vec<u8> = (0..BLOCK).map(|i| (i % 251) as u8).collect();
    for block in 0..blocks {
        for (i, record) in source.chunks_exact_mut(RECORD).enumerate() {
            let sequence = block * RECORDS_PER_BLOCK + i as u64;
            record[..8].copy_from_slice(&sequence.to_le_bytes());
        }
        loop {
            let seen = ring.space().value();
            if let Some(mut region) = writer.claim(RECORDS_PER_BLOCK as u32, Overflow::Wait) {
                region.payload().copy_from_slice(&source);
                region.commit(BLOCK, block, &control.data);
                break;
            }
            ring.space().wait(seen, PATIENCE);
            ensure!(names.is_alive(), "the reading process has gone");
        }
    }
    Ok(())
}

/// Takes all blocks: seconds from the first to the last, and how many were not the expected ones.
fn consume(reader: &mut RingReader, control: &Control, writer: &mut Writer, blocks: u64) -> anyhow::Result<(f64, u64)> {
    let (mut taken, mut wrong, mut start) = (0, 0, None);
    while taken < blocks {
        let seen = control.data.value();
        match reader.take() {
            Ok(Some(block)) => {
                let first = taken * RECORDS_PER_BLOCK;
                let payload = block.payload();
                let expected = block.info().seq == taken
                    && sequence_at(payload, 0) == Some(first)
                    && sequence_at(payload, BLOCK - RECORD) == Some(first + RECORDS_PER_BLOCK - 1);
                wrong += u64::from(!expected);
                taken += 1;
                block.release();
                start.get_or_insert_with(Instant::now);
            }
            Ok(None) => {
                control.data.wait(seen, PATIENCE);
                writer.check()?;
            }
            // Counted in the ledger.
            Err(ShmError::Torn { .. }) => taken += 1,
            Err(e) => return Err(e.into()),
        }
    }
    let start = start.context("every block was torn")?;
    Ok((start.elapsed().as_secs_f64(), wrong))
}

fn sequence_at(payload: &[u8], offset: usize) -> Option<u64> {
    let bytes = payload.get(offset..offset + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Waits for blocks that do not come; CPU time over wall time.
fn wait_in_silence(reader: &mut RingReader, control: &Control, idle: Duration) -> anyhow::Result<f64> {
    let (start, cpu_before) = (Instant::now(), thread_cpu_time()?);
    while start.elapsed() < idle {
        let seen = control.data.value();
        ensure!(reader.take()?.is_none(), "a block too many");
        control.data.wait(seen, PATIENCE);
    }
    let cpu = thread_cpu_time()? - cpu_before;
    Ok(cpu.as_secs_f64() / start.elapsed().as_secs_f64())
}

/// Bytes per second of copies between two buffers too large for any cache: the best and the median.
fn memcpy_speed() -> (f64, f64) {
    let source = vec![1u8; COPY];
    // Not zeroes: those pages would be mapped during the first copy.
    let mut target = vec![2u8; COPY];
    let mut speeds: Vec<f64> = (0..COPIES)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
            COPY as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    (speeds[COPIES - 1], speeds[COPIES / 2])
}

/// The writing process; killed if it is still there when dropped.
struct Writer(Child);

impl Writer {
    fn spawn(ring: &str, blocks: u64) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["child", "bench-ring-writer", ring, &blocks.to_string()])
            .spawn()
            .context("cannot start the writing process")?;
        Ok(Self(child))
    }

    /// Fails when the process has failed, rather than wait for ever.
    fn check(&mut self) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            Some(status) if !status.success() => bail!("the writing process failed: {status}"),
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        ensure!(status.success(), "the writing process failed: {status}");
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
