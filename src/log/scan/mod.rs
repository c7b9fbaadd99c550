//! One pass over a day's track log: rows are parsed on all cores, judged in their order, and handed on while the table is read.
//!
//! A thread reads lumps of text or row groups ([`super::table::Lumps`]). Workers ([`workers`]) parse them, find rows outside the day
//! and unknown contracts, and collect what the caller needs of the good rows ([`Gather`]). The calling thread ([`pass`]) takes the
//! batches in the order of the table, collects request ids, sets bad rows aside (in a second pass repeated ones, too) and hands the rest to a [`Taker`].
//! The amount of data in flight is bounded, so memory does not grow with the day. Repeated ids are known only at the end of a pass
//! ([`ids`]): if there are any, the pass is repeated with the repeated rows known.

mod ids;
mod pass;
mod progress;
mod source;
mod taker;
mod workers;

use super::compiled::Counts;
use super::error::{LogError, Result};
use super::parts::PassState;
use super::quarantine::Quarantine;
use super::table::Table;
use super::track;
use ids::{Ids, Repeated};
use pass::Pass;
pub use progress::Progress;
use source::PartNames;
pub use source::Source;
pub use taker::{Gather, Next, Taker};
use workers::Step;

/// Counts of a pass.
pub struct Scanned {
    pub counts: Counts,
}

impl Source {
    /// Reads all rows in order, writes the bad ones to the quarantine file and gives the rest to `taker`; `None` where the taker asks
    /// to start again.
    ///
    /// # Errors
    /// A file that cannot be read to its end, too many bad rows, no good row, or an error of the taker.
    pub fn scan<T: Taker>(&self, taker: &mut T) -> Result<Option<Scanned>> {
        let mut repeated = None;
        let mut resumed = self.resume(taker);
        loop {
            let mut pass = match resumed.take() {
                Some(pass) => pass,
                None => {
                    taker.begin()?;
                    Pass::begin(&self.dir, repeated.is_none().then(|| self.ids(taker)))
                }
            };
            if self.pass(&mut pass, repeated.as_ref(), taker)? == Next::Again {
                return Ok(None);
            }
            let Some(found) = pass.ids.take().map(Ids::finish).transpose()?.flatten() else {
                self.judge(&pass)?;
                return Ok(Some(Scanned { counts: pass.quarantine.counts }));
            };
            tracing::info!("{}: {} request ids stand twice; reading again", self.track_path.display(), found.count());
            repeated = Some(found);
        }
    }

    fn ids<T: Taker>(&self, taker: &T) -> Ids {
        Ids::new(&self.dir, self.options.memory, taker.stores())
    }

    /// Goes back to the savepoint of an earlier process, if there is one that can be used.
    fn resume<T: Taker>(&self, taker: &mut T) -> Option<Pass> {
        let (state, file) = taker.resume()?;
        let PassState { lumps, read, seen, good, latest, ids: hash, set_aside } = state;
        let quarantine = Quarantine::resume(&self.dir, set_aside)?;
        let mut ids = self.ids(taker);
        if !ids.read(file, seen, hash).ok()? {
            return None;
        }
        tracing::info!("{}: {seen} rows are compiled already; going on after them", self.dir.display());
        Some(Pass { quarantine, names: PartNames::default(), ids: Some(ids), lumps, read, seen, good, latest })
    }

    /// Returns an error if there are too many bad rows or no good one.
    fn judge(&self, pass: &Pass) -> Result<()> {
        let counts = &pass.quarantine.counts;
        if counts.quarantined as f64 > self.options.max_bad_share * counts.rows as f64 {
            return Err(LogError::TooManyBad {
                path: self.track_path.clone(),
                bad: counts.quarantined,
                rows: counts.rows,
                max: self.options.max_bad_share,
                first: pass.quarantine.first().unwrap_or_default().to_owned(),
                quarantine: pass.quarantine.path().to_owned(),
            });
        }
        if pass.good == 0 {
            return Err(LogError::Empty { path: self.track_path.clone() });
        }
        Ok(())
    }

    /// Makes one pass, or the rest of one; `Next::Again` where the taker asks to start again.
    fn pass<T: Taker>(&self, pass: &mut Pass, known: Option<&Repeated>, taker: &mut T) -> Result<Next> {
        let table = Table::open(&self.track_path, track::COLUMNS)?;
        table.warn_unknown(0);
        pass.names = PartNames { parted: table.is_parted(), names: table.part_names() };
        let stores = known.is_none() && taker.stores();
        let mut progress = Progress::new(self.dir.display().to_string(), table.bytes().saturating_sub(pass.read));
        let mut keep = Vec::new();
        let done = workers::run(self, table.into_lumps(), pass.lumps, |step: Step<T::Gathered>| match step {
            Step::Batch(batch) => {
                crate::cancel::point();
                pass.take(batch, known, &mut keep)?;
                progress.add(batch.rows, batch.bytes);
                taker.take(&mut batch.gathered, &keep)
            }
            Step::EndOfLump => {
                pass.lumps += 1;
                if stores && taker.is_due(pass.seen) {
                    match pass.so_far() {
                        Some((state, ids)) => taker.store(state, &ids),
                        None => pass.ids.iter_mut().for_each(Ids::without_savepoints),
                    }
                }
                if !taker.stores() {
                    pass.ids.iter_mut().for_each(Ids::without_savepoints);
                }
                Ok(Next::GoOn)
            }
        })?;
        pass.quarantine.finish();
        Ok(done)
    }
}
