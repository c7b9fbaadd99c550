//! Reads `joined_exposure`: the impressions that the live system really showed.

use super::error::BadValue;
use super::schema::{AdType, ExposureRow};
use super::table::{Column, Row, optional, required};

pub const COLUMNS: &[Column] = &[
    required("request_id"),
    required("ts_ms"),
    required("arrival_ms"),
    required("ad_id"),
    required("type"),
    required("charge"),
    required("ecpm"),
    required("pctr"),
    required("click"),
    optional("propensity"),
    optional("explore"),
];

/// Parses one row.
///
/// # Errors
/// The first value that breaks a rule.
pub fn parse(row: &Row) -> Result<ExposureRow, BadValue> {
    row.check_width()?;
    let flag = |i: usize, column: &'static str| match row.text_of(i)? {
        "0" | "" => Ok(false),
        "1" => Ok(true),
        other => Err(BadValue::new(column, other, "out_of_range", "must be 0 or 1")),
    };
    let propensity = row.number(9, 0.0, 1.0)?;
    if propensity == Some(0.0) {
        return Err(BadValue::new("propensity", "0", "out_of_range", "must be in (0, 1] or empty"));
    }
    Ok(ExposureRow {
        request_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
        ts_ms: row.integer(1)?.ok_or_else(|| row.empty(1))?,
        arrival_ms: row.integer(2)?.ok_or_else(|| row.empty(2))?,
        ad_id: row.integer(3)?.ok_or_else(|| row.empty(3))?,
        ad_type: match row.text_of(4)? {
            "C" => AdType::Contract,
            "A" => AdType::Auction,
            other => return Err(BadValue::new("type", other, "bad_type", "must be C or A")),
        },
        charge: row.number(5, 0.0, f64::MAX)?.ok_or_else(|| row.empty(5))?,
        ecpm: row.number(6, 0.0, super::schema::MAX_ECPM)?.ok_or_else(|| row.empty(6))?,
        pctr: row.number(7, 0.0, 1.0)?.ok_or_else(|| row.empty(7))?,
        click: flag(8, "click")?,
        propensity,
        explore: flag(10, "explore")?,
    })
}
