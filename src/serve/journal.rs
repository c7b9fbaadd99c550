//! Day directories of what came in and what was shown: the input of tomorrow's training.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::log::schema::{AdType, ExposureRow, QueueEntry, TrackRow};
use crate::log::{control, table, write};
use crate::score::{Claim, DayFiles, Exposure, ServedDay};
use crate::{failpoint, files};

use super::metrics::{Omitted, add};

/// Rows that may wait to be written.
const WAITING: usize = 1 << 16;
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// How long rows gather before they are written: nobody is woken for a single one.
const GATHER: Duration = Duration::from_millis(20);

/// Bytes that gather before a table is written in between.
const BUFFER: usize = 1 << 18;

/// Requests whose queues are remembered: for the prices of what was shown, and to find requests that are sent again.
const REMEMBERED: usize = 1 << 18;

enum Line {
    Request(TrackRow),
    Exposure(Shown),
}

/// An impression that was shown.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    pub exposure: Exposure,
    /// When it was told, Unix milliseconds.
    pub arrival_ms: u64,
    /// The choice on this request; `None` if it is forgotten.
    pub claim: Option<Claim>,
}

/// The queues of the newest requests.
#[derive(Default)]
struct Queues {
    order: VecDeque<u64>,
    of: HashMap<u64, Box<[Priced]>>,
}

/// What an entry of a queue was said to be worth.
struct Priced {
    ad_id: u64,
    ecpm: f64,
    pctr: f64,
}

impl Queues {
    /// Remembers the queue of a request; false for a request that is remembered already.
    fn remember(&mut self, row: &TrackRow) -> bool {
        let Entry::Vacant(place) = self.of.entry(row.request_id) else { return false };
        let priced = |&QueueEntry { ad_id, ecpm, pctr, .. }: &QueueEntry| Priced { ad_id, ecpm, pctr };
        place.insert(row.queue.iter().map(priced).collect());
        self.order.push_back(row.request_id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
        true
    }

    /// The row of an impression. Clicks and charges are not known here: a click is written as 0, a charge as the logged eCPM for one impression. `None`
    /// for an auction ad whose price is not known: a charge of 0 would teach that it is worth nothing.
    fn row(&self, Shown { exposure, arrival_ms, claim }: Shown, contract: bool) -> Option<ExposureRow> {
        let Exposure { request_id, ad_id, ts_ms } = exposure;
        let known = self.of.get(&request_id).and_then(|queue| queue.iter().find(|entry| entry.ad_id == ad_id));
        // A request before the last start is in no queue here, and may be among the choices that were saved.
        let claim = claim.filter(|claim| claim.ad_id == ad_id);
        let (ecpm, pctr) = match (known, claim) {
            (Some(&Priced { ecpm, pctr, .. }), _) => (if contract { 0.0 } else { ecpm }, pctr),
            (None, Some(claim)) => (1000.0 * f64::from(claim.worth), f64::from(claim.pctr)),
            (None, None) if contract => (0.0, 0.0),
            (None, None) => return None,
        };
        Some(ExposureRow {
            request_id,
            ts_ms,
            arrival_ms,
            ad_id,
            ad_type: if contract { AdType::Contract } else { AdType::Auction },
            charge: ecpm / 1000.0,
            ecpm,
            pctr,
            click: false,
            propensity: None,
            explore: false,
        })
    }
}

/// Hands rows to a thread that writes them; never waits.
pub struct Journal {
    lines: Mutex<Option<SyncSender<Line>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    omitted: Arc<Omitted>,
}

impl Journal {
    /// Opens `folder/<date>` for the day: its control table, inventory and `day.toml` are written there, rows are appended.
    ///
    /// # Errors
    /// A folder that cannot be written, or that another server writes.
    pub fn open(folder: &Path, served: &ServedDay, files: &DayFiles) -> anyhow::Result<Self> {
        let dir = folder.join(&served.day.date);
        let failed = || format!("cannot write the journal {}", dir.display());
        std::fs::create_dir_all(&dir).with_context(failed)?;
        // First: both are locked, and what another server has copied stays.
        let requests = append(&dir.join("track_log.tsv"), write::TRACK_HEADER).with_context(failed)?;
        let exposures = append(&dir.join("joined_exposure.tsv"), write::EXPOSURE_HEADER).with_context(failed)?;
        let contracts = write_control(&dir, served, &files.control).with_context(failed)?;
        if let Some(path) = &files.inventory {
            copy_table(path, &dir, "inventory").with_context(failed)?;
        }
        write::calendar(&dir, &served.day).with_context(failed)?;
        let (lines, to_write) = sync_channel(WAITING);
        let omitted = Arc::<Omitted>::default();
        let counted = omitted.clone();
        let writer = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || write_all(&to_write, &contracts, requests, exposures, &counted))
            .context("cannot start the journal")?;
        Ok(Self { lines: Mutex::new(Some(lines)), writer: Mutex::new(Some(writer)), omitted })
    }

