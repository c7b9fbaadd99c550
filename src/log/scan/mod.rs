//! One pass over a day's track log: rows are parsed on all cores, judged in their order, and handed on while the table is read.
//!
//! A thread reads lumps of text or row groups ([`table::Lumps`]). Workers parse them and collect what the caller needs of the rows
//! ([`Gather`]). The calling thread takes the batches in the order of the table, sets bad rows aside and hands the rest to a [`Taker`].
//! The amount of data in flight is bounded, so memory does not grow with the day. Repeated ids are known only at the end of a pass
//! ([`ids`]): if there are any, the pass is repeated with the repeated rows known.

mod ids;
mod progress;
mod workers;

use std::path::{Path, PathBuf};

use super::compile::{CompileOptions, check_share};
use super::compiled::Counts;
use super::day::Day;
use super::error::{BadValue, LogError, Result};
use super::quarantine::Quarantine;
use super::queue::QueueRules;
use super::schema::TrackRow;
use super::table::{self, Lumps, Table};
use super::{control, keep, track};
use ids::{Ids, Repeated};
use progress::Progress;
use workers::Parsed;

/// Data that workers keep of the good rows of a batch.
pub trait Gather: Default + Send {
    /// Adds a row whose contract entries all have a control row.
    fn push(&mut self, row: TrackRow, rules: &QueueRules);
}

/// Consumer of the batches of a pass.
pub trait Taker {
    type Gathered: Gather;

    /// Starts a pass; data from an earlier pass must be discarded.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn begin(&mut self) -> Result<()>;

    /// Takes the gathered data of a batch, with a flag for each gathered row: false if its request id occurred in an earlier row.
    ///
    /// # Errors
    /// Any error ends the scan.
    fn take(&mut self, gathered: Self::Gathered, keep: &[bool]) -> Result<Next>;
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
        loop {
            taker.begin()?;
            let Some((pass, found)) = self.pass(repeated.as_ref(), taker)? else { return Ok(None) };
            let Some(found) = found else {
                self.judge(&pass)?;
                return Ok(Some(Scanned { counts: pass.quarantine.counts }));
            };
            tracing::info!("{}: {} request ids stand twice; reading again", self.track_path.display(), found.count());
            repeated = Some(found);
        }
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

    /// Makes one pass; `None` where the taker asks to start again. Returns the rows that repeat an id if there are any and `known`
    /// is `None`.
    fn pass<T: Taker>(&self, known: Option<&Repeated>, taker: &mut T) -> Result<Option<(Pass, Option<Repeated>)>> {
        let table = Table::open(&self.track_path, track::COLUMNS)?;
        table.warn_unknown(0);
        let names = PartNames { parted: table.is_parted(), names: table.part_names() };
        let mut pass = Pass { quarantine: Quarantine::begin(&self.dir), names, seen: 0, good: 0, latest: 0 };
        let mut ids = known.is_none().then(|| Ids::new(&self.dir, self.options.memory));
        let mut progress = Progress::new(&self.dir, table.bytes());
        let mut keep = Vec::new();
        let done = workers::run(self, table.into_lumps(), |batch: Parsed<T::Gathered>| {
            crate::cancel::point();
            pass.take(&batch, known, ids.as_mut(), &mut keep)?;
            progress.add(batch.rows, batch.bytes);
            taker.take(batch.gathered, &keep)
        })?;
        if done == Next::Again {
            return Ok(None);
        }
        pass.quarantine.finish();
        let found = ids.map(Ids::finish).transpose()?.flatten();
        Ok(Some((pass, found)))
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
    /// Rows that were parsed, before the checks that need the whole table.
    seen: u64,
    good: u64,
    latest: u64,
}

impl Pass {
    /// Judges the rows of a batch in order; `keep` gets a flag for each gathered row.
    fn take<G>(
        &mut self,
        batch: &Parsed<G>,
        known: Option<&Repeated>,
        mut ids: Option<&mut Ids>,
        keep: &mut Vec<bool>,
    ) -> Result<()> {
        keep.clear();
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
            if let Some(ids) = &mut ids {
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
