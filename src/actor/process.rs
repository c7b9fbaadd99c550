//! The actor process: reads parameters, explores, writes blocks to its ring.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::run::{Context, RunDirectory, Segments, flight, snapshot, unpack};
use crate::shm::ProcessKind;

use super::Explorer;

/// Maximum sleep between two checks of the stop flag.
const NAP: Duration = Duration::from_millis(100);

/// Runs actor `id` until the run stops.
///
/// # Errors
/// On any failure; main starts it again.
pub fn run(directory: &RunDirectory, prefix: &str, id: usize) -> anyhow::Result<()> {
    let context = Context::load(directory)?;
    let settings = &context.settings;
    let segments = Segments::open(prefix, id..id + 1, false)?;
    let control = &segments.control;
    let slot = &control.processes[id];
    let incarnation = slot.sign_in(ProcessKind::Actor);
    let days = context.training_days()?;
    let stats = &control.actors[id];
    let mut writer = segments.rings[0].writer()?;
    let actor_len = context.spec.actor_shape().len();
    let initial = context.start.clone();
    let lock_step = settings.run.deterministic;
    // A resumed run draws other episodes than before. In lock-step it draws the same ones: from the end of its
    // snapshot, or from the beginning if no round had ended before the snapshot.
    let start = if lock_step { 0 } else { incarnation - 1 + control.resumed_from.get() * 4096 };
    let start = start & u64::from(u32::MAX);
    let number = context.node.first_of(settings.actors.count) + id;
    let mut explorer = Explorer::new(&days, settings, context.spec.clone(), initial, number as u64, start);
    let mut words = Vec::new();
    let mut version = 0;
    let mut round = 0;
    if lock_step && control.resumed_from.get() > 0 {
        let snapshot = snapshot::newest(&directory.checkpoints())?.context("the snapshot to go on from is gone")?;
        if let Some(saved) = snapshot.explorer(id) {
            explorer.resume(saved)?;
        }
        round = snapshot.state.publications.version() - 1;
    }
    while control.stop_level() == 0 {
        let waiting = Instant::now();
        // In lock-step the round's publication is the start signal; otherwise any first one is enough.
        let wanted = if lock_step { round + 1 } else { 1 };
        loop {
            let seen = control.params.value();
            if segments.params.version() >= wanted || control.stop_level() > 0 {
                break;
            }
            control.params.wait(seen, NAP);
            flight::waiting("parameters");
            slot.beat();
        }
        stats.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        if control.stop_level() > 0 {
            break;
        }
        let copying = Instant::now();
        if segments.params.version() > version
            && let Some(newer) = segments.params.read(&mut words)
        {
            let (_, raw, _) = unpack(&words, actor_len).context("a publication of another size")?;
            explorer.set_params(&raw);
            version = newer;
            stats.param_version.set(version);
        }
        stats.copy_ns.add(copying.elapsed().as_nanos() as u64);

        let working = Instant::now();
        let mut block = explorer.block();
        if lock_step {
            block.explorer = explorer.save()?;
        }
        let samples = block.samples() as u32;
        stats.steps.add(u64::from(samples));
        stats.compute_ns.add(working.elapsed().as_nanos() as u64);
        slot.beat();

        let waiting = Instant::now();
        let ring = writer.ring().clone();
        let mut handed_over = false;
        while control.stop_level() == 0 {
            let seen = ring.space().value();
            if let Some(mut region) = writer.claim(samples, settings.actors.overflow.into()) {
                stats.wait_ns.add(waiting.elapsed().as_nanos() as u64);
                let copying = Instant::now();
                let len = block
                    .encode(region.payload())
                    .context("a block does not fit its region; lower actors.write_every or env.feedback_delay_s")?;
                region.commit(len, version, &control.data);
                stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
                flight::handed_over(samples.into(), version);
                handed_over = true;
                break;
            }
            ring.space().wait(seen, NAP);
            flight::waiting("a free region");
            slot.beat();
        }
        if !handed_over {
            writer.discard(samples);
        }
        round += 1;
    }
    Ok(())
}
