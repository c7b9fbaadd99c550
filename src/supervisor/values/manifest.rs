//! The manifest of `admix values train`.

use serde::Serialize;

use crate::run::value_run::Prepared;
use crate::settings::{Configuration as _, ValueSettings};
use crate::supervisor::manifest::{Facts, Manifest};

use super::{Spent, ValueOutcome};

pub type ValueManifest<'a> = Manifest<ValueTraining<'a>, ValueOutcome>;

/// What the manifest of a value training alone says.
#[derive(Debug, Serialize)]
pub struct ValueTraining<'a> {
    exposures: &'a Prepared,
    /// What earlier starts took; part of the outcome.
    before: Spent,
}

impl<'a> ValueManifest<'a> {
    /// Describes a run that starts now, after its `earlier` starts, which took `before`.
    pub fn begin(
        settings: &ValueSettings,
        exposures: &'a Prepared,
        device: &str,
        (earlier, before): (Vec<String>, Spent),
    ) -> Self {
        let facts = Facts::begin("values", settings.run.seed, &settings.to_toml(), device, earlier);
        Self::new(facts, ValueTraining { exposures, before })
    }
}
