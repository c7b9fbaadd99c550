//! The checkpointer process: copies snapshots out of shared memory to disk, off the learner's path.
//!
//! The learner fills a half of [`crate::shm::Halves`] and goes on. This process finds it complete, brings its copy of the replay
//! pool up to date from what changed, writes everything ([`crate::run::snapshot`]) and declares the snapshot committed; only
//! then may the learner begin the next one. It may die anywhere: the half stays as it is until it is committed, and its
//! successor starts from the newest snapshot on disk, which is what the half's changes are counted from.
//!
//! [`rows`] is its sister in runs of `admix values train`.

pub mod rows;

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::run::alive::while_alive;
use crate::run::context::read_node;
use crate::run::snapshot::files::Disk;
use crate::run::snapshot::pool::{self, PoolBlock, PoolBlocks};
use crate::run::snapshot::{RankState, RunState, SnapshotFolder, newest};
use crate::run::{RunDirectory, Segments, failpoint};
use crate::settings::Settings;
use crate::shm::control::{ProcessSlot, STOP_ALL, STOP_NOW};
use crate::shm::{Complete, Control, Halves, Role, ShmError};

const NAP: Duration = Duration::from_millis(100);
/// Before a snapshot that the file system refused is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts at the last snapshot of a run that ends.
const LAST_ATTEMPTS: u32 = 3;

/// Runs the checkpointer until the run stops and everything complete is on disk.
///
/// # Errors
/// Anything that keeps it from working but a file system that refuses: that is told, counted and tried again.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let settings = Settings::read_resolved(&directory.config())?;
    let world = read_node(directory)?.world(settings.learner.ranks);
    let segments = Segments::open_for_checkpointer(prefix, world.local)?;
    let halves = segments.halves.as_ref().context("the run takes no snapshots")?;
    let control = &segments.control;
    let slot = &control.processes[Role::Checkpointer.slot()];
    slot.sign_in(Role::Checkpointer.kind());
    let root = directory.checkpoints();
    let mut writer = Writer {
        folder: SnapshotFolder::new(&root, Disk),
        directory,
        keep: settings.checkpoint.keep,
        others: &segments.rank_halves,
        pools: vec![PoolBlocks::new(settings.of_rank(world.ranks).learner.pool); world.local],
    };
    if let Some(base) = while_alive(|| slot.beat(), || newest(&root))? {
        let base = base.dealt_to(world);
        let pools = std::iter::once(base.pool).chain(base.ranks.into_iter().map(|part| part.pool));
        for (pool, blocks) in writer.pools.iter_mut().zip(pools) {
            pool.extend(blocks)?;
        }
        // A predecessor may have died between the rename and saying so.
        writer.commit_others(base.number);
        halves.commit(base.number);
    }
    serve(control, slot, halves, &mut writer)
}

