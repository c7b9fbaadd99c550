//! Reads `track_log`: one request with its whole queue per row.

use super::error::BadValue;
use super::schema::{AdType, MAX_ECPM, MAX_QUEUE, QueueEntry, TrackRow};
use super::table::{Column, Plain, PlainRow, Row, number, optional, required};
use super::viewer::check_viewer;

pub const COLUMNS: &[Column] = &[
    required("request_id"),
    required("ts_ms"),
    required("slot_id"),
    required("region"),
    required("gender"),
    required("age"),
    required("queue").list(b';', &["ad_id", "type", "ecpm", "pctr", "filter", "boost"], 5),
    optional("user_id"),
];

/// Parses one row.
///
/// # Errors
/// The first value that breaks a rule; a bad queue entry makes its request bad.
pub fn parse(row: &Row) -> Result<TrackRow, BadValue> {
    row.check_shape()?;
    let gender: u8 = row.integer(4)?.ok_or_else(|| row.empty(4))?;
    let age: u8 = row.integer(5)?.ok_or_else(|| row.empty(5))?;
    check_viewer(gender, age)?;
    Ok(TrackRow {
        request_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
        ts_ms: row.integer(1)?.ok_or_else(|| row.empty(1))?,
        slot_id: row.integer(2)?.ok_or_else(|| row.empty(2))?,
        region: row.integer(3)?.ok_or_else(|| row.empty(3))?,
        gender,
        age,
        user_id: row.integer(7)?,
        queue: queue(row.text_of(6)?)?,
    })
}

/// Returns every column of a row that breaks a rule, for a message; of the queue, the first value.
pub fn problems(row: &Row) -> Vec<BadValue> {
    if let Err(bad) = row.check_shape() {
        return vec![bad];
    }
    let whole = |column: usize| row.integer::<u64>(column)?.ok_or_else(|| row.empty(column));
    let small = |column: usize| row.integer::<u32>(column)?.ok_or_else(|| row.empty(column));
    let viewer = |column: usize| row.integer::<u8>(column)?.ok_or_else(|| row.empty(column));
    let columns = [
        whole(0).map(|_| ()),
        whole(1).map(|_| ()),
        small(2).map(|_| ()),
        small(3).map(|_| ()),
        viewer(4).and_then(|gender| check_viewer(gender, 0)),
        viewer(5).and_then(|age| check_viewer(0, age)),
        row.text_of(6).and_then(queue).map(|_| ()),
        row.integer::<u64>(7).map(|_| ()),
    ];
    columns.into_iter().filter_map(Result::err).collect()
}

/// Takes the values of a row that is certainly good. For any other row it returns `None`, and [`parse`] decides.
pub fn of_plain(row: &PlainRow) -> Option<TrackRow> {
    let whole = |i: usize| match row.cells[i] {
        Plain::Whole(value) => Some(value),
        _ => None,
    };
    let user_id = match row.cells[7] {
        Plain::Null => None,
        _ => Some(whole(7)?),
    };
    let mut queue = Vec::with_capacity(row.list.len());
    for [ad_id, kind, ecpm, pctr, filter, boost] in &row.list {
        let (Plain::Whole(ad_id), Plain::Whole(filter)) = (*ad_id, *filter) else { return None };
        let ad_type = match kind {
            Plain::Letter(b'C') => AdType::Contract,
            Plain::Letter(b'A') => AdType::Auction,
            _ => return None,
        };
        let real = |value: &Plain| match *value {
            Plain::Real(value) => Some(value),
            Plain::Whole(value) => Some(value as f64),
            _ => None,
        };
        let boost = if *boost == Plain::Null { 1.0 } else { real(boost)? };
        queue.push(QueueEntry { ad_id, ad_type, ecpm: real(ecpm)?, pctr: real(pctr)?, filter, boost });
    }
    let request = TrackRow {
        request_id: whole(0)?,
        ts_ms: whole(1)?,
        slot_id: whole(2)?.try_into().ok()?,
        region: whole(3)?.try_into().ok()?,
        gender: whole(4)?.try_into().ok()?,
        age: whole(5)?.try_into().ok()?,
        user_id,
        queue,
    };
    check(&request).is_ok().then_some(request)
}

