//! Decisions per second of an actor on one core: features, the default network, sampling and recording; and what its blocks cost
//! to encode and decode.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use crate::actor::Explorer;
use crate::env::Block;
use crate::policy::start::initial_actor;
use crate::run::segments::Sizes;
use crate::settings::Settings;

use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct ActorReport {
    pub contracts_in_queue: usize,
    pub hidden: usize,
    pub decisions: u64,
    pub seconds: f64,
    pub decisions_per_second: f64,
    pub bytes_per_sample: f64,
    pub encode_samples_per_second: f64,
    pub decode_samples_per_second: f64,
}

impl fmt::Display for ActorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "actor: {:.0} k decisions/s on one core ({} contracts a queue, hidden {}); blocks of {:.1} bytes a sample, \
             encoded at {:.1} M samples/s, decoded at {:.1} M samples/s",
            self.decisions_per_second / 1e3,
            self.contracts_in_queue,
            self.hidden,
            self.bytes_per_sample,
            self.encode_samples_per_second / 1e6,
            self.decode_samples_per_second / 1e6
        )
    }
}

/// Explores days of `size` with an untrained policy for `seconds`.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<ActorReport> {
    let (day, _) = world::day(size)?;
    let spec = world::spec(&day, settings);
    let days = [day];
    let actor = initial_actor(&spec, 1);
    let mut explorer = Explorer::new(&days, settings, spec.clone(), actor, 0, 0);
    explorer.block();
    let mut blocks: Vec<Block> = Vec::new();
    let mut decisions = 0;
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < seconds {
        let block = explorer.block();
        decisions += block.samples() as u64;
        if blocks.len() < 64 {
            blocks.push(block);
        }
    }
    let elapsed = started.elapsed().as_secs_f64();

    let samples: usize = blocks.iter().map(Block::samples).sum();
    let mut buffer = vec![0; Sizes::of(settings, &spec, &days).block];
    let mut encoded = Vec::new();
    let rounds = 20;
    let started = Instant::now();
    for round in 0..rounds {
        for block in &blocks {
            let len = block.encode(&mut buffer)?;
            if round == 0 {
                encoded.push(buffer[..len].to_vec());
            }
        }
    }
    let encoding = started.elapsed().as_secs_f64();
    let started = Instant::now();
    for _ in 0..rounds {
        for bytes in &encoded {
            std::hint::black_box(Block::decode(bytes)?);
        }
    }
    let decoding = started.elapsed().as_secs_f64();
    let per_second = |seconds: f64| (samples * rounds) as f64 / seconds;
    Ok(ActorReport {
        contracts_in_queue: size.eligible,
        hidden: settings.policy.hidden,
        decisions,
        seconds: elapsed,
        decisions_per_second: decisions as f64 / elapsed,
        bytes_per_sample: encoded.iter().map(Vec::len).sum::<usize>() as f64 / samples as f64,
        encode_samples_per_second: per_second(encoding),
        decode_samples_per_second: per_second(decoding),
    })
}