/// Who writes complete snapshots to disk.
trait Keeper {
    /// Writes a snapshot; returns its bytes.
    ///
    /// # Errors
    /// [`ShmError`] for a snapshot that is damaged in memory; any other error is tried again.
    fn commit(&mut self, complete: &Complete<'_>) -> anyhow::Result<u64>;

    /// Drops what snapshot `number`, which is on disk, replaces.
    fn committed(&mut self, number: u64);

    /// Goes on behind a half that is damaged, if that is possible.
    ///
    /// # Errors
    /// `error`, where it is not.
    fn damaged(&mut self, halves: &Halves, error: ShmError) -> anyhow::Result<()>;
}

/// Writes what is complete until the run stops and everything complete is on disk.
fn serve(control: &Control, slot: &ProcessSlot, halves: &Halves, keeper: &mut impl Keeper) -> anyhow::Result<()> {
    let mut last_attempts = 0;
    loop {
        let seen = halves.news().value();
        let stopping = control.stop_level();
        if stopping >= STOP_NOW {
            return Ok(());
        }
        match halves.pending() {
            Ok(Some(complete)) => {
                match write_alive(control, slot, || keeper.commit(&complete)) {
                    Ok(bytes) => {
                        halves.commit(complete.snapshot);
                        let stats = &control.checkpoint;
                        stats.snapshots.add(1);
                        stats.bytes.add(bytes);
                        write_alive(control, slot, || keeper.committed(complete.snapshot));
                    }
                    Err(e) if e.is::<ShmError>() => {
                        control.checkpoint.failures.add(1);
                        keeper.damaged(halves, e.downcast()?)?;
                    }
                    Err(e) => {
                        control.checkpoint.failures.add(1);
                        // Whoever waits for the snapshot looks at the failures.
                        halves.news().ring();
                        tracing::warn!("snapshot {} cannot be written, training goes on: {e:#}", complete.snapshot);
                        last_attempts += u32::from(stopping >= STOP_ALL);
                        anyhow::ensure!(last_attempts < LAST_ATTEMPTS, "the last snapshot cannot be written");
                        std::thread::sleep(RETRY);
                    }
                }
            }
            Ok(None) if stopping >= STOP_ALL => return Ok(()),
            Ok(None) => {
                halves.news().wait(seen, NAP);
            }
            Err(e) => {
                control.checkpoint.failures.add(1);
                keeper.damaged(halves, e)?;
            }
        }
        slot.beat();
    }
}

/// Gives signs of life while something is written, and counts the time: a slow disk is no process that hangs, and one that would be started in its
/// place would have the same disk.
fn write_alive<T>(control: &Control, slot: &ProcessSlot, write: impl FnOnce() -> T) -> T {
    let mut last = Instant::now();
    let beat = move || {
        slot.beat();
        let now = Instant::now();
        control.checkpoint.write_ns.add((now - last).as_nanos() as u64);
        last = now;
    };
    while_alive(beat, write)
}

struct Writer<'a> {
    folder: SnapshotFolder<'a, Disk>,
    directory: &'a RunDirectory,
    keep: usize,
    /// Parts of the learner's further ranks, from rank 1. That of the first rank becomes ready last.
    others: &'a [Halves],
    /// The replay pool of each rank as of the newest snapshot on disk.
    pools: Vec<PoolBlocks>,
}

impl Writer<'_> {
    /// Says that snapshots up to `number` are on disk to all ranks but the first: that one begins the next.
    fn commit_others(&self, number: u64) {
        self.others.iter().for_each(|halves| halves.commit(number));
    }
}

/// Returns the parts of the learner's further ranks that belong to a snapshot.
///
/// # Errors
/// [`ShmError::DamagedSnapshot`]: a part is damaged, missing or of another update.
fn parts_of<'a>(others: &'a [Halves], complete: &Complete<'_>) -> Result<Vec<Complete<'a>>, ShmError> {
    let damaged = |what| ShmError::DamagedSnapshot { snapshot: complete.snapshot, what };
    let part = |halves: &'a Halves| {
        let part = halves.pending()?.filter(|part| part.snapshot == complete.snapshot);
        let part = part.ok_or_else(|| damaged("the part of a rank is missing"))?;
        if part.update == complete.update { Ok(part) } else { Err(damaged("the part of a rank is of another update")) }
    };
    others.iter().map(part).collect()
}

