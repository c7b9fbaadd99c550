//! Day directories of what came in and what was shown: the input of tomorrow's training.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::files;
use crate::log::schema::{AdType, ControlRow, ExposureRow, QueueEntry, TrackRow};
use crate::log::{control, table, write};
use crate::score::{Claim, DayFiles, Exposure, ServedDay};

/// Rows that may wait to be written.
const WAITING: usize = 1 << 16;
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// How long rows gather before they are written: nobody is woken for a single one.
const GATHER: Duration = Duration::from_millis(20);

/// Requests whose queues are remembered for the prices of what was shown.
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
    pub contract: bool,
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
    fn remember(&mut self, row: &TrackRow) {
        let priced = |&QueueEntry { ad_id, ecpm, pctr, .. }: &QueueEntry| Priced { ad_id, ecpm, pctr };
        let queue = row.queue.iter().map(priced).collect();
        if self.of.insert(row.request_id, queue).is_none() {
            self.order.push_back(row.request_id);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
    }

    /// The row of an impression. Clicks and charges are not known here: a click is written as 0, a charge as the logged eCPM for one impression. `None`
    /// for an auction ad whose price is not known: a charge of 0 would teach that it is worth nothing.
    fn row(&self, Shown { exposure, arrival_ms, contract, claim }: Shown) -> Option<ExposureRow> {
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
    without_price: Arc<AtomicU64>,
}

/// A row that was not taken: the disk is too slow, or the journal is closed.
#[derive(Debug)]
pub struct Dropped;

impl Journal {
    /// Opens `folder/<date>` for the day: its control table and inventory are copied there, `day.toml` is written, rows are appended.
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
        let gone = gone(&dir, served).with_context(failed)?;
        for (name, path) in [("control", Some(&files.control)), ("inventory", files.inventory.as_ref())] {
            if let Some(path) = path {
                copy_table(path, &dir, name).with_context(failed)?;
            }
        }
        if !gone.is_empty() {
            let all = [&served.contracts[..], &gone].concat();
            remove_table(&dir, "control").with_context(failed)?;
            let whole_day = (served.day.start_ms, served.day.end_ms());
            write::control(&dir.join("control.tsv"), &all, whole_day).with_context(failed)?;
        }
        write::calendar(&dir, &served.day).with_context(failed)?;
        let (lines, to_write) = sync_channel(WAITING);
        let without_price = Arc::<AtomicU64>::default();
        let counted = without_price.clone();
        let writer = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || write_all(&to_write, requests, exposures, &counted))
            .context("cannot start the journal")?;
        Ok(Self { lines: Mutex::new(Some(lines)), writer: Mutex::new(Some(writer)), without_price })
    }

    /// A request that was decided.
    ///
    /// # Errors
    /// It was dropped.
    pub fn request(&self, row: TrackRow) -> Result<(), Dropped> {
        self.send(Line::Request(row))
    }

    /// An impression that was shown.
    ///
    /// # Errors
    /// It was dropped.
    pub fn exposure(&self, shown: Shown) -> Result<(), Dropped> {
        self.send(Line::Exposure(shown))
    }

    /// Exposures of auction ads that were left out, because their requests are not remembered any more.
    pub fn without_price(&self) -> u64 {
        // Relaxed: a statistic.
        self.without_price.load(Ordering::Relaxed)
    }

    /// Writes what is waiting and ends.
    pub fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
    }

    fn send(&self, line: Line) -> Result<(), Dropped> {
        match self.lines.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|lines| lines.try_send(line)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => Err(Dropped),
        }
    }
}

/// The contracts of an earlier start that the day has no more: the journal has requests that name them.
fn gone(dir: &Path, served: &ServedDay) -> anyhow::Result<Vec<ControlRow>> {
    let Some(earlier) = table::find(dir, "control")? else { return Ok(vec![]) };
    let mut rows = control::read(&earlier, &served.day)?;
    rows.retain(|row| served.contracts.iter().all(|now| now.ad_id != row.ad_id));
    Ok(rows)
}

