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
    use std::collections::BTreeSet;

    use super::super::error_settings::ErrorSettings;
    use super::*;

    #[test]
    fn an_empty_file_is_the_default_world_and_the_default_is_valid() {
        assert_eq!(parse("").unwrap(), WorldSettings::default());
    }

    /// Keys were named in the source alone.
    #[test]
    fn the_default_world_file_names_every_key_with_its_default() {
        let text = include_str!("../../configs/synth/default.toml");
        assert_eq!(parse(text).unwrap(), WorldSettings::default());
        // Optional keys are in comments, which have to parse, too.
        let lines = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(commented) if commented.starts_with('[') || commented.contains(" = ") => commented,
            _ => line,
        });
        let whole = parse(&lines.collect::<Vec<_>>().join("\n")).unwrap();
        assert_eq!(whole.errors, Some(ErrorSettings::default()));
        assert!(whole.jump.is_some() && !whole.draw.is_empty());
        let keys = toml::Table::try_from(&whole).unwrap();
        assert!(keys.len() > 50, "{}", keys.len());
        let missing = keys.keys().map(String::as_str).filter(|key| !text.contains(&format!("\n{key} = ")));
        assert_eq!(missing.collect::<BTreeSet<_>>(), BTreeSet::from(["draw", "errors", "jump"]));
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
