//! The learner process: drains the rings, updates, publishes, takes snapshots.
//!
//! With `learner.ranks`, or on several nodes, there are several of them, each with a part of the actors, of the pool and of every batch.
//! Several learn as in [`super::together`]; updates ([`super::updates`]) are the same for one and for several.

use crate::gpu;
use crate::policy::file::PolicyFile;
use crate::run::alive::while_alive;
use crate::run::segments::{exchange_name, rank_halves_name};
use crate::run::{CannotSave, Context, Metrics, RunDirectory, Segments};
use crate::settings::Collective;
use crate::shm::control::STOP_NOW;
use crate::shm::{Exchange, Halves, Role};

use super::core::Learner;
use super::device::{self, Device};
use super::member::{LearnerProcess, NOT_SAVED};
use super::peers::Peers;
use super::rings::Rings;
use super::trainer::NotFinite;

/// Runs the learner, or rank `rank` of several on its node, until the budget is spent, the policy converged, or the run is stopped.
///
/// # Errors
/// [`NotFinite`] if losses are repeatedly not finite; a rank that is gone ([`crate::shm::Broken`]); any other failure of learning,
/// after which main starts another learner.
pub fn run(directory: &RunDirectory, prefix: &str, rank: usize) -> anyhow::Result<()> {
    let mut context = Context::load(directory)?;
    let world = context.world();
    context.settings = context.settings.of_rank(world.ranks);
    let settings = &context.settings;
    device::set_threads(settings.learner.threads);
    let segments = Segments::open(prefix, 0..settings.actors.count, settings.checkpoint.every_s > 0.0)?;
    let role = Role::learner(rank);
    let slot = &segments.control.processes[role.slot()];
    slot.sign_in(role.kind());
    let days = while_alive(|| slot.beat(), || context.training_days())?;
    let device = Device::of_rank(settings, rank)?;
    let trainer = device.trainer(&days, &context.spec, settings)?;
    if device != Device::Cpu {
        gpu::failures::end_the_process();
    }
    let mut learner = Learner::new(&days, context.spec.clone(), settings, trainer).of_rank(world.first + rank);
    learner.start_from(&context.start)?;
    let own = match &segments.halves {
        Some(first) if rank > 0 => {
            let own = Halves::open(&rank_halves_name(prefix, rank))?;
            // The first rank's part makes a snapshot whole: without it, this rank's belongs to one that never came about.
            own.give_up_after(first.complete());
            Some(own)
        }
        _ => None,
    };
    let nccl = match (settings.learner.collective, device) {
        (Collective::Nccl, Device::Cuda(gpu)) => Some(gpu),
        _ => None,
    };
    let peers = match world.ranks {
        1 => None,
        _ => Some(Peers::join(Exchange::open(&exchange_name(prefix))?, world.first + rank, nccl)?),
    };
    let mut process = LearnerProcess {
        settings,
        directory,
        segments: &segments,
        halves: own.as_ref().or(segments.halves.as_ref()),
        // On the host this costs nothing.
        always_read: device == Device::Cpu,
        metrics: Metrics::open(&directory.metrics())?,
        rings: Rings::open(
            &segments,
            (slot, segments.control.learner_stats(rank)),
            rank == 0,
            settings.actors_of(rank),
        )?,
        peers,
        world,
        rank,
        rollbacks: 0,
    };
    let snapshot = process.newest(&mut learner)?;
    process.start(&mut learner, snapshot)?;
    loop {
        process.learn(&mut learner)?;
        match process.end(&mut learner) {
            Ok(()) => break,
            // Detected only now, because updates are not always read at once.
            Err(e) => process.roll_back(&mut learner, &e.downcast::<NotFinite>()?)?,
        }
    }
    if !process.leads() || segments.control.stop_level() >= STOP_NOW {
        // No snapshot was taken of these parameters: the run goes on from an earlier one, or from its beginning.
        return Ok(());
    }
    let publication = learner.publication()?;
    PolicyFile {
        spec: context.spec.clone(),
        plan: context.plan.clone(),
        actor: publication.averaged,
        updates: publication.updates,
    }
    .write(&directory.last())
    .map_err(|e| CannotSave(e).into())
}

impl LearnerProcess<'_> {
    /// Learns until the run ends.
    fn learn(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        if self.peers.is_some() {
            return self.learn_together(learner);
        }
        let control = &self.segments.control;
        let lock_step = self.settings.run.deterministic;
        let mut evaluated = control.evaluator.due.get();
        while control.stop_level() == 0 && learner.progress() < 1.0 && !self.converged() {
            if lock_step {
                if !self.rings.take_round(learner)? {
                    break;
                }
            } else if learner.updates_due() == 0 {
                self.rings.take_one(learner)?;
            }
            // A round in lock-step is always completed: a run cannot resume within one.
            while learner.updates_due() > 0 && learner.progress() < 1.0 && (lock_step || control.stop_level() == 0) {
                if let Err(e) = self.update(learner) {
                    self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
                }
            }
            if lock_step {
                self.rings.publish(learner)?;
                let due = learner.updates() / self.settings.evaluate.every;
                if due > evaluated {
                    evaluated = due;
                    self.rings.await_evaluation();
                }
            }
            if let Err(e) = self.rings.save_if_due(learner, self.rollbacks) {
                self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
            }
        }
        Ok(())
    }

    /// Saves and publishes the final state.
    fn end(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        if self.peers.is_some() {
            return self.end_together(learner);
        }
        let control = &self.segments.control;
        if control.stop_level() < STOP_NOW {
            if !self.settings.run.deterministic {
                self.rings.drain(learner, self.settings.actors.regions)?;
            }
            if !self.rings.save_finally(learner, self.rollbacks)? {
                tracing::warn!("{NOT_SAVED}");
            }
        }
        self.rings.publish(learner)
    }
}
