//! The CPU time that a rank takes for its updates. Main tells from it how evenly the ranks share the work.

use std::time::Duration;

use crate::shm::control::ProcessSlot;
use crate::shm::process_cpu_time;

/// Counts this process's CPU time in its slot.
pub struct Busy<'a> {
    slot: &'a ProcessSlot,
    /// CPU time up to which it is counted, or is not to be.
    until: Duration,
}

impl<'a> Busy<'a> {
    pub fn new(slot: &'a ProcessSlot) -> Self {
        Self { slot, until: process_cpu_time() }
    }

    /// Counts the time since the last call of a method.
    pub fn count(&mut self) {
        let now = process_cpu_time();
        self.slot.busy_ns.add((now - self.until).as_nanos() as u64);
        self.until = now;
    }

    /// Leaves out the time since the last call of a method.
    pub fn skip(&mut self) {
        self.until = process_cpu_time();
    }
}
