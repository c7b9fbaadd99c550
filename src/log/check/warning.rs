//! What a check warns of: each kind has a name, and says what is likely wrong and what to do.

use std::fmt;

use serde::Serialize;

/// Something that a log's owner should look at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// Short machine-readable name of its kind.
    pub name: &'static str,
    pub what: String,
    /// What is likely behind it; empty where the finding says it all.
    pub cause: String,
    /// What to do.
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
