//! Reads `control`: the contracts of a day. Any bad row is an error.

use std::path::Path;

use super::day::Day;
use super::error::{BadValue, LogError, Result};
use super::schema::{ControlRow, DAY_MS, MAX_CLICK_VALUE, MAX_CONTRACTS, MAX_IMPRESSIONS, MAX_PENALTY};
use super::table::{Column, Row, optional, read_strict, required};
use super::targeting::Targeting;

pub const COLUMNS: &[Column] = &[
    required("ad_id"),
    required("required"),
    optional("cap"),
    optional("delivered0"),
    optional("start_ms"),
    optional("end_ms"),
    optional("targeting"),
    optional("theta"),
    optional("rate"),
    required("penalty"),
    required("click_value"),
    optional("pctr"),
];

/// Reads the contracts of a day; flights given as offsets from midnight become absolute times.
///
/// # Errors
/// An unreadable file, or the first row that breaks a rule, with its line, column and value.
pub fn read(path: &Path, day: &Day) -> Result<Vec<ControlRow>> {
    let rows = read_strict(path, COLUMNS, |row| parse(row, day), ("ad_id", |contract: &ControlRow| contract.ad_id))?;
    if rows.len() > MAX_CONTRACTS {
        let reason = format!(
            "{} contracts; a day may have {MAX_CONTRACTS}, more cannot be planned in memory. Join contracts that ask for the \
             same, or split the inventory into several log directories",
            rows.len()
        );
        return Err(LogError::Format { path: path.to_owned(), reason });
    }
    Ok(rows)
}

fn parse(row: &Row, day: &Day) -> std::result::Result<ControlRow, BadValue> {
    row.check_shape()?;
    let required: u64 = row.integer(1)?.ok_or_else(|| row.empty(1))?;
    if required == 0 {
        return Err(BadValue::new(
            "required",
            "0",
            "out_of_range",
            "must be at least 1; leave the contract out instead",
        ));
    }
    let cap: u64 = row.integer(2)?.unwrap_or(required);
    if cap > MAX_IMPRESSIONS {
        let column = if required > MAX_IMPRESSIONS { "required" } else { "cap" };
        let value = required.max(cap).to_string();
        return Err(BadValue::new(column, &value, "out_of_range", format!("must be at most {MAX_IMPRESSIONS}")));
    }
    if cap < required {
        return Err(BadValue::new(
            "cap",
            &cap.to_string(),
            "out_of_range",
            format!("must be at least required = {required}"),
        ));
    }
    let delivered0: u64 = row.integer(3)?.unwrap_or(0);
    if delivered0 > cap {
        return Err(BadValue::new(
            "delivered0",
            &delivered0.to_string(),
            "out_of_range",
            format!("must be at most cap = {cap}"),
        ));
    }
    // An end at exactly one day means the end of the day, not the second day of 1970.
    let absolute = |value: u64| if value <= day.length_ms.max(DAY_MS) { day.start_ms + value } else { value };
    let start_ms = row.integer(4)?.map_or(day.start_ms, absolute);
    let end_ms = row.integer(5)?.map_or(day.end_ms(), |v| if v == DAY_MS { day.end_ms() } else { absolute(v) });
    if start_ms >= end_ms {
        return Err(BadValue::new(
            "end_ms",
            &end_ms.to_string(),
            "out_of_range",
            format!("must be after start_ms = {start_ms}"),
        ));
    }
    let targeting_text = row.text_of(6)?;
    let targeting = Targeting::parse(targeting_text)
        .map_err(|why| BadValue::new("targeting", targeting_text, "bad_targeting", why))?;
    Ok(ControlRow {
        ad_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
        required,
        cap,
        delivered0,
        start_ms,
        end_ms,
        targeting,
        theta: row.number(7, 0.0, 1.0)?,
        rate: row.number(8, 0.0, 1.0)?.unwrap_or(1.0),
        penalty: row.number(9, 0.0, MAX_PENALTY)?.ok_or_else(|| row.empty(9))?,
        click_value: row.number(10, 0.0, MAX_CLICK_VALUE)?.ok_or_else(|| row.empty(10))?,
        pctr: row.number(11, 0.0, 1.0)?,
    })
}
