//! The threads of a pass: one reads lumps, the others parse them; batches come out in the order of the table.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{BadValue, Gather, Lumps, Next, Result, Source};
use crate::log::schema::TrackRow;
use crate::log::table::{Lump, LumpReader};
use crate::log::track;

/// Rows of a batch, and entries of their queues, at most but for the last row's.
const BATCH: usize = 1024;
const ENTRIES: usize = 16 * BATCH;
/// Bytes of a batch, about.
const BATCH_BYTES: usize = 1 << 20;

/// Rows of one part that stand one after the other, parsed.
pub struct Parsed<G> {
    pub part: u32,
    /// Rows, bad ones among them.
    pub rows: u64,
    /// Bytes of the file that they took.
    pub bytes: u64,
    /// Those that were parsed, whether or not their contract entries are known.
    pub requests: Vec<Seen>,
    /// What was gathered of the good ones.
    pub gathered: G,
    pub bad: Vec<Bad>,
    /// Entries of the queues that were gathered.
    entries: usize,
}

/// What the order of rows and the uniqueness of ids are judged by.
pub struct Seen {
    pub id: u64,
    pub ts_ms: u64,
    pub line: u64,
}

/// A row that is set aside.
pub struct Bad {
    /// Parsed rows of the batch that stand before it.
    pub before: usize,
    pub line: u64,
    pub why: BadValue,
    /// Whether it was parsed and has a [`Seen`] of its own: a contract entry of it has no control row.
    pub parsed: bool,
}

impl<G: Gather> Parsed<G> {
    fn new(part: u32) -> Self {
        Self { part, rows: 0, bytes: 0, requests: Vec::new(), gathered: G::default(), bad: Vec::new(), entries: 0 }
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

/// Reads all lumps and gives their batches to `take` in order, until it wants to begin anew.
pub fn run<G: Gather>(
    source: &Source,
    mut lumps: Lumps,
    mut take: impl FnMut(Parsed<G>) -> Result<Next>,
) -> Result<Next> {
    let workers = rayon::current_num_threads();
    // A row group is one lump: its worker may be so many batches ahead.
    let ahead = (source.options.memory / 8 / workers / BATCH_BYTES).clamp(2, 256);
    let (to_workers, lumps_in) = sync_channel::<(Lump, SyncSender<Outcome<G>>)>(workers);
    let (to_taker, batches) = sync_channel::<Result<Receiver<Outcome<G>>>>(2 * workers);
    let lumps_in = Mutex::new(lumps_in);
    std::thread::scope(|scope| {
        // Dropped first when this closure ends or unwinds: threads that wait to send find nobody and end.
        let batches = batches;
        scope.spawn(move || {
            loop {
                let lump = match lumps.take() {
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
            let lumps_in = &lumps_in;
            scope.spawn(move || {
                let mut reader = LumpReader::default();
                loop {
                    let next = lumps_in.lock().expect("no worker panics while it takes a lump").recv();
                    let Ok((lump, out)) = next else { return };
                    parse(source, &mut reader, lump, &out);
                }
            });
        }
        for lump in batches {
            for batch in lump? {
                if take(batch?)? == Next::Again {
                    return Ok(Next::Again);
                }
            }
        }
        Ok(Next::GoOn)
    })
}

/// Parses a lump and sends its batches.
fn parse<G: Gather>(source: &Source, reader: &mut LumpReader, lump: Lump, out: &SyncSender<Outcome<G>>) {
    let part = lump.part();
    let bytes = lump.bytes();
    let mut batch = Parsed::new(part);
    let mut wanted = true;
    let read = reader.read(lump, track::of_plain, track::parse, |place, parsed| {
        batch.push(source, place.line, parsed);
        if batch.rows as usize == BATCH || batch.entries >= ENTRIES {
            wanted = out.send(Ok(std::mem::replace(&mut batch, Parsed::new(part)))).is_ok();
        }
        wanted
    });
    batch.bytes = bytes;
    let _ = match read {
        Ok(()) => out.send(Ok(batch)),
        Err(e) => out.send(Err(e)),
    };
}
