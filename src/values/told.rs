//! The values that plan, training and policies are told: those of the log, a model's, or the truth of a synthetic world.
//!
//! What is told and what J is counted with are two switches. Days at told values are opened here and nowhere else.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::log::{self, CompileOptions, CompiledLog, LogError, corrected};
use crate::settings::Data;

use super::ValueModel;

/// Precedes the name of a model.
const MODEL: &str = "values:";

/// A table of values in the directory of a synthetic day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Truth,
    /// What the exposures tell somebody who knows how the errors were drawn.
    Posterior,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Truth => "truth",
            Self::Posterior => "posterior",
        }
    }
}

/// Which values are told.
#[derive(Clone, Default)]
pub enum Told {
    #[default]
    Logged,
    Table(Table),
    Model(Arc<ValueModel>),
}

impl Told {
    /// What a configuration says.
    ///
    /// # Errors
    /// A model that cannot be used.
    pub fn of(data: &Data) -> anyhow::Result<Self> {
        if data.values.as_os_str().is_empty() { Ok(Self::Logged) } else { Self::model(&data.values) }
    }

    /// The values of a run of `admix values train`. Warns of one that is not finished.
    ///
    /// # Errors
    /// No model there, or one that is damaged.
    pub fn model(dir: &Path) -> anyhow::Result<Self> {
        ValueModel::warn_of_unfinished(dir);
        Ok(Self::Model(Arc::new(ValueModel::read(dir)?)))
    }

    pub fn is_logged(&self) -> bool {
        matches!(self, Self::Logged)
    }

    /// Returns whether these are the same values.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Logged, Self::Logged) => true,
            (Self::Table(own), Self::Table(other)) => own == other,
            (Self::Model(own), Self::Model(other)) => own.key == other.key,
            _ => false,
        }
    }

    /// Returns half of the key of the model; `None` where the values are no model's.
    pub fn key(&self) -> Option<u64> {
        match self {
            Self::Model(model) => Some(model.key as u64),
            _ => None,
        }
    }

    /// Returns the name of the model that a text names, as [`Told`] is displayed; `None` where the values are no model's.
    pub fn model_name(text: &str) -> Option<&str> {
        text.strip_prefix(MODEL)
    }

    /// Opens a day at these values, compiling and correcting it where that has not been done.
    ///
    /// # Errors
    /// Whatever [`LogError`] says of the inputs.
    pub fn open(&self, dir: &Path, options: CompileOptions) -> Result<CompiledLog, LogError> {
        let log = log::open(dir, options)?;
        match self {
            Self::Logged => Ok(log),
            Self::Table(table) => corrected::open_table(dir, &log, table.name()),
            Self::Model(model) => {
                let mut predictor = model.predictor();
                let start = log.day().start_ms;
                corrected::open(dir, &log, model.key, &mut |request, queue, values| {
                    predictor.correct(request, start, queue, values);
                    Ok(())
                })
            }
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logged => f.write_str("logged"),
            Self::Table(table) => f.write_str(table.name()),
            Self::Model(model) => write!(f, "{MODEL}{}", model.name()),
        }
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
