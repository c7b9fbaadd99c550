//! Reasons why a run failed, for people and for schedulers.

use std::path::PathBuf;

/// A run that cannot go on. Each kind has its own exit code.
#[derive(Debug, thiserror::Error)]
pub enum RunFailure {
    #[error("{process} died {times} times; its last words are in {}", log.display())]
    KeepsDying { process: String, times: u32, log: PathBuf },
    #[error("the run went back to a snapshot {times} times, the last time because {why}; last words are in {}", logs.display())]
    KeepsGoingBack { times: u32, why: String, logs: PathBuf },
    #[error(
        "the learner got no samples for {seconds:.0} s (watchdog.stuck_s): the actors stand still; their last words are in {}",
        logs.display()
    )]
    NoSamples { seconds: f64, logs: PathBuf },
    #[error(
        "the actors got no parameters for {seconds:.0} s (watchdog.stuck_s): the learner has not published any; its last \
         words are in {}", logs.display()
    )]
    NoParameters { seconds: f64, logs: PathBuf },
    #[error(
        "no update for {seconds:.0} s (watchdog.stuck_s) while samples lie unread: the learner stands still; its last words \
         are in {}", logs.display()
    )]
    NoProgress { seconds: f64, logs: PathBuf },
    #[error(
        "a loss or gradient is not finite, again and again (watchdog.max_rollbacks): lower learner.critic_rate and \
         learner.actor_rate; the batches are in {}", incidents.display()
    )]
    NotFinite { incidents: PathBuf },
    #[error("a loss or gradient is not finite: lower values.rate and table.rate; the last words of the ranks are in {}", logs.display())]
    ValuesNotFinite { logs: PathBuf },
    #[error("the results of the run cannot be written; make room and go on with --resume. Why is in {}", log.display())]
    CannotSave { log: PathBuf },
    #[error("the policy cannot be written: {why}; make room and train again, for a serial run is not resumed")]
    SerialNotSaved { why: String },
    #[error("{why}, and the job has ended with it: start it again with --resume. Last words are in {}", logs.display())]
    NodeLost { why: String, logs: PathBuf },
    #[error(
        "node {node} was interrupted and ended before it had saved (a second interrupt, or watchdog.grace_s was over): --resume goes on \
         from the newest snapshot"
    )]
    NotSaved { node: usize },
}

impl RunFailure {
    /// Exit code of a learner that met non-finite values too often.
    pub const NOT_FINITE: u8 = 24;
    /// Exit code of a process that cannot write the results of the run.
    pub const CANNOT_SAVE: u8 = 25;
    /// Exit code of a rank when another one is gone; main's own exit code differs.
    pub const RANK_LOST: u8 = 26;

    /// Returns the program's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::KeepsDying { .. } | Self::KeepsGoingBack { .. } => 20,
            Self::NoSamples { .. } => 21,
            Self::NoParameters { .. } => 22,
            Self::NoProgress { .. } => 23,
            Self::NotFinite { .. } | Self::ValuesNotFinite { .. } => Self::NOT_FINITE,
            Self::CannotSave { .. } | Self::SerialNotSaved { .. } => Self::CANNOT_SAVE,
            Self::NodeLost { .. } => 27,
            Self::NotSaved { .. } => 130,
        }
    }
}
