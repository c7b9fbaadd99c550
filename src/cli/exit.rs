//! Exit codes of the program, and their mapping from errors.

use std::process::ExitCode;

use crate::learner::NotFinite;
use crate::log::LogError;
use crate::nodes::JobError;
use crate::rank;
use crate::run::leakage::Leak;
use crate::run::{CannotSave, NotARunDirectory, Occupied, Unusable};
use crate::settings::SettingsError;
use crate::shm::Broken;
use crate::sparse::file::RowFileError;
use crate::supervisor::RunFailure;
use crate::supervisor::prepare::Unfit;
use crate::supervisor::resume::Refused;
use crate::values::fields::FieldError;
use crate::values::join::JoinError;

/// How the program ends; each variant has an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    /// Wrong usage or input.
    Usage,
    /// `train --require`: the policy is not as good as required. `export`: the dictionary is refused.
    VerdictNotReached,
    /// `retrain`: the served policy was kept.
    Kept,
    /// `retrain`: the newest day cannot be trusted. `data check --strict`: there is a warning.
    Suspect,
    Interrupted,
    /// A training run that could not go on: [`RunFailure::code`].
    Run(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Kept => 10,
            Exit::Suspect => 11,
            Exit::VerdictNotReached => 12,
            Exit::Interrupted => 130,
            Exit::Run(code) => code,
        })
    }
}

/// An error in the user's input: ends with [`Exit::Usage`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Returns the exit for an error.
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let failure = error.chain().find_map(|cause| cause.downcast_ref::<RunFailure>());
    if let Some(failure) = failure {
        return Exit::Run(failure.code());
    }
    // Exit codes by which a child reports to main.
    if error.chain().any(|cause| cause.is::<NotFinite>() || cause.is::<rank::dense::NotFinite>()) {
        return Exit::Run(RunFailure::NOT_FINITE);
    }
    if error.chain().any(|cause| cause.is::<CannotSave>()) {
        return Exit::Run(RunFailure::CANNOT_SAVE);
    }
    if error.chain().any(|cause| cause.is::<Broken>()) {
        return Exit::Run(RunFailure::RANK_LOST);
    }
    let usage = error.chain().any(|cause| {
        cause.is::<SettingsError>()
            || cause.is::<UsageError>()
            || cause.is::<Refused>()
            || cause.is::<Unfit>()
            || cause.is::<JoinError>()
            || cause.is::<FieldError>()
            || cause.is::<RowFileError>()
            || cause.is::<NotARunDirectory>()
            || cause.is::<Occupied>()
            || cause.downcast_ref::<Unusable>().is_some_and(Unusable::is_permanent)
            || cause.is::<Leak>()
            || cause.is::<crate::export::ExportError>()
            || cause
                .downcast_ref::<JobError>()
                .is_some_and(|e| matches!(e, JobError::NotBuilt { .. } | JobError::OtherSize { .. }))
            || cause.downcast_ref::<LogError>().is_some_and(LogError::is_of_input)
    });
    if usage { Exit::Usage } else { Exit::Failed }
}