/// Copies a table, a file or a folder of parts, into a day's directory, where it is called `name` and keeps its ending.
fn copy_table(path: &Path, dir: &Path, name: &str) -> anyhow::Result<()> {
    let to = dir.join(table::name_of_copy(path, name));
    if path.canonicalize().ok() == to.canonicalize().ok() {
        return Ok(());
    }
    // An earlier copy may have another ending, or more parts.
    remove_table(dir, name)?;
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

/// Removes all files and folders that could hold a table.
fn remove_table(dir: &Path, name: &str) -> std::io::Result<()> {
    table::all(dir, name)
        .try_for_each(|old| if old.is_dir() { std::fs::remove_dir_all(&old) } else { std::fs::remove_file(&old) })
}

/// A table of the journal, locked: nobody else appends to it meanwhile.
type Table = BufWriter<File>;

/// Opens a table for appending; a last line that a killed server left unfinished is cut off.
fn append(path: &Path, header: &str) -> anyhow::Result<Table> {
    let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    if !files::lock(&file, path) {
        bail!("another server writes {}: end it, or give this one another --journal", path.display());
    }
    let whole = end_of_lines(&file)?;
    file.set_len(whole)?;
    let mut file = BufWriter::with_capacity(1 << 18, file);
    if whole == 0 {
        writeln!(file, "{header}")?;
    }
    Ok(file)
}

/// Where the last whole line of a file ends. In the evening the file is large: it is read from its end.
fn end_of_lines(file: &File) -> std::io::Result<u64> {
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

fn write_all(lines: &Receiver<Line>, mut requests: Table, mut exposures: Table, without_price: &AtomicU64) {
    let mut queues = Queues::default();
    let mut told = false;
    let mut flushed = Instant::now();
    loop {
        let mut result = match lines.try_recv() {
            Ok(Line::Request(row)) => {
                queues.remember(&row);
                write::track_row(&mut requests, &row)
            }
            Ok(Line::Exposure(shown)) => match queues.row(shown) {
                Some(row) => write::exposure_row(&mut exposures, &row),
                None => {
                    // Relaxed: a statistic.
                    without_price.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
            },
            Err(TryRecvError::Empty) => {
                std::thread::sleep(GATHER);
                Ok(())
            }
            Err(TryRecvError::Disconnected) => break,
        };
        if flushed.elapsed() >= FLUSH_EVERY {
            flushed = Instant::now();
            result = result.and_then(|()| requests.flush()).and_then(|()| exposures.flush());
        }
        if let (Err(e), false) = (result, told) {
            told = true;
            tracing::error!("the journal cannot be written, rows are missing from it: {e}");
        }
    }
    if let Err(e) = requests.flush().and_then(|()| exposures.flush()) {
        tracing::error!("the end of the journal cannot be written: {e}");
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
            writeln!(table, "more").unwrap();
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
        queues.remember(&request(1, queue));
        let written = |request_id, ad_id, contract, claim| {
            queues.row(Shown { exposure: Exposure { request_id, ad_id, ts_ms: 6 }, arrival_ms: 8, contract, claim })
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
        (0..REMEMBERED as u64 + 3).for_each(|id| queues.remember(&request(id, vec![])));
        queues.remember(&request(REMEMBERED as u64, vec![]));
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
        let control = dir.path().join("contracts-2026.10.25.tsv.gz");
        std::fs::write(&control, "anything").unwrap();
        let inventory = dir.path().join("inventory");
        std::fs::create_dir(&inventory).unwrap();
        std::fs::write(inventory.join("part-0.csv"), "a part").unwrap();
        let files = DayFiles { control, inventory: Some(inventory), day: None };
        let served = ServedDay { day: day.clone(), contracts: vec![], forecast: None, values: None };
        Journal::open(&dir.path().join("days"), &served, &files).unwrap().close();
        let written = dir.path().join("days/2026-10-25");
        assert_eq!(Day::read(&written).unwrap(), Some(day));
        let found = |name| table::find(&written, name).unwrap();
        assert_eq!(found("control"), Some(written.join("control.tsv.gz")));
        assert_eq!(std::fs::read(found("inventory").unwrap().join("part-0.csv")).unwrap(), b"a part");

        // A file with another ending is read as text.
        let files = DayFiles { control: dir.path().join("control.txt"), inventory: None, day: None };
        std::fs::write(&files.control, "anything").unwrap();
        Journal::open(&dir.path().join("others"), &served, &files).unwrap().close();
        let written = dir.path().join("others/2026-10-25");
        assert_eq!(table::find(&written, "control").unwrap(), Some(written.join("control.tsv")));
    }
}