    /// A request that was decided.
    pub fn request(&self, row: TrackRow) {
        self.send(Line::Request(row));
    }

    /// An impression that was shown.
    pub fn exposure(&self, shown: Shown) {
        self.send(Line::Exposure(shown));
    }

    /// How many rows are not in the tables.
    pub fn omitted(&self) -> &Omitted {
        &self.omitted
    }

    /// Writes what is waiting and ends.
    pub fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
    }

    /// Drops the line where the writer is behind or has ended.
    fn send(&self, line: Line) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_none_or(|lines| lines.try_send(line).is_err()) {
            add(&self.omitted.dropped, 1);
        }
    }
}

/// Writes the control table of a day's directory: the contracts that are served and those of earlier starts, whose requests are
/// in the journal. Returns the ids of all. The table is replaced by rename, and earlier ones with other endings are removed after
/// that: a server that is killed in between leaves two, which the next one joins.
fn write_control(dir: &Path, served: &ServedDay, given: &Path) -> anyhow::Result<HashSet<u64>> {
    let mut all = served.contracts.clone();
    let mut ids: HashSet<u64> = all.iter().map(|row| row.ad_id).collect();
    let earlier: Vec<PathBuf> = table::all(dir, "control").collect();
    if earlier.iter().any(|path| path.canonicalize().ok() == given.canonicalize().ok()) {
        // The journal's table is the one that was given: it is another's, and stays.
        return Ok(ids);
    }
    for path in &earlier {
        all.extend(control::read(path, &served.day)?.into_iter().filter(|row| ids.insert(row.ad_id)));
    }
    let path = dir.join("control.tsv");
    files::replace_synced_with(&path, |to| {
        write::control(to, &all, (served.day.start_ms, served.day.end_ms()))?;
        failpoint::reached("journal.control");
        Ok(())
    })?;
    failpoint::reached("journal.control");
    earlier.iter().filter(|old| **old != path).try_for_each(|old| remove(old))?;
    Ok(ids)
}

/// Copies a table, a file or a folder of parts, into a day's directory, where it is called `name` and keeps its ending.
fn copy_table(path: &Path, dir: &Path, name: &str) -> anyhow::Result<()> {
    let to = dir.join(table::name_of_copy(path, name));
    if path.canonicalize().ok() == to.canonicalize().ok() {
        return Ok(());
    }
    // An earlier copy may have another ending, or more parts.
    table::all(dir, name).try_for_each(|old| remove(&old))?;
    for part in table::parts(path)? {
        let to = match part.strip_prefix(path) {
            Ok(within) if !within.as_os_str().is_empty() => to.join(within),
            _ => to.clone(),
        };
        std::fs::create_dir_all(to.parent().unwrap_or(dir))?;
        std::fs::copy(part, to)?;
    }
    Ok(())
}

/// Removes a table, a file or a folder of parts.
fn remove(table: &Path) -> io::Result<()> {
    if table.is_dir() { std::fs::remove_dir_all(table) } else { std::fs::remove_file(table) }
}

/// A table that is appended to.
#[derive(Debug)]
struct Table<W> {
    to: W,
    /// Whole rows that are to be written; of the first, `to` may have the beginning.
    rows: Vec<u8>,
}

