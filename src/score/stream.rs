//! Requests from a stream, decisions to another, in order.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::{self, BufRead, Write};
use std::path::Path;

use crate::log::error::BadValue;
use crate::log::schema::TrackRow;
use crate::log::table::{self, Row, Table};
use crate::log::{LogError, track};

use super::counting::Heard;
use super::delivered::Arrived;
use super::json::{self, JsonDecision, JsonId};
use super::scorer::{Decision, Scorer};

/// How requests come and decisions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The columns of `track_log` in; `request_id, ad_id, score, chosen` out, a row per candidate.
    Tsv,
    /// An object a line.
    Jsonl,
}

/// What a stream held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Lines with a request, good or bad.
    pub lines: u64,
    pub decided: u64,
    pub candidates: u64,
    /// Skipped lines by reason.
    pub bad: BTreeMap<&'static str, u64>,
    /// Exposures that were not counted: those of another day, and those of requests that are not remembered or contracts that are gone.
    pub other_day: u64,
    pub unknown: u64,
}

/// A line's number, and its request or what is wrong with it.
pub type Line = (u64, Result<TrackRow, BadValue>);

/// Requests as they are read.
pub struct Requests {
    source: Source,
    seen: Recent,
    first: Option<(u64, TrackRow)>,
    /// Id of the newest good request as it came.
    id: JsonId,
    /// Lines that were skipped on the way to the first good one, by reason.
    early: BTreeMap<&'static str, u64>,
}

enum Source {
    Tsv(Box<Table>, Row),
    Jsonl(Box<dyn BufRead + Send>, Vec<u8>, u64),
}

/// The newest request ids.
#[derive(Default)]
struct Recent {
    order: VecDeque<u64>,
    ids: HashSet<u64>,
}

/// Request ids among which a repeated one is found.
const REMEMBERED: usize = 1 << 20;

impl Recent {
    /// Whether an id is new.
    fn insert(&mut self, id: u64) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

impl Requests {
    /// Reads the header of a TSV stream, nothing of another.
    ///
    /// # Errors
    /// A stream that cannot be read, or a header without a required column.
    pub fn new(mut input: Box<dyn BufRead + Send>, format: Format) -> Result<Self, LogError> {
        let path = Path::new("standard input");
        let begins = input.fill_buf().map_err(|e| LogError::io(path, e))?;
        let other = |what: &str| LogError::Format { path: path.into(), reason: what.into() };
        if begins.starts_with(b"PAR1") {
            return Err(other(
                "it is Parquet; requests are read as TSV or JSON lines (docs/serving.md has the conversion)",
            ));
        }
        if format == Format::Tsv && begins.trim_ascii_start().starts_with(b"{") {
            return Err(other("it has JSON lines; give --format jsonl"));
        }
        let source = match format {
            Format::Tsv => {
                let table = Table::of_text(path, input, track::COLUMNS)?;
                let row = table.row();
                Source::Tsv(Box::new(table), row)
            }
            Format::Jsonl => Source::Jsonl(input, Vec::new(), 0),
        };
        Ok(Self { source, seen: Recent::default(), first: None, id: JsonId::Number(0), early: BTreeMap::new() })
    }

    /// The time of the first good request, Unix milliseconds, which stays to be read; bad lines before it go to `bad`. `None` at the
    /// end of the stream.
    ///
    /// # Errors
    /// A stream that cannot be read on.
    pub fn first_time(&mut self, bad: &mut dyn FnMut(u64, &BadValue)) -> Result<Option<u64>, LogError> {
        while self.first.is_none() {
            match self.parse()? {
                None => return Ok(None),
                Some((line, Ok(request))) => self.first = Some((line, request)),
                Some((line, Err(why))) => {
                    *self.early.entry(why.reason).or_default() += 1;
                    bad(line, &why);
                }
            }
        }
        Ok(self.first.as_ref().map(|(_, request)| request.ts_ms))
    }

