//! One pass over a day's track log: rows are parsed on all cores, judged in their order, and handed on while the table is read.
//!
//! A thread reads lumps of text or row groups ([`table::Lumps`]). Workers parse them and collect what the caller needs of the rows
//! ([`Gather`]). The calling thread takes the batches in the order of the table, sets bad rows aside and hands the rest to a [`Taker`].
//! The amount of data in flight is bounded, so memory does not grow with the day. Repeated ids are known only at the end of a pass
//! ([`ids`]): if there are any, the pass is repeated with the repeated rows known.

mod ids;
mod progress;
mod workers;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::compile::{CompileOptions, check_share};
use super::compiled::Counts;
use super::day::Day;
use super::error::{BadValue, LogError, Result};
use super::parts::PassState;
use super::quarantine::Quarantine;
use super::queue::QueueRules;
use super::schema::TrackRow;
use super::table::{self, Lumps, Table};
use super::{control, keep, track};
use ids::{Ids, Repeated};
pub use progress::Progress;
use workers::{Parsed, Step};

/// Data that workers keep of the good rows of a batch.
pub trait Gather: Default + Send {
    /// Adds a row whose contract entries all have a control row.
    fn push(&mut self, row: TrackRow, rules: &QueueRules);

    /// Forgets all rows and keeps the memory for the next batch.
    fn clear(&mut self);
}

/// Consumer of the batches of a pass.
pub trait Taker {
    type Gathered: Gather;

    /// Whether it stores savepoints of passes that begin at the first row.
    fn stores(&self) -> bool {
        false
    }

    /// Goes back to the savepoint of an earlier process. Returns the pass as it was, and the file of its ids.
    fn resume(&mut self) -> Option<(PassState, File)> {
        None
    }

    /// Returns whether a savepoint is due after `rows` rows.
    fn is_due(&self, _rows: u64) -> bool {
        false
    }

    /// Stores a savepoint with the ids since the one before.
    fn store(&mut self, _pass: PassState, _ids: &[u64]) {}

    /// Starts a pass; data from an earlier pass must be discarded.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn begin(&mut self) -> Result<()>;

    /// Takes the gathered data of a batch, with a flag for each gathered row: false if its request id occurred in an earlier row.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn take(&mut self, gathered: &mut Self::Gathered, keep: &[bool]) -> Result<Next>;
}

/// The opened tables of a day, with the day and the contracts.
pub struct Source {
    pub day: Day,
    pub rules: QueueRules,
    dir: PathBuf,
    track_path: PathBuf,
    options: CompileOptions,
}

/// Counts of a pass.
pub struct Scanned {
    pub counts: Counts,
}

/// Answer of a taker after each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    GoOn,
    /// Start the pass again; [`Source::scan`] returns `None`.
    Again,
}

impl Source {
    /// Opens the tables of a log directory.
    ///
    /// # Errors
    /// Any [`LogError`] of the tables; a track log without a usable row, whose bad rows are then in the quarantine file.
    pub fn open(dir: &Path, options: CompileOptions) -> Result<Self> {
        let track_path = table::require(dir, "track_log", track::COLUMNS)?;
        let control_path = table::require(dir, "control", control::COLUMNS)?;
        let day = match Day::read(dir)? {
            Some(day) => day,
            None => first_day(&track_path, dir, options)?,
        };
        let rules = QueueRules::new(control::read(&control_path, &day)?, options.complete_queues);
        Ok(Self { day, rules, dir: dir.to_owned(), track_path, options })
    }

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

/// Returns the UTC day of the first good row, for a directory without `day.toml`.
fn first_day(track_path: &Path, dir: &Path, options: CompileOptions) -> Result<Day> {
    let mut table = Table::open(track_path, track::COLUMNS)?;
    table.warn_unknown(0);
    let names = PartNames { parted: table.is_parted(), names: table.part_names() };
    let mut row = table.row();
    let mut quarantine = Quarantine::begin(dir);
    while table.read(&mut row)? {
        crate::cancel::point();
        quarantine.counts.rows += 1;
        match track::parse(&row) {
            Ok(request) => return Ok(Day::of_timestamp(request.ts_ms)),
            Err(bad) => quarantine.set_aside(names.of(row.place.part), row.place.line, &bad),
        }
    }
    quarantine.finish();
    check_share(&quarantine.counts, options, dir)?;
    Err(LogError::Empty { path: track_path.to_owned() })
}

/// Names of the part files of a table for lists.
#[derive(Default)]
struct PartNames {
    parted: bool,
    names: Vec<String>,
}

impl PartNames {
    /// Returns the name of a part, and whether the table has several.
    fn of(&self, part: u32) -> (&str, bool) {
        (&self.names[part as usize], self.parted)
    }
}

/// State of a pass.
struct Pass {
    quarantine: Quarantine,
    names: PartNames,
    /// Ids of the rows that were parsed; `None` where repeated ones are known.
    ids: Option<Ids>,
    /// Lumps that are whole, and the bytes of the table up to now.
    lumps: u64,
    read: u64,
    /// Rows that were parsed, before the checks that need the whole table.
    seen: u64,
    good: u64,
    latest: u64,
}

impl Pass {
    fn begin(dir: &Path, ids: Option<Ids>) -> Self {
        let (quarantine, names) = (Quarantine::begin(dir), PartNames::default());
        Self { quarantine, names, ids, lumps: 0, read: 0, seen: 0, good: 0, latest: 0 }
    }

    /// Returns what a savepoint needs, with the ids since the last one; `None` if the list of bad rows cannot be written.
    fn so_far(&mut self) -> Option<(PassState, Vec<u64>)> {
        let set_aside = self.quarantine.set_aside_so_far()?;
        let &mut Self { lumps, read, seen, good, latest, .. } = self;
        let (fresh, ids) = self.ids.as_mut().map(Ids::take_fresh).unwrap_or_default();
        Some((PassState { lumps, read, seen, good, latest, ids, set_aside }, fresh))
    }

    /// Judges the rows of a batch in order; `keep` gets a flag for each gathered row.
    fn take<G>(&mut self, batch: &Parsed<G>, known: Option<&Repeated>, keep: &mut Vec<bool>) -> Result<()> {
        keep.clear();
        self.read += batch.bytes;
        self.quarantine.counts.rows += batch.rows;
        let mut bad = batch.bad.iter().peekable();
        for i in 0..=batch.requests.len() {
            while let Some(b) = bad.next_if(|b| b.before == i && !b.parsed) {
                self.quarantine.set_aside(self.names.of(batch.part), b.line, &b.why);
            }
            let Some(r) = batch.requests.get(i) else { break };
            let unknown = bad.next_if(|b| b.before == i && b.parsed);
            let number = self.seen;
            self.seen += 1;
            if known.is_some_and(|known| known.holds(number)) {
                let why =
                    BadValue::new("request_id", &r.id.to_string(), "duplicate_request", "stands twice in the file");
                self.quarantine.set_aside(self.names.of(batch.part), r.line, &why);
                if unknown.is_none() {
                    keep.push(false);
                }
                continue;
            }
            if let Some(ids) = &mut self.ids {
                ids.push(r.id, number)?;
            }
            self.quarantine.counts.out_of_order += u64::from(r.ts_ms < self.latest);
            self.latest = self.latest.max(r.ts_ms);
            match unknown {
                Some(b) => self.quarantine.set_aside(self.names.of(batch.part), b.line, &b.why),
                None => {
                    keep.push(true);
                    self.good += 1;
                }
            }
        }
        Ok(())
    }
}
