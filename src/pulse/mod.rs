//! A process that does nothing but say that it is alive.
//!
//! May import: `run`, `shm`.

use std::time::Duration;

use crate::run::{RunDirectory, Segments};
use crate::shm::Role;
use crate::shm::control::STOP_ALL;

const BEAT: Duration = Duration::from_millis(100);

/// Beats until the run stops.
///
/// # Errors
/// Shared memory that cannot be opened.
pub fn run(_: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let segments = Segments::open(prefix, 0..0, false)?;
    let slot = &segments.control.processes[Role::Pulse.slot()];
    slot.sign_in(Role::Pulse.kind());
    while segments.control.stop_level() < STOP_ALL {
        slot.beat();
        std::thread::sleep(BEAT);
    }
    Ok(())
}
