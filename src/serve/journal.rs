//! Day directories of what came in and what was shown: the input of tomorrow's training.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::log::schema::{AdType, DayFile, ExposureRow, TrackRow};
use crate::log::{day, write};
use crate::score::{Claim, DayFiles, Exposure, ServedDay};

/// Rows that may wait to be written.
const WAITING: usize = 1 << 16;
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// How long rows gather before they are written: nobody is woken for a single one.
const GATHER: Duration = Duration::from_millis(20);

enum Line {
    Request(TrackRow),
    Exposure(ExposureRow),
}

/// Hands rows to a thread that writes them; never waits.
pub struct Journal {
    lines: Mutex<Option<SyncSender<Line>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A row that was not taken: the disk is too slow, or the journal is closed.
#[derive(Debug)]
pub struct Dropped;

impl Journal {
    /// Opens `folder/<date>` for the day: its control table, inventory and `day.toml` are copied there, rows are appended.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn open(folder: &Path, served: &ServedDay, files: &DayFiles) -> anyhow::Result<Self> {
        let dir = folder.join(&served.day.date);
        let failed = || format!("cannot write the journal {}", dir.display());
        std::fs::create_dir_all(&dir).with_context(failed)?;
        for (name, path) in [("control", Some(&files.control)), ("inventory", files.inventory.as_ref())] {
            if let Some(path) = path {
                let ending =
                    path.file_name().and_then(|n| n.to_str()).and_then(|n| n.split_once('.')).map_or("tsv", |n| n.1);
                let to = dir.join(format!("{name}.{ending}"));
                if path.canonicalize().ok() != to.canonicalize().ok() {
                    std::fs::copy(path, to).with_context(failed)?;
                }
            }
        }
        let midnight = day::parse_date(&served.day.date).map_err(anyhow::Error::msg)? * 86_400_000;
        let offset = (midnight - served.day.start_ms as i64) / 60_000;
        write::day(&dir, &DayFile { date: served.day.date.clone(), utc_offset_minutes: offset as i32 })
            .with_context(failed)?;
        let requests = append(&dir.join("track_log.tsv"), write::TRACK_HEADER).with_context(failed)?;
        let exposures = append(&dir.join("joined_exposure.tsv"), write::EXPOSURE_HEADER).with_context(failed)?;
        let (lines, to_write) = sync_channel(WAITING);
        let writer = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || write_all(&to_write, requests, exposures))
            .context("cannot start the journal")?;
        Ok(Self { lines: Mutex::new(Some(lines)), writer: Mutex::new(Some(writer)) })
    }

    /// A request that was decided.
    ///
    /// # Errors
    /// It was dropped.
    pub fn request(&self, row: TrackRow) -> Result<(), Dropped> {
        self.send(Line::Request(row))
    }

    /// An impression that was shown, and what was chosen there. Clicks are not known here: they are written as 0.
    ///
    /// # Errors
    /// It was dropped.
    pub fn exposure(
        &self,
        exposure: Exposure,
        arrival_ms: u64,
        contract: bool,
        claim: Option<Claim>,
    ) -> Result<(), Dropped> {
        let Exposure { request_id, ad_id, ts_ms } = exposure;
        let known = claim.filter(|claim| claim.ad_id == ad_id);
        let worth = f64::from(known.map_or(0.0, |claim| claim.worth));
        self.send(Line::Exposure(ExposureRow {
            request_id,
            ts_ms,
            arrival_ms,
            ad_id,
            ad_type: if contract { AdType::Contract } else { AdType::Auction },
            charge: worth,
            ecpm: 1000.0 * worth,
            pctr: f64::from(known.map_or(0.0, |claim| claim.pctr)),
            click: false,
            propensity: None,
            explore: false,
        }))
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

/// Opens a table for appending; a last line that a killed server left unfinished is cut off.
fn append(path: &Path, header: &str) -> std::io::Result<BufWriter<File>> {
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    let bytes = std::fs::read(path)?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::End(0))?;
    let mut file = BufWriter::with_capacity(1 << 18, file);
    if whole == 0 {
        writeln!(file, "{header}")?;
    }
    Ok(file)
}

fn write_all(lines: &Receiver<Line>, mut requests: BufWriter<File>, mut exposures: BufWriter<File>) {
    let mut told = false;
    let mut flushed = Instant::now();
    loop {
        let mut result = match lines.try_recv() {
            Ok(Line::Request(row)) => write::track_row(&mut requests, &row),
            Ok(Line::Exposure(row)) => write::exposure_row(&mut exposures, &row),
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
