//! The processes of the learner: one, or several ranks.
//!
//! Ranks live and die together. When one is gone the others cannot go on with their update, so main ends them all and starts them
//! again from the newest snapshot, with a new exchange; the old one stays broken. Actors do not notice. On several nodes the job ends.

use std::sync::Arc;
use std::time::Duration;

use crate::awake::Deadline;
use crate::learner::networks::critic_shape;
use crate::learner::peers::SAID_BYTES;
use crate::nodes::{MOST_BYTES, World};
use crate::run::segments::exchange_name;
use crate::run::{Context, RunDirectory};
use crate::settings::{SettingsError, Target};
use crate::shm::{Exchange, ExchangeShape, Remote, Role};

use super::blame::{self, Fate};
use super::children::Process;
use super::failure::RunFailure;
use super::interrupt::Interrupt;

/// Time limit for the end of a process that was killed.
const GONE: Duration = Duration::from_secs(10);

/// Returns the sizes of the exchange between the ranks of all nodes; `None` for a single rank.
///
/// # Errors
/// Networks whose gradients MPI cannot carry.
pub fn exchange_shape(context: &Context) -> Result<Option<ExchangeShape>, SettingsError> {
    let World { ranks, first, local } = context.world();
    if ranks == 1 {
        return Ok(None);
    }
    let (actor, critic) = (context.spec.actor_shape().len(), critic_shape(&context.spec, &context.settings).len());
    let words = critic + if context.settings.learner.target == Target::Both { 2 * actor } else { actor };
    let bytes = (ranks * (size_of::<f32>() * words + 2 * SAID_BYTES)) as u64;
    if local < ranks && bytes > MOST_BYTES {
        let why = format!(
            "makes networks of which {ranks} ranks exchange {bytes} bytes at once, and MPI counts to {MOST_BYTES}: lower it, or \
             learner.critic_hidden"
        );
        return Err(SettingsError::Value { key: "policy.hidden".into(), why });
    }
    Ok(Some(ExchangeShape { ranks, first, local, groups: 1, words, bytes: SAID_BYTES }))
}

/// Opens the seats that the ranks of other nodes have in the exchange of this one.
pub fn remote(prefix: &str) -> anyhow::Result<Remote> {
    Ok(Remote::new(Arc::new(Exchange::open(&exchange_name(prefix))?)))
}

/// End of a learner process.
pub enum Reaped {
    /// The only or first rank has ended well, and with it all others.
    Ended,
    /// A rank has ended otherwise, or hung; none is left.
    Died { role: Role, pid: u32, fate: Fate },
}

/// The learner's processes.
pub struct Learners {
    /// By rank.
    ranks: Vec<Process>,
    /// Whether each has ended well.
    ended: Vec<bool>,
    /// `None` for one rank.
    exchange: Option<Exchange>,
    shape: Option<ExchangeShape>,
    prefix: String,
}

impl Learners {
    /// Starts one process, or one for each rank that this node has in the exchange.
    ///
    /// # Errors
    /// Too little shared memory; a process that cannot be started.
    pub fn start(shape: Option<ExchangeShape>, directory: &RunDirectory, prefix: &str) -> anyhow::Result<Self> {
        let exchange = shape.map(|shape| Exchange::create(&exchange_name(prefix), shape)).transpose()?;
        let count = shape.map_or(1, |shape| shape.local);
        let ranks = (0..count).map(|rank| Process::start(Role::learner(rank), directory, prefix));
        let ranks = ranks.collect::<Result<_, _>>()?;
        Ok(Self { ranks, ended: vec![false; count], exchange, shape, prefix: prefix.to_owned() })
    }

    /// Returns the end of the learner, once.
    ///
    /// # Errors
    /// A process that cannot be waited for.
    pub fn reap(&mut self, interrupt: &Interrupt) -> anyhow::Result<Option<Reaped>> {
        for rank in (0..self.ranks.len()).rev() {
            if self.ended[rank] {
                continue;
            }
            let Some(status) = self.ranks[rank].reap()? else { continue };
            if !status.success() {
                let mut ranks: Vec<_> = self.ranks.iter_mut().collect();
                let (rank, fate) = blame::find(self.exchange.as_ref(), &mut ranks, None, (rank, status))?;
                self.end_all(interrupt)?;
                let Process { role, .. } = self.ranks[rank];
                return Ok(Some(Reaped::Died { role, pid: self.ranks[rank].pid(), fate }));
            }
            self.ended[rank] = true;
            if rank == 0 {
                return Ok(Some(Reaped::Ended));
            }
        }
        Ok(None)
    }

    /// Ends those that are left.
    fn end_all(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.kill();
        self.finish(&mut Deadline::after(GONE), interrupt)
    }

    /// Schedules the next start of all, after all have ended.
    ///
    /// # Errors
    /// [`RunFailure::KeepsDying`], for `role`; too little shared memory.
    pub fn schedule_restart(&mut self, role: Role, limit: u32, directory: &RunDirectory) -> anyhow::Result<()> {
        let restarts = self.restarts();
        if restarts >= limit {
            let process = role.to_string();
            let log = directory.log(&process);
            return Err(RunFailure::KeepsDying { process, times: restarts + 1, log }.into());
        }
        // The old one is removed before the new one takes its name.
        self.exchange = None;
        self.exchange = self.shape.map(|shape| Exchange::create(&exchange_name(&self.prefix), shape)).transpose()?;
        self.ended.fill(false);
        self.ranks.iter_mut().for_each(Process::schedule_restart);
        Ok(())
    }

    /// Starts what is due.
    pub fn restart_if_due(&mut self, directory: &RunDirectory) -> anyhow::Result<()> {
        for process in &mut self.ranks {
            process.restart_if_due(directory, &self.prefix)?;
        }
        Ok(())
    }

    /// Returns the processes that have not ended well.
    pub fn living(&mut self) -> impl Iterator<Item = &mut Process> {
        self.ranks.iter_mut().zip(&self.ended).filter(|(_, ended)| !**ended).map(|(process, _)| process)
    }

    pub fn kill(&mut self) {
        self.living().for_each(Process::kill);
    }

    /// Waits for the end of all until `deadline` or a pressing interrupt, then kills them.
    pub fn finish(&mut self, deadline: &mut Deadline, interrupt: &Interrupt) -> anyhow::Result<()> {
        for process in &mut self.ranks {
            process.finish(deadline, interrupt)?;
        }
        Ok(())
    }

    pub fn roles(&self) -> Vec<Role> {
        self.ranks.iter().map(|process| process.role).collect()
    }

    /// Returns how often all were started again.
    pub fn restarts(&self) -> u32 {
        self.ranks[0].restarts
    }
}
