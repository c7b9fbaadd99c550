//! World files: where settings are read from, and where a written world keeps its own.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::settings::WorldSettings;

/// File of a written world's settings, with everything drawn, beside its days.
pub const WORLD_FILE: &str = "world.toml";

/// Reads and validates a world file (TOML); keys left out keep their defaults.
///
/// # Errors
/// A file that cannot be read or is wrong, with its name and the reason.
pub fn load(path: &Path) -> Result<WorldSettings> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the world file {}", path.display()))?;
    parse(&text).with_context(|| format!("in the world file {}", path.display()))
}

fn parse(text: &str) -> Result<WorldSettings> {
    let settings: WorldSettings = toml::from_str(text)?;
    settings.validate()?;
    settings.check_draws()?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default_world_and_the_default_is_valid() {
        assert_eq!(parse("").unwrap(), WorldSettings::default());
    }

    #[test]
    fn errors_name_the_key() {
        for (text, key) in [
            ("requsts = 5", "requsts"),
            ("rate = 1.5", "`rate = 1.5`"),
            ("fill = nan", "fill"),
            ("queue = 1", "queue"),
            ("auction_ads = 20", "auction_ads"),
            ("start_date = \"2026-02-30\"", "2026-02-30"),
            ("jump = { day = 0, hour = 25.0, factor = 2.0 }", "jump.hour"),
        ] {
            let message = format!("{:#}", parse(text).unwrap_err());
            assert!(message.contains(key), "{text}: {message}");
        }
    }
}
