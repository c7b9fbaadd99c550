//! Generates the study's worlds and reuses existing ones.

use std::path::Path;

use anyhow::Context as _;

use crate::synth;

use super::config::{Source, World};

/// Generates the days of a world unless they exist already, made from the same settings.
///
/// # Errors
/// A folder that cannot be written.
pub fn provide(world: &World, out: &Path) -> anyhow::Result<()> {
    let Source::Synth(settings) = &world.source else { return Ok(()) };
    let folder = world.folder(out);
    // Written last, so that an incomplete world is generated again.
    let stamp = folder.join(synth::WORLD_FILE);
    let wanted = toml::to_string(&settings.drawn()?).context("world settings are plain values")?;
    let there = world.dirs(out).iter().all(|dir| dir.is_dir());
    if there && std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    synth::generate(settings, &folder, settings.days, settings.seed, &|done| {
        say!("world {}: {done} of {} days written", world.name, settings.days);
    })
}
