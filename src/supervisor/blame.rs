//! Which of several ranks ended the others.
//!
//! When one rank dies or hangs, the others end with a status that says that they lost one. Main names the one that was lost.

use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::shm::Exchange;

use super::children::Process;
use super::failure::RunFailure;

const POLL: Duration = Duration::from_millis(20);
/// How long main looks for the rank that others lost.
const LOOK: Duration = Duration::from_secs(2);

/// What became of the rank that is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Ended(ExitStatus),
    /// The others waited for it in vain, and it gave no sign of life; main kills it.
    Hung,
}

impl Fate {
    /// Returns the rank's exit code; `None` if a signal ended it, or if it hung.
    pub fn code(self) -> Option<u8> {
        match self {
            Self::Ended(status) => status.code().and_then(|code| u8::try_from(code).ok()),
            Self::Hung => None,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(_) if self.code() == Some(RunFailure::RANK_LOST) => f.write_str("it lost another rank"),
            Self::Ended(status) => status.fmt(f),
            Self::Hung => f.write_str("killed: it had not taken part in an exchange for ranks.timeout_s"),
        }
    }
}

/// Finds the rank to blame for the end of rank `ended` of this machine with `status`, among `ranks` in their order; `hung` is one that
/// hangs. Tells the others of the end by `exchange`.
///
/// # Errors
/// A process that cannot be waited for.
pub fn find(
    exchange: Option<&Exchange>,
    ranks: &mut [&mut Process],
    hung: Option<usize>,
    (ended, status): (usize, ExitStatus),
) -> anyhow::Result<(usize, Fate)> {
    let lost_another = |status: &ExitStatus| status.code() == Some(RunFailure::RANK_LOST.into());
    if let Some(exchange) = exchange {
        exchange.died(exchange.shape().first + ended);
    }
    let begun = Instant::now();
    while lost_another(&status) && begun.elapsed() < LOOK {
        for (rank, process) in ranks.iter_mut().enumerate() {
            if let Some(status) = process.reap()?.filter(|status| !status.success() && !lost_another(status)) {
                return Ok((rank, Fate::Ended(status)));
            }
        }
        if let Some(rank) = hung {
            return Ok((rank, Fate::Hung));
        }
        std::thread::sleep(POLL);
    }
    Ok((ended, Fate::Ended(status)))
}
