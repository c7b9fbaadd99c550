//! What is done beside serving: counts saved every second, a new policy put in place.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};

use crate::files::{self, replace_synced};
use crate::policy::file::PolicyFile;
use crate::score::{AnotherDay, AnotherVersion, Restored, Scorer, ServedDay, ServedPolicy};

use super::engine::{Engine, now_ms};
use super::options::ServeOptions;

/// How often it looks around.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// How often counts are saved: what a killed server loses at most.
const SAVE_EVERY: Duration = Duration::from_millis(800);
/// Choices to be confirmed that are saved with the counts; older ones count as shown.
const CLAIMS: usize = 20_000;

pub struct Keeper {
    engine: Arc<Engine>,
    day: ServedDay,
    options: ServeOptions,
    /// What the policy's file looked like when it was read last.
    seen: Option<Stamp>,
    saved: Instant,
    failing: bool,
}

/// What changes when a file is replaced or written.
pub type Stamp = (SystemTime, u64, u64);

/// The stamp of the policy's file. It is taken before the file is read: a new file that comes meanwhile is noticed then.
pub fn stamp(ServeOptions { policy, plan, .. }: &ServeOptions) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let path = if policy.starts_with("baseline:") { plan.clone()? } else { PolicyFile::locate(Path::new(policy)) };
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

impl Keeper {
    /// `seen` is the stamp of the policy that serves.
    pub fn new(engine: Arc<Engine>, day: ServedDay, options: ServeOptions, seen: Option<Stamp>) -> Self {
        Self { engine, day, options, seen, saved: Instant::now(), failing: false }
    }

    /// Looks whether there is a new policy and whether the counts should be saved.
    pub fn tend(&mut self, reload: &AtomicBool) {
        let now = stamp(&self.options);
        // Relaxed: a lone flag, read in a polling loop.
        let asked = reload.swap(false, Ordering::Relaxed);
        if asked || (now.is_some() && now != self.seen) {
            self.seen = now;
            match self.renew(asked) {
                Ok(Some(version)) => tracing::info!("now serving {version}"),
                Ok(None) => {}
                Err(e) => {
                    self.engine.metrics.swap_failed();
                    tracing::error!("the new policy cannot be used, the old one serves on: {e:#}");
                }
            }
        }
        if self.saved.elapsed() >= SAVE_EVERY {
            self.saved = Instant::now();
            match self.save() {
                Ok(()) => self.failing = false,
                Err(e) if !self.failing => {
                    self.failing = true;
                    tracing::error!("{e:#}; serving goes on");
                }
                Err(_) => {}
            }
        }
    }

    /// Reads the policy and puts it in place; `None` where it is the one that serves.
    fn renew(&self, asked: bool) -> anyhow::Result<Option<String>> {
        let policy = ServedPolicy::open(&self.options.policy, self.options.plan.as_deref())?;
        let (version, counts) = {
            let scorer = self.engine.scorer();
            (scorer.version().to_owned(), scorer.counts(0))
        };
        if version == policy.version && !asked {
            return Ok(None);
        }
        // The model of the new policy: another night may have learned other values.
        let told = policy.values(&self.options.values)?;
        policy.log_values(&told);
        let day = self.day.clone().told(&told);
        let mut next = Scorer::new(&day, &policy, self.options.score)?;
        next.restore(&counts.to_bytes())?;
        next.prepare();
        next.hand_out(true);
        self.engine.swap(next);
        Ok(Some(policy.version))
    }

    /// Saves the counts.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self) -> anyhow::Result<()> {
        // Copied while requests wait, written down while they do not.
        let counts = self.engine.scorer().counts(CLAIMS);
        let bytes = counts.to_bytes();
        let state = &self.options.state;
        // Synced: a file that is torn by a loss of power would keep the next server from starting.
        replace_synced(state, &bytes).with_context(|| format!("cannot save the counts to {}", state.display()))?;
        self.engine.metrics.saved(now_ms());
        Ok(())
    }
}

/// Locks the counts, which are replaced again and again, by a file beside them.
///
/// # Errors
/// Another server that keeps its counts there, or a folder that cannot be written.
pub fn lock(state: &Path) -> anyhow::Result<File> {
    // Of the file that is replaced, whatever leads to it.
    let mut path = state.canonicalize().unwrap_or_else(|_| state.to_owned()).into_os_string();
    path.push(".lock");
    let failed = || format!("cannot write {}", Path::new(&path).display());
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).with_context(failed)?;
    if !files::lock(&file, Path::new(&path)) {
        bail!("another server keeps its counts in {}: end it, or give this one another --state", state.display());
    }
    Ok(file)
}

/// Whether a file was written on this UTC day, or cannot say.
fn is_of_today(path: &Path) -> bool {
    let written = path.metadata().and_then(|meta| meta.modified()).ok();
    let day = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    written.is_none_or(|written| day(written) == day(SystemTime::now()))
}

/// Goes on from the counts of an earlier server, if there are any of this day; says so.
///
/// # Errors
/// Counts that are there and cannot be read.
pub fn take_over(scorer: &mut Scorer, state: &Path) -> anyhow::Result<bool> {
    let bytes = match std::fs::read(state) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("cannot read the counts {}", state.display())),
    };
    match scorer.restore(&bytes) {
        Ok(restored) => {
            let Restored { new_contracts: new, gone_contracts: gone, .. } = restored;
            if new + gone > 0 {
                tracing::warn!(
                    "the control table has changed since the counts were saved: {new} contracts begin at 0, {gone} are gone; the others keep their counts"
                );
            }
            let shown: f64 = scorer.deliveries().map(|(_, delivered, _)| delivered).sum();
            tracing::info!(
                "goes on from {}: {shown} contract impressions so far; of a server that was killed, the last second is missing",
                state.display()
            );
            Ok(true)
        }
        Err(e) if e.is::<AnotherDay>() || e.is::<AnotherVersion>() && !is_of_today(state) => {
            tracing::info!("{}: {e}; this day begins anew", state.display());
            Ok(false)
        }
        Err(e) => Err(e.context(format!(
            "cannot go on from the counts {}; without them all contracts would be delivered again. Move the file away to begin at 0, or at the counts of \
             --delivered",
            state.display()
        ))),
    }
}
