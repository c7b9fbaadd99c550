//! Samples per second from the rings into the learner's pool: take, verify, decode, check, keep; beside a plain copy of the same
//! bytes.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::actor::Explorer;
use crate::env::Block;
use crate::learner::rings::take_block;
use crate::learner::{Device, Learner};
use crate::policy::start::initial_actor;
use crate::run::segments::Sizes;
use crate::settings::Settings;
use crate::shm::{Control, Overflow, RingShape, RunNames, SampleRing};

use super::world::{self, WorldSize};

/// Blocks of an untrained actor that are sent again and again.
const BLOCKS: usize = 16;

#[derive(Debug, Clone, Serialize)]
pub struct IngestReport {
    pub device: String,
    pub contracts: usize,
    pub requests_per_step: usize,
    pub samples_per_block: usize,
    pub bytes_per_sample: f64,
    pub samples_per_second: f64,
    pub bytes_per_second: f64,
    /// The same bytes out of the ring into a buffer, without looking at them.
    pub memcpy_bytes_per_second: f64,
    pub ratio_to_memcpy: f64,
    /// Time that one core spends on the samples of an update.
    pub microseconds_per_update: f64,
}

impl fmt::Display for IngestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ingest: {:.2} M samples/s from rings into the pool on {}, {:.2} GB/s, {:.1} % of memcpy of the same bytes ({:.2} GB/s); {:.1} \
             bytes a sample ({} contracts, {} requests a step), {:.0} us for the samples of an update",
            self.samples_per_second / 1e6,
            self.device,
            self.bytes_per_second / 1e9,
            100.0 * self.ratio_to_memcpy,
            self.memcpy_bytes_per_second / 1e9,
            self.bytes_per_sample,
            self.contracts,
            self.requests_per_step,
            self.microseconds_per_update
        )
    }
}

/// Sends blocks of days of `size` through a ring for `seconds`; only taking them is timed, in turn with copying them.
///
/// # Errors
/// When shared memory is short.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<IngestReport> {
    let (day, _) = world::day(size)?;
    let spec = world::spec(&day, settings);
    let days = [day];
    let mut explorer = Explorer::new(&days, settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
    let blocks: Vec<Block> = (0..BLOCKS).map(|_| explorer.block()).collect();
    let device = Device::untried(&settings.run.device, 1)?;
    let mut learner = Learner::new(&days, spec.clone(), settings, device.trainer(&days, &spec, settings)?);

    let names = RunNames::for_this_process("bench")?;
    let control = Control::create(&names.part("control"))?;
    let shape =
        RingShape { actor: 0, regions: settings.actors.regions, capacity: Sizes::of(settings, &spec, &days).block };
    let ring = SampleRing::create(&names.part("ring0"), shape)?;
    let (mut writer, mut reader) = (ring.writer()?, ring.reader()?);
    let mut send = |block: &Block| -> anyhow::Result<usize> {
        let mut region = writer.claim(block.samples() as u32, Overflow::Wait).context("the ring is full")?;
        let len = block.encode(region.payload())?;
        region.commit(len, 1, &control.data);
        Ok(len)
    };
    let mut buffer = vec![0u8; shape.capacity];
    let (mut taking, mut copying) = (Duration::ZERO, Duration::ZERO);
    let (mut bytes, mut samples) = (0, 0);
    let began = Instant::now();
    // The first round fills the pool, after which every segment pushes an old one out.
    for round in 0.. {
        if round > 0 && began.elapsed().as_secs_f64() >= seconds {
            break;
        }
        let warm = learner.samples() >= settings.learner.pool as u64;
        for (i, block) in blocks.iter().enumerate() {
            let len = send(block)?;
            let guard = reader.take()?.context("no block in the ring")?;
            let started = Instant::now();
            buffer[..len].copy_from_slice(std::hint::black_box(guard.payload()));
            std::hint::black_box(&mut buffer);
            let copied = started.elapsed();
            guard.release();
            send(block)?;
            let started = Instant::now();
            let taken = take_block(&mut reader, true)?.context("no block in the ring")?;
            learner.ingest(taken.block.segments)?;
            // No further ahead than a training is, which publishes.
            if i % 8 == 7 {
                learner.wait();
            }
            let took = started.elapsed();
            if warm {
                copying += copied;
                taking += took;
                bytes += len;
                samples += block.samples();
            }
        }
    }
    anyhow::ensure!(samples > 0, "the pool was not full in time; give it more --seconds");
    let (taking, copying) = (taking.as_secs_f64(), copying.as_secs_f64());
    Ok(IngestReport {
        device: device.to_string(),
        contracts: size.contracts,
        requests_per_step: settings.requests_per_step(),
        samples_per_block: blocks[0].samples(),
        bytes_per_sample: bytes as f64 / samples as f64,
        samples_per_second: samples as f64 / taking,
        bytes_per_second: bytes as f64 / taking,
        memcpy_bytes_per_second: bytes as f64 / copying,
        ratio_to_memcpy: copying / taking,
        microseconds_per_update: 1e6 * taking / samples as f64 * settings.learner.samples_per_update as f64,
    })
}
