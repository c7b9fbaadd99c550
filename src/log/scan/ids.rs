//! Finds request ids that occur in several rows, in bounded memory: sorted runs of ids are spilled to an unnamed file and merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::hash::Hasher as _;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use rayon::slice::ParallelSliceMut as _;
use twox_hash::XxHash3_64;

use crate::log::error::{LogError, Result};
use crate::log::keep;

/// A request id and the number of its row among those that were parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
struct Id {
    id: u64,
    row: u64,
}

/// Request ids of a pass.
pub struct Ids {
    dir: PathBuf,
    held: Vec<Id>,
    most: usize,
    /// Whether each id so far was larger than the one before, so that none can repeat.
    ascending: bool,
    last: Option<u64>,
    rows: u64,
    spill: Option<File>,
    /// First and one past the last id of each run in the spilled file.
    runs: Vec<(u64, u64)>,
    /// Ids since the last savepoint, if there are to be savepoints.
    fresh: Option<Vec<u64>>,
    /// Hash of the ids up to the last savepoint.
    saved: XxHash3_64,
}

/// Rows that repeat the id of an earlier one.
pub struct Repeated(Vec<u64>);

impl Repeated {
    pub fn holds(&self, row: u64) -> bool {
        self.0.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

impl Ids {
    /// Uses an eighth of `memory` bytes; the rest is spilled to the folder for files derived from `dir`. `saves` says that there will be
    /// savepoints.
    pub fn new(dir: &Path, memory: usize, saves: bool) -> Self {
        let most = (memory / 8 / size_of::<Id>()).max(4);
        let (held, runs) = (Vec::new(), Vec::new());
        Self {
            dir: dir.to_owned(),
            held,
            most,
            ascending: true,
            last: None,
            rows: 0,
            spill: None,
            runs,
            fresh: saves.then(Vec::new),
            saved: XxHash3_64::new(),
        }
    }

    /// Adds the ids of the first `rows` rows from the file of a savepoint; returns whether they are those with this hash.
    pub fn read(&mut self, mut file: File, rows: u64, hash: u64) -> Result<bool> {
        let mut ids = vec![0u64; 1 << 16];
        for from in (0..rows).step_by(ids.len()) {
            let piece = &mut ids[..(rows - from).min(1 << 16) as usize];
            file.read_exact(bytemuck::cast_slice_mut(piece)).map_err(|e| LogError::io(&self.dir, e))?;
            (from..).zip(piece).try_for_each(|(row, id)| self.push(*id, row))?;
            self.take_fresh();
        }
        Ok(self.saved.finish() == hash)
    }

    /// Forgets the ids since the last savepoint: there will be no further one.
    pub fn without_savepoints(&mut self) {
        self.fresh = None;
    }

    /// Returns the ids since the last savepoint, and the hash of all ids so far.
    pub fn take_fresh(&mut self) -> (Vec<u64>, u64) {
        let fresh = self.fresh.as_mut().map(std::mem::take).unwrap_or_default();
        self.saved.write(bytemuck::cast_slice(&fresh));
        (fresh, self.saved.finish())
    }

    pub fn push(&mut self, id: u64, row: u64) -> Result<()> {
        self.ascending &= self.last.is_none_or(|last| last < id);
        self.last = Some(id);
        self.rows = row + 1;
        if self.held.len() == self.most {
            self.spill()?;
        }
        self.held.push(Id { id, row });
        self.fresh.iter_mut().for_each(|fresh| fresh.push(id));
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        self.held.par_sort_unstable();
        let folder = keep::scratch(&self.dir);
        let failed = |e| LogError::io(&folder, e);
        let file = match &mut self.spill {
            Some(file) => file,
            None => self.spill.insert(tempfile::tempfile_in(&folder).map_err(failed)?),
        };
        file.write_all(bytemuck::cast_slice(&self.held)).map_err(failed)?;
        let from = self.runs.last().map_or(0, |run| run.1);
        self.runs.push((from, from + self.held.len() as u64));
        self.held.clear();
        Ok(())
    }

    /// Returns the rows that repeat an id; `None` where there are none.
    pub fn finish(mut self) -> Result<Option<Repeated>> {
        if self.ascending {
            return Ok(None);
        }
        if self.spill.is_none() {
            self.held.par_sort_unstable();
            let held = std::mem::take(&mut self.held);
            return self.find(held.into_iter().map(Ok));
        }
        if !self.held.is_empty() {
            self.spill()?;
        }
        self.held = Vec::new();
        let Some(file) = self.spill.take() else { return Ok(None) };
        let each = (self.most / self.runs.len().max(1)).clamp(256, 1 << 16);
        let mut runs: Vec<Run> =
            self.runs.iter().map(|&(at, end)| Run { file: &file, at, end, each, held: Vec::new(), next: 0 }).collect();
        let mut heap = BinaryHeap::new();
        for (i, run) in runs.iter_mut().enumerate() {
            heap.extend(run.next().map_err(|e| LogError::io(&self.dir, e))?.map(|id| Reverse((id, i))));
        }
        let dir = self.dir.clone();
        let merged = std::iter::from_fn(|| {
            let Reverse((id, i)) = heap.pop()?;
            match runs[i].next() {
                Ok(next) => heap.extend(next.map(|id| Reverse((id, i)))),
                Err(e) => return Some(Err(LogError::io(&dir, e))),
            }
            Some(Ok(id))
        });
        self.find(merged)
    }

    /// Finds repeats among sorted ids.
    fn find(&self, sorted: impl Iterator<Item = Result<Id>>) -> Result<Option<Repeated>> {
        let mut found: Option<Repeated> = None;
        let mut last = None;
        for id in sorted {
            let Id { id, row } = id?;
            if last == Some(id) {
                let words = || Repeated(vec![0; self.rows.div_ceil(64) as usize]);
                found.get_or_insert_with(words).0[(row / 64) as usize] |= 1 << (row % 64);
            }
            last = Some(id);
        }
        Ok(found)
    }
}

/// A sorted run in the spilled file, read piece by piece.
struct Run<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    each: usize,
    held: Vec<Id>,
    next: usize,
}

impl Run<'_> {
    fn next(&mut self) -> std::io::Result<Option<Id>> {
        if self.next == self.held.len() {
            let n = (self.end - self.at).min(self.each as u64) as usize;
            self.held.resize(n, Id { id: 0, row: 0 });
            self.next = 0;
            if n == 0 {
                return Ok(None);
            }
            let at = self.at * size_of::<Id>() as u64;
            self.file.read_exact_at(bytemuck::cast_slice_mut(&mut self.held), at)?;
            self.at += n as u64;
        }
        self.next += 1;
        Ok(Some(self.held[self.next - 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(ids: &[u64], most: usize) -> Vec<u64> {
        let dir = tempfile::tempdir().unwrap();
        let mut all = Ids { most, ..Ids::new(dir.path(), 0, false) };
        for (row, &id) in (0..).zip(ids) {
            all.push(id, row).unwrap();
        }
        let found = all.finish().unwrap();
        (0..ids.len() as u64).filter(|&row| found.as_ref().is_some_and(|f| f.holds(row))).collect()
    }

    #[test]
    fn the_first_of_equal_ids_stays_however_many_runs_are_spilled() {
        let ids: Vec<u64> = (0..500u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 180).collect();
        let mut seen = std::collections::HashSet::new();
        let expected: Vec<u64> = (0..).zip(&ids).filter(|&(_, &id)| !seen.insert(id)).map(|(row, _)| row).collect();
        assert!(expected.len() > 100);
        for most in [1, 7, 100, 500, 4096] {
            assert_eq!(repeated(&ids, most), expected, "{most} in memory");
        }
        assert_eq!(repeated(&(0..500).collect::<Vec<_>>(), 16), [0; 0]);
        assert_eq!(repeated(&[], 16), [0; 0]);
    }
}
