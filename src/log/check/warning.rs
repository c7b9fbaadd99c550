//! Warnings of a check. Each kind has a name and states the likely cause and the remedy.

use std::fmt;

use serde::Serialize;

/// A finding that the owner of a log should look at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// Short machine-readable name of its kind.
    pub name: &'static str,
    pub what: String,
    /// Likely cause; empty where the finding is self-explanatory.
    pub cause: String,
    /// Suggested remedy.
    pub remedy: String,
}

impl Warning {
    pub fn new(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, what: what.into(), cause: String::new(), remedy: String::new() }
    }

    pub fn likely(self, cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), ..self }
    }

    pub fn so(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.cause.is_empty() {
            write!(f, ". Likely: {}", self.cause)?;
        }
        if !self.remedy.is_empty() {
            write!(f, ". {}", self.remedy)?;
        }
        Ok(())
    }
}
