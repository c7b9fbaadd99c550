//! Threads of a pass: one reads lumps, the others parse them; batches come out in the order of the table.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::source::Source;
use super::taker::{Gather, Next};
use crate::log::error::{BadValue, Result};
use crate::log::schema::TrackRow;
use crate::log::table::{Lump, LumpReader, Lumps};
use crate::log::track;

/// Maximum number of rows in a batch; [`ENTRIES`] limits the entries of their queues, up to the last row's.
const BATCH: usize = 1024;
const ENTRIES: usize = 16 * BATCH;
/// Size of a batch in bytes, approximate.
const BATCH_BYTES: usize = 1 << 20;

/// Consecutive parsed rows of one part.
pub struct Parsed<G> {
    pub part: u32,
    /// Number of rows, including bad ones.
    pub rows: u64,
    /// Bytes of the file that the rows took.
    pub bytes: u64,
    /// Rows that were parsed, including those whose contract entries are unknown.
    pub requests: Vec<Seen>,
    /// Data gathered from the good rows.
    pub gathered: G,
    pub bad: Vec<Bad>,
    /// Number of queue entries of the gathered rows.
    entries: usize,
}

/// Attributes of a row that decide about order and uniqueness.
pub struct Seen {
    pub id: u64,
    pub ts_ms: u64,
    pub line: u64,
}

/// A row that is set aside.
pub struct Bad {
    /// Number of parsed rows of the batch before it.
    pub before: usize,
    pub line: u64,
    pub why: BadValue,
    /// Whether the row was parsed and has a [`Seen`] of its own: one of its contract entries has no control row.
    pub parsed: bool,
}

impl<G: Gather> Parsed<G> {
    /// Returns an empty batch, in the memory of one that was taken if there is any: memory that is given back and asked for again for
    /// every batch is zeroed by the kernel each time.
    fn begin(part: u32, spent: &Spent<G>) -> Self {
        let batch = spent.lock().expect("nobody panics with it").pop();
        let (mut requests, mut gathered, mut bad) = batch.map(|b| (b.requests, b.gathered, b.bad)).unwrap_or_default();
        requests.clear();
        gathered.clear();
        bad.clear();
        Self { part, rows: 0, bytes: 0, requests, gathered, bad, entries: 0 }
    }

    fn push(&mut self, source: &Source, line: u64, parsed: std::result::Result<TrackRow, BadValue>) {
        self.rows += 1;
        let before = self.requests.len();
        let parsed = parsed.and_then(|request| {
            if source.day.contains(request.ts_ms) {
                return Ok(request);
            }
            let rule = source.day.outside(request.ts_ms);
            Err(BadValue::new("ts_ms", &request.ts_ms.to_string(), "outside_day", rule))
        });
        match parsed {
            Err(why) => self.bad.push(Bad { before, line, why, parsed: false }),
            Ok(request) => {
                self.requests.push(Seen { id: request.request_id, ts_ms: request.ts_ms, line });
                match source.rules.check(&request) {
                    Err(why) => self.bad.push(Bad { before, line, why, parsed: true }),
                    Ok(()) => {
                        self.entries += request.queue.len();
                        self.gathered.push(request, &source.rules);
                    }
                }
            }
        }
    }
}

type Outcome<G> = Result<Parsed<G>>;
/// Batches that were taken, for their memory.
type Spent<G> = Mutex<Vec<Parsed<G>>>;

/// What [`run`] gives.
pub enum Step<'a, G> {
    Batch(&'a mut Parsed<G>),
    /// All batches of a lump were taken.
    EndOfLump,
}

/// Reads all lumps but the first `skipped` and gives their batches to `take` in order, until it asks to start again.
pub fn run<G: Gather>(
    source: &Source,
    mut lumps: Lumps,
    skipped: u64,
    mut take: impl FnMut(Step<G>) -> Result<Next>,
) -> Result<Next> {
    let workers = rayon::current_num_threads();
    // A row group is one lump, so its worker may be this many batches ahead.
    let ahead = (source.options.memory / 8 / workers / BATCH_BYTES).clamp(2, 256);
    let (to_workers, lumps_in) = sync_channel::<(Lump, SyncSender<Outcome<G>>)>(workers);
    let (to_taker, batches) = sync_channel::<Result<Receiver<Outcome<G>>>>(2 * workers);
    let lumps_in = Mutex::new(lumps_in);
    let spent = Spent::default();
    std::thread::scope(|scope| {
        // Dropped first when this closure ends or unwinds, so that threads blocked on sending get an error and end.
        let batches = batches;
        scope.spawn(move || {
            for number in 0u64.. {
                let lump = match lumps.take() {
                    Ok(Some(_)) if number < skipped => continue,
                    Ok(Some(lump)) => lump,
                    Ok(None) => return,
                    Err(e) => return drop(to_taker.send(Err(e))),
                };
                let (out, batches) = sync_channel(ahead);
                if to_taker.send(Ok(batches)).is_err() || to_workers.send((lump, out)).is_err() {
                    return;
                }
            }
        });
        for _ in 0..workers {
            let (lumps_in, spent) = (&lumps_in, &spent);
            scope.spawn(move || {
                let mut reader = LumpReader::default();
                loop {
                    let next = lumps_in.lock().expect("no worker panics while it takes a lump").recv();
                    let Ok((lump, out)) = next else { return };
                    parse(source, &mut reader, lump, &out, spent);
                }
            });
        }
        for lump in batches {
            for batch in lump? {
                let mut batch = batch?;
                if take(Step::Batch(&mut batch))? == Next::Again {
                    return Ok(Next::Again);
                }
                spent.lock().expect("nobody panics with it").push(batch);
            }
            take(Step::EndOfLump)?;
        }
        Ok(Next::GoOn)
    })
}

/// Parses a lump and sends its batches.
fn parse<G: Gather>(
    source: &Source,
    reader: &mut LumpReader,
    lump: Lump,
    out: &SyncSender<Outcome<G>>,
    spent: &Spent<G>,
) {
    let part = lump.part();
    let bytes = lump.bytes();
    let mut batch = Parsed::begin(part, spent);
    let mut wanted = true;
    let read = reader.read(lump, track::of_plain, track::parse, |place, parsed| {
        batch.push(source, place.line, parsed);
        if batch.rows as usize == BATCH || batch.entries >= ENTRIES {
            wanted = out.send(Ok(std::mem::replace(&mut batch, Parsed::begin(part, spent)))).is_ok();
        }
        wanted
    });
    batch.bytes = bytes;
    let _ = match read {
        Ok(()) => out.send(Ok(batch)),
        Err(e) => out.send(Err(e)),
    };
}
