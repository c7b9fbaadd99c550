//! The other files of the run directory that the report's page uses.

use std::path::Path;

use serde_json::Value;

use super::records::Records;

/// Contents of the other files of the run directory.
pub struct Surroundings {
    pub name: String,
    pub manifest: Value,
    pub records: Records,
    pub config: String,
}

impl Surroundings {
    /// Reads the files that exist; missing ones are left out of the page.
    pub fn read(run: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(run.join(name)).unwrap_or_default();
        let canonical = run.canonicalize().unwrap_or_else(|_| run.to_owned());
        Self {
            name: canonical.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            manifest: serde_json::from_str(&text("manifest.json")).unwrap_or_default(),
            records: Records::read(run).unwrap_or_default(),
            config: text("config.toml"),
        }
    }
}
