//! What was delivered before scoring begins, and what is confirmed while it goes on.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::log::LogError;
use crate::log::day::Day;
use crate::log::table::{Column, Row, Table, optional, read_strict, required};

use super::claims::Exposure;

const DELIVERED: &[Column] = &[required("ad_id"), required("delivered")];
const EXPOSURES: &[Column] =
    &[required("request_id"), required("ad_id"), required("ts_ms"), optional("arrival_ms"), optional("type")];

/// Impressions by ad id.
pub type Delivered = BTreeMap<u64, u64>;

/// An exposure and when it was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Unix milliseconds.
    pub arrival_ms: u64,
    pub exposure: Exposure,
    /// Whether it is an auction ad's, where the table says so.
    pub auction: bool,
}

/// Reads a table of `ad_id` and `delivered`: impressions since the day began, without those of `control.delivered0`.
///
/// # Errors
/// An unreadable table, or its first bad row.
pub fn delivered(path: &Path) -> Result<Delivered, LogError> {
    let parse = |row: &Row| {
        row.check_shape()?;
        let ad_id = row.integer(0)?.ok_or_else(|| row.empty(0))?;
        Ok((ad_id, row.integer(1)?.ok_or_else(|| row.empty(1))?))
    };
    Ok(read_strict(path, DELIVERED, parse, ("ad_id", |row: &(u64, u64)| row.0))?.into_iter().collect())
}

/// Reads exposures (`request_id`, `ad_id`, `ts_ms`, optionally `arrival_ms` and `type`; other columns are ignored) in the order in
/// which they arrived. An exposure without `arrival_ms` arrives when it is shown.
///
/// # Errors
/// An unreadable table, or its first bad row.
pub fn exposures(path: &Path) -> Result<Vec<Arrived>, LogError> {
    let mut table = Table::open(path, EXPOSURES)?;
    let mut row = table.row();
    let mut all = Vec::new();
    while table.read(&mut row)? {
        let parsed = (|| {
            row.check_shape()?;
            let exposure = Exposure {
                request_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
                ad_id: row.integer(1)?.ok_or_else(|| row.empty(1))?,
                ts_ms: row.integer(2)?.ok_or_else(|| row.empty(2))?,
            };
            let arrival_ms = row.integer(3)?.unwrap_or(exposure.ts_ms);
            Ok(Arrived { arrival_ms, exposure, auction: row.text_of(4)? == "A" })
        })();
        all.push(parsed.map_err(|bad| LogError::BadRow { path: path.to_owned(), line: row.place.line, bad })?);
    }
    all.sort_by_key(|arrived| arrived.arrival_ms);
    Ok(all)
}

/// Counts the impressions of an exposure table that were shown on a day before `until_ms`; of a request only the first. Returns how many rows are of
/// another day, too.
///
/// # Errors
/// An unreadable table, or its first bad row.
pub fn delivered_by(path: &Path, day: &Day, until_ms: u64) -> Result<(Delivered, u64), LogError> {
    let (mut counts, mut other_day) = (Delivered::new(), 0);
    let mut seen = HashSet::new();
    for Arrived { exposure, auction, .. } in exposures(path)? {
        if !day.contains(exposure.ts_ms) {
            other_day += 1;
        } else if !auction && exposure.ts_ms < until_ms && seen.insert(exposure.request_id) {
            *counts.entry(exposure.ad_id).or_default() += 1;
        }
    }
    Ok((counts, other_day))
}