impl Keeper for Writer<'_> {
    fn commit(&mut self, complete: &Complete<'_>) -> anyhow::Result<u64> {
        let parts = parts_of(self.others, complete)?;
        let mut pools = self.pools.clone();
        for (rank, (pool, part)) in pools.iter_mut().zip(std::iter::once(complete).chain(&parts)).enumerate() {
            let blocks =
                if rank == 0 { RunState::decode(part.dense)?.blocks } else { RankState::decode(part.dense)?.blocks };
            let newer = pool::parse(part.sparse)?;
            // A learner that started again from an earlier snapshot numbers its blocks from there.
            pool.forget_from(blocks.saturating_sub(newer.len() as u64));
            pool.extend(newer)?;
        }
        let heads: Vec<Vec<[u8; 16]>> = pools.iter().map(|pool| pool.iter().map(PoolBlock::head).collect()).collect();
        let mut pieces: Vec<Vec<&[u8]>> = heads
            .iter()
            .zip(&pools)
            .map(|(heads, pool)| {
                heads.iter().zip(pool.iter()).flat_map(|(head, block)| [&head[..], &block.bytes]).collect()
            })
            .collect();
        let ranks: Vec<(&[u8], Vec<&[u8]>)> = parts.iter().map(|part| part.dense).zip(pieces.split_off(1)).collect();
        let best = Some(self.directory.best()).filter(|path| path.exists());
        anyhow::ensure!(!failpoint::reached("checkpoint.commit"), "made to fail");
        let (number, update) = (complete.snapshot, complete.update);
        let bytes = self.folder.commit(number, update, complete.dense, &pieces[0], &ranks, best.as_deref())?;
        failpoint::reached("checkpoint.committed");
        drop((pieces, ranks));
        self.commit_others(number);
        self.pools = pools;
        Ok(bytes)
    }
    fn committed(&mut self, number: u64) {
        if let Err(e) = self.folder.prune(number, self.keep) {
            tracing::warn!("an old snapshot cannot be removed: {e:#}");
        }
    }

    /// Only broken memory or a stray write gets here. The next snapshot will be whole again, with the pool as it is from here on.
    fn damaged(&mut self, halves: &Halves, error: ShmError) -> anyhow::Result<()> {
        tracing::error!("{error}");
        self.pools.iter_mut().for_each(PoolBlocks::clear);
        self.commit_others(halves.complete());
        halves.commit(halves.complete());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{HalfShape, Part};

    /// A large snapshot was written without a sign of life, and main killed the checkpointer.
    #[test]
    fn a_snapshot_is_written_with_signs_of_life() {
        let control = Control::create(&format!("admix-test-{}-alive", std::process::id())).unwrap();
        let slot = &control.processes[Role::Checkpointer.slot()];
        slot.sign_in(Role::Checkpointer.kind());
        let first = slot.last_beat_ms();
        let written = || control.checkpoint.write_ns.get();
        let during = write_alive(&control, slot, || {
            let begun = Instant::now();
            while (slot.last_beat_ms() == first || written() == 0) && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            written()
        });
        assert!(during > 0 && slot.last_beat_ms() > first && written() >= during);
    }

    /// Such a snapshot was tried again once a second for the rest of the run.
    #[test]
    fn a_snapshot_whose_parts_do_not_belong_together_is_damaged_and_not_tried_again() {
        let shape = HalfShape { dense: 100, sparse: 100 };
        let halves = |name: &str| {
            let name = format!("admix-test-{}-{name}", std::process::id());
            Halves::create(&name, shape).unwrap()
        };
        let first = halves("parts");
        let others = [halves("parts1"), halves("parts2")];
        let put = |halves: &Halves, snapshot, update| {
            halves.write(Part::Dense, snapshot, update, [&b"dense"[..]]).unwrap();
            halves.write(Part::Sparse, snapshot, update, [&b"sparse"[..]]).unwrap();
        };
        let parts = |others| parts_of(others, &first.pending().unwrap().unwrap()).map(|parts| parts.len());
        put(&first, 1, 8);
        put(&others[0], 1, 8);
        assert!(matches!(parts(&others), Err(ShmError::DamagedSnapshot { snapshot: 1, .. })), "one is missing");
        put(&others[1], 1, 9);
        assert!(matches!(parts(&others), Err(ShmError::DamagedSnapshot { snapshot: 1, .. })), "of another update");
        assert_eq!(parts(&others[..1]).unwrap(), 1);
        // Behind it, all begin the next one.
        [&first, &others[0], &others[1]].into_iter().for_each(|halves| halves.commit(1));
        [&first, &others[0], &others[1]].into_iter().for_each(|halves| put(halves, 2, 10));
        assert_eq!(parts(&others).unwrap(), 2);
    }
}