impl<W: Write> Table<W> {
    fn new(to: W) -> Self {
        Self { to, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The buffer is full and cannot be written; the row is not added then.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        if self.rows.len() >= BUFFER {
            self.flush()?;
        }
        write(&mut self.rows)
    }

    /// Writes the buffer.
    ///
    /// # Errors
    /// What could not be written stays in the buffer.
    fn flush(&mut self) -> io::Result<()> {
        let (mut written, mut result) = (0, Ok(()));
        while written < self.rows.len() && result.is_ok() {
            match self.to.write(&self.rows[written..]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => result = Err(e),
            }
        }
        self.rows.drain(..written);
        result
    }

    /// Rows that are not written, or not to their end.
    fn waiting(&self) -> u64 {
        self.rows.iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

/// Opens a table for appending and locks it: nobody else appends to it meanwhile. A last line that a killed server left unfinished
/// is cut off.
fn append(path: &Path, header: &str) -> anyhow::Result<Table<File>> {
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    if !files::lock(&file, path) {
        bail!("another server writes {}: end it, or give this one another --journal", path.display());
    }
    let whole = end_of_lines(&file)?;
    file.set_len(whole)?;
    if whole == 0 {
        writeln!(file, "{header}")?;
    }
    Ok(Table::new(file))
}

/// Where the last whole line of a file ends. In the evening the file is large: it is read from its end.
fn end_of_lines(file: &File) -> io::Result<u64> {
    let mut block = vec![0; 1 << 16];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let begin = end.saturating_sub(block.len() as u64);
        let block = &mut block[..(end - begin) as usize];
        file.read_exact_at(block, begin)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// Writes lines until nobody can send any more; `contracts` are those of the control table.
fn write_all(
    lines: &Receiver<Line>,
    contracts: &HashSet<u64>,
    mut requests: Table<impl Write>,
    mut exposures: Table<impl Write>,
    omitted: &Omitted,
) {
    let mut queues = Queues::default();
    let mut failing = false;
    let mut flushed = Instant::now();
    loop {
        let mut result = match lines.try_recv() {
            Ok(Line::Request(row)) => {
                if queues.remember(&row) {
                    requests.add(|to| write::track_row(to, &row))
                } else {
                    add(&omitted.repeated, 1);
                    Ok(())
                }
            }
            Ok(Line::Exposure(shown)) => match queues.row(shown, contracts.contains(&shown.exposure.ad_id)) {
                Some(row) => exposures.add(|to| write::exposure_row(to, &row)),
                None => {
                    add(&omitted.without_price, 1);
                    Ok(())
                }
            },
            Err(TryRecvError::Empty) => {
                std::thread::sleep(GATHER);
                Ok(())
            }
            Err(TryRecvError::Disconnected) => break,
        };
        add(&omitted.dropped, u64::from(result.is_err()));
        if flushed.elapsed() >= FLUSH_EVERY {
            flushed = Instant::now();
            let flushing = requests.flush().and(exposures.flush());
            if failing && flushing.is_ok() {
                failing = false;
                let dropped = omitted.dropped.load(Ordering::Relaxed);
                tracing::info!("the journal is written again; {dropped} rows are missing from it");
            }
            result = result.and(flushing);
        }
        if let (Err(e), false) = (result, failing) {
            failing = true;
            tracing::error!("the journal cannot be written; rows for which its buffer has no room are dropped: {e}");
        }
    }
    if let Err(e) = requests.flush().and(exposures.flush()) {
        let lost = requests.waiting() + exposures.waiting();
        add(&omitted.dropped, lost);
        tracing::error!("the end of the journal cannot be written, {lost} rows are missing from it: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::score::Stage;

    use super::*;
    use crate::log::day::Day;
    use crate::log::schema::DAY_MS;

    fn request(request_id: u64, queue: Vec<QueueEntry>) -> TrackRow {
        TrackRow { request_id, ts_ms: 5, slot_id: 1, region: 1, gender: 0, age: 0, user_id: None, queue }
    }

    #[test]
    fn an_unfinished_line_is_cut_off_wherever_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.tsv");
        let block = 1 << 16;
        for (whole, rest) in
            [(0, 0), (0, 5), (7, 0), (7, 3), (block, 0), (block, 2 * block), (3 * block + 1, block - 1)]
        {
            let mut bytes = vec![b'x'; whole + rest];
            if let Some(last) = whole.checked_sub(1) {
                bytes[last] = b'\n';
            }
            std::fs::write(&path, &bytes).unwrap();
            let mut table = append(&path, "head").unwrap();
            table.add(|to| writeln!(to, "more")).unwrap();
            table.flush().unwrap();
            let head = if whole == 0 { "head\n" } else { "" };
            let expected = [&bytes[..whole], head.as_bytes(), b"more\n"].concat();
            assert!(std::fs::read(&path).unwrap() == expected, "{whole} and {rest}");
        }
    }

    /// An exposure of another ad than the one that was chosen had a charge of 0.
    #[test]
    fn an_exposure_has_the_price_of_its_own_queue() {
        let entry = |ad_id, ad_type, ecpm, pctr| QueueEntry { ad_id, ad_type, ecpm, pctr, filter: 0, boost: 1.0 };
        let queue = vec![entry(7, AdType::Auction, 3097.9, 0.052_19), entry(9, AdType::Contract, 0.0, 0.02)];
        let mut queues = Queues::default();
        assert!(queues.remember(&request(1, queue)));
        let written = |request_id, ad_id, contract, claim| {
            let exposure = Exposure { request_id, ad_id, ts_ms: 6 };
            queues.row(Shown { exposure, arrival_ms: 8, claim }, contract)
        };
        let row = |request_id, ad_id, contract| written(request_id, ad_id, contract, None);
        let shown = row(1, 7, false).unwrap();
        assert_eq!(
            (shown.charge, shown.ecpm, shown.pctr, shown.ts_ms, shown.arrival_ms),
            (3.0979, 3097.9, 0.052_19, 6, 8)
        );
        let shown = row(1, 9, true).unwrap();
        assert_eq!((shown.charge, shown.ecpm, shown.pctr, shown.ad_type), (0.0, 0.0, 0.02, AdType::Contract));
        // Of a request that is not remembered, or an ad that was not in its queue.
        assert!(row(2, 7, false).is_none() && row(1, 8, false).is_none());
        assert_eq!(row(2, 9, true).map(|shown| (shown.charge, shown.pctr)), Some((0.0, 0.0)));
        // The choice is remembered longer than the queue.
        let claim = Claim { ad_id: 7, contract: None, pctr: 0.25, worth: 2.5, stage: Stage::Open };
        let known = written(2, 7, false, Some(claim)).unwrap();
        assert_eq!((known.charge, known.ecpm, known.pctr), (2.5, 2500.0, 0.25));
        assert!(written(2, 8, false, Some(claim)).is_none());
    }

    #[test]
    fn the_oldest_queues_are_forgotten() {
        let mut queues = Queues::default();
        assert!((0..REMEMBERED as u64 + 3).all(|id| queues.remember(&request(id, vec![]))));
        assert!(!queues.remember(&request(REMEMBERED as u64, vec![])), "it is remembered");
        assert_eq!((queues.of.len(), queues.order.len()), (REMEMBERED, REMEMBERED));
        assert!(!queues.of.contains_key(&2) && queues.of.contains_key(&3));
    }

    /// Requests of the morning name contracts that the control table has no more after a restart: they were bad rows.
    #[test]
    fn contracts_of_an_earlier_start_stay_in_the_control_table() {
        let dir = tempfile::tempdir().unwrap();
        let day = Day { date: "2026-01-05".into(), start_ms: 20_458 * DAY_MS, length_ms: DAY_MS };
        let path = dir.path().join("control.tsv");
        let start = |ids: &[u64]| {
            let rows: String = ids.iter().map(|id| format!("{id}\t10\t2.5\t15\n")).collect();
            std::fs::write(&path, format!("ad_id\trequired\tpenalty\tclick_value\n{rows}")).unwrap();
            let files = DayFiles { control: path.clone(), inventory: None, day: None };
            let contracts = control::read(&path, &day).unwrap();
            let served = ServedDay { day: day.clone(), contracts, forecast: None, values: None };
            Journal::open(&dir.path().join("days"), &served, &files).unwrap().close();
            let written = table::find(&dir.path().join("days/2026-01-05"), "control").unwrap().unwrap();
            control::read(&written, &day).unwrap().iter().map(|row| row.ad_id).collect::<BTreeSet<_>>()
        };
        assert_eq!(start(&[1, 2]), BTreeSet::from([1, 2]));
        assert_eq!(start(&[3, 2]), BTreeSet::from([1, 2, 3]));
        assert_eq!(start(&[1]), BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn a_second_server_does_not_write_the_same_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.tsv");
        let first = append(&path, "head").unwrap();
        let error = append(&path, "head").unwrap_err().to_string();
        assert!(error.contains("--journal"), "{error}");
        drop(first);
        append(&path, "head").unwrap();
    }

    /// The day is read back with all of its hours, and its tables under the names by which they are found.
    #[test]
    fn a_journal_keeps_the_length_of_its_day_and_finds_its_tables_again() {
        let dir = tempfile::tempdir().unwrap();
        let day = Day { date: "2026-10-25".into(), start_ms: 20_751 * DAY_MS - 7_200_000, length_ms: 25 * 3_600_000 };
        let served = ServedDay { day: day.clone(), contracts: vec![], forecast: None, values: None };
        let written = dir.path().join("days/2026-10-25");
        let start = |inventory: &Path| {
            let control = dir.path().join("control.tsv");
            let files = DayFiles { control, inventory: Some(inventory.to_owned()), day: None };
            Journal::open(&dir.path().join("days"), &served, &files).unwrap().close();
            assert_eq!(table::find(&written, "control").unwrap(), Some(written.join("control.tsv")));
            table::find(&written, "inventory").unwrap().unwrap()
        };
        let parts = dir.path().join("inventory");
        std::fs::create_dir(&parts).unwrap();
        std::fs::write(parts.join("part-0.csv"), "a part").unwrap();
        assert_eq!(std::fs::read(start(&parts).join("part-0.csv")).unwrap(), b"a part");
        assert_eq!(Day::read(&written).unwrap(), Some(day));
        // A file with another ending is read as text.
        for (name, copy) in [("supply-2026.10.25.tsv.gz", "inventory.tsv.gz"), ("supply.txt", "inventory.tsv")] {
            let file = dir.path().join(name);
            std::fs::write(&file, "anything").unwrap();
            assert_eq!(start(&file), written.join(copy));
        }
    }

    /// Takes so many bytes, then refuses some writes, then takes all.
    struct Disk<'a> {
        bytes: &'a mut Vec<u8>,
        room: usize,
        refusals: usize,
    }

    impl Write for Disk<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                if self.refusals > 0 {
                    self.refusals -= 1;
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.room = usize::MAX;
            }
            let taken = bytes.len().min(self.room);
            self.bytes.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Half a row was followed by another one, and rows that the disk did not take were counted nowhere.
    #[test]
    fn what_a_full_disk_does_not_take_is_counted_and_all_lines_are_whole() {
        let entry = QueueEntry { ad_id: 7, ad_type: AdType::Auction, ecpm: 100.5, pctr: 0.125, filter: 0, boost: 1.0 };
        let rows = 1000;
        for refusals in [50, usize::MAX] {
            let (lines, to_write) = sync_channel(rows);
            for id in 0..rows as u64 {
                assert!(lines.try_send(Line::Request(request(id, vec![entry; 100]))).is_ok());
            }
            drop(lines);
            let (mut bytes, omitted) = (Vec::new(), Omitted::default());
            let disk = Disk { bytes: &mut bytes, room: BUFFER + 12_345, refusals };
            write_all(&to_write, &HashSet::new(), Table::new(disk), Table::new(io::sink()), &omitted);
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
            assert!(whole == bytes.len() || refusals == usize::MAX, "the last line has no end");
            let text = std::str::from_utf8(&bytes[..whole]).unwrap();
            let mut length = None;
            let ids = text.lines().map(|line| {
                let (id, rest) = line.split_once('\t').unwrap();
                assert_eq!(*length.get_or_insert(rest.len()), rest.len(), "{line}");
                id.parse::<u64>().unwrap()
            });
            assert!(ids.is_sorted());
            let (written, dropped) = (text.lines().count(), omitted.dropped.load(Ordering::Relaxed) as usize);
            assert!(dropped > 0 && written + dropped == rows, "{written} written, {dropped} dropped");
        }
    }
}