/// Checks a request that did not come as text by the rules of [`parse`].
///
/// # Errors
/// The first value that breaks a rule.
pub fn check(request: &TrackRow) -> Result<(), BadValue> {
    check_viewer(request.gender, request.age)?;
    if request.queue.is_empty() {
        return Err(empty_queue());
    }
    if request.queue.len() > MAX_QUEUE {
        return Err(long_queue(request.queue.len()));
    }
    for e in &request.queue {
        let within = |value: f64, low: f64, high: f64, what: &str| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let rule = format!("{what} of ad {} must be within {low}..={high}", e.ad_id);
            Err(BadValue::new("queue", &value.to_string(), "out_of_range", rule))
        };
        within(e.ecpm, 0.0, MAX_ECPM, "ecpm")?;
        within(e.pctr, 0.0, 1.0, "pctr")?;
        within(e.boost, 0.1, 10.0, "boost")?;
    }
    check_repeats(&request.queue)
}

fn empty_queue() -> BadValue {
    BadValue::new("queue", "", "empty_queue", "a request needs at least one entry")
}

fn long_queue(entries: usize) -> BadValue {
    let rule = format!("at most {MAX_QUEUE} entries");
    BadValue::new("queue", &format!("{entries} entries"), "queue_too_long", rule)
}

fn check_repeats(entries: &[QueueEntry]) -> Result<(), BadValue> {
    // Short queues are compared pair by pair, which is faster than sorting.
    if entries.len() <= 32 && (1..entries.len()).all(|i| entries[..i].iter().all(|e| e.ad_id != entries[i].ad_id)) {
        return Ok(());
    }
    let mut ids: Vec<u64> = entries.iter().map(|e| e.ad_id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|w| w[0] == w[1]) {
        Some(pair) => {
            Err(BadValue::new("queue", &pair[0].to_string(), "repeated_ad", "an ad stands twice in the queue"))
        }
        None => Ok(()),
    }
}

fn queue(text: &str) -> Result<Vec<QueueEntry>, BadValue> {
    if text.is_empty() {
        return Err(empty_queue());
    }
    let mut entries: Vec<QueueEntry> = Vec::with_capacity(16);
    for part in text.split(';') {
        if entries.len() == MAX_QUEUE {
            return Err(long_queue(text.split(';').count()));
        }
        let entry = entry(part)?;
        entries.push(entry);
    }
    check_repeats(&entries)?;
    Ok(entries)
}

fn entry(text: &str) -> Result<QueueEntry, BadValue> {
    let mut cells = text.split(',');
    let mut next = |what: &str| {
        cells.next().ok_or_else(|| {
            BadValue::new(
                "queue",
                text,
                "short_entry",
                format!("no {what}; an entry is ad_id,type,ecpm,pctr,filter[,boost]"),
            )
        })
    };
    let whole = |value: &str, what: &str| {
        value.parse::<u64>().map_err(|_| {
            let hint = if what == "ad_id" && value.parse::<f64>().is_err() {
                "; hash ids that are texts, alike in every table"
            } else {
                ""
            };
            BadValue::new("queue", text, "not_an_integer", format!("{what} `{value}` is not a whole number{hint}"))
        })
    };
    let ad_id = whole(next("ad_id")?, "ad_id")?;
    let ad_type = match next("type")? {
        "C" => AdType::Contract,
        "A" => AdType::Auction,
        other => {
            return Err(BadValue::new("queue", text, "bad_type", format!("type `{other}` must be C or A")));
        }
    };
    let within = |value: &str, low: f64, high: f64, what: &str| {
        number("queue", value, low, high).map_err(|bad| {
            let hint = if what == "pctr" && bad.reason == "out_of_range" { ": a fraction, 1.2 % is 0.012" } else { "" };
            BadValue::new("queue", text, bad.reason, format!("{what} `{value}` {}{hint}", bad.rule))
        })
    };
    let ecpm = within(next("ecpm")?, 0.0, MAX_ECPM, "ecpm")?;
    let pctr = within(next("pctr")?, 0.0, 1.0, "pctr")?;
    let filter = whole(next("filter")?, "filter")?;
    let boost = match cells.next() {
        None | Some("") => 1.0,
        Some(value) => within(value, 0.1, 10.0, "boost")?,
    };
    if cells.next().is_some() {
        return Err(BadValue::new("queue", text, "long_entry", "an entry has at most six fields"));
    }
    Ok(QueueEntry { ad_id, ad_type, ecpm, pctr, filter, boost })
}