    /// The next request and its line; `None` at the end.
    ///
    /// # Errors
    /// A stream that cannot be read on.
    pub fn read(&mut self) -> Result<Option<Line>, LogError> {
        let next = match self.first.take() {
            Some((line, request)) => Some((line, Ok(request))),
            None => self.parse()?,
        };
        Ok(next.map(|(line, parsed)| {
            let parsed = parsed.and_then(|request| {
                if self.seen.insert(request.request_id) {
                    return Ok(request);
                }
                let id = request.request_id.to_string();
                Err(BadValue::new("request_id", &id, "duplicate_request", "came before"))
            });
            (line, parsed)
        }))
    }

    fn parse(&mut self) -> Result<Option<Line>, LogError> {
        match &mut self.source {
            Source::Tsv(table, row) => {
                if !table.read(row)? {
                    return Ok(None);
                }
                Ok(Some((row.place.line, track::parse(row))))
            }
            Source::Jsonl(reader, text, line) => loop {
                let read = table::read_line(&mut **reader, text, line);
                match read.map_err(|e| LogError::io(Path::new("standard input"), e))? {
                    table::Line::End => return Ok(None),
                    table::Line::TooLong => return Ok(Some((*line, Err(table::long_row())))),
                    table::Line::Whole => {}
                }
                if !text.trim_ascii().is_empty() {
                    let parsed = json::request(text.trim_ascii());
                    let keep_id = |(request, id)| {
                        self.id = id;
                        request
                    };
                    return Ok(Some((*line, parsed.map(keep_id))));
                }
            },
        }
    }
}

/// Decides every request of a stream and writes the decisions in order; exposures are confirmed when they have arrived by a
/// request's time, so those that arrive after the last request are left for a later call. Bad lines are skipped and given to `bad` with their number.
///
/// # Errors
/// A stream that cannot be read or written on.
pub fn stream(
    scorer: &mut Scorer,
    requests: &mut Requests,
    exposures: &[Arrived],
    format: Format,
    output: &mut dyn Write,
    bad: &mut dyn FnMut(u64, &BadValue),
) -> anyhow::Result<StreamReport> {
    let bad_so_far = std::mem::take(&mut requests.early);
    let mut report = StreamReport { lines: bad_so_far.values().sum(), bad: bad_so_far, ..StreamReport::default() };
    let mut decision = Decision::default();
    let mut exposures = exposures.iter().peekable();
    if format == Format::Tsv {
        output.write_all(b"request_id\tad_id\tscore\tchosen\n")?;
    }
    while let Some((line, request)) = requests.read()? {
        report.lines += 1;
        let decided = request.and_then(|request| {
            // A request that is skipped lets no time pass.
            scorer.check(&request)?;
            while let Some(arrived) = exposures.next_if(|arrived| arrived.arrival_ms <= request.ts_ms) {
                match scorer.confirm(arrived.exposure) {
                    Heard::News | Heard::Repeated => {}
                    Heard::Unknown => report.unknown += 1,
                    Heard::OtherDay => report.other_day += 1,
                }
            }
            scorer.decide(&request, &mut decision)
        });
        match decided {
            Ok(()) => {
                report.decided += 1;
                report.candidates += decision.scores.len() as u64;
                write(&decision, requests.id, format, output)?;
            }
            Err(why) => {
                *report.bad.entry(why.reason).or_default() += 1;
                bad(line, &why);
            }
        }
    }
    output.flush()?;
    Ok(report)
}

fn write(decision: &Decision, id: JsonId, format: Format, output: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Tsv => {
            let chosen = decision.chosen.map(|(ad_id, _)| ad_id);
            for &(ad_id, score) in &decision.scores {
                let chosen = u8::from(chosen == Some(ad_id));
                writeln!(output, "{}\t{ad_id}\t{score}\t{chosen}", decision.request_id)?;
            }
        }
        Format::Jsonl => {
            serde_json::to_writer(&mut *output, &JsonDecision::new(decision, id))?;
            output.write_all(b"\n")?;
        }
    }
    Ok(())
}
