//! Reads `inventory`: the supply forecast of a day. Any bad row is an error.

use std::path::Path;

use super::error::{BadValue, Result};
use super::schema::{InventoryRow, MAX_PV};
use super::table::{Column, Row, number, optional, read_strict, required};
use super::viewer::check_viewer;

pub const COLUMNS: &[Column] = &[
    required("node_id"),
    required("slot_id"),
    required("region"),
    required("gender"),
    required("age"),
    required("pv"),
    required("curve").list(b',', &[], 0),
    optional("ad_ids").list(b';', &[], 0),
];

/// Reads the forecast nodes.
///
/// # Errors
/// An unreadable file, or the first row that breaks a rule, with its line, column and value.
pub fn read(path: &Path) -> Result<Vec<InventoryRow>> {
    read_strict(path, COLUMNS, parse, ("node_id", |node| node.node_id))
}

fn parse(row: &Row) -> std::result::Result<InventoryRow, BadValue> {
    row.check_shape()?;
    let curve_text = row.text_of(6)?;
    let curve = curve_text
        .split(',')
        .map(|share| number("curve", share.trim(), 0.0, 1.0 + 1e-6))
        .collect::<std::result::Result<Vec<f64>, _>>()?;
    let sum: f64 = curve.iter().sum();
    if ![24, 48, 96].contains(&curve.len()) || (sum - 1.0).abs() > 1e-6 {
        return Err(BadValue::new(
            "curve",
            curve_text,
            "bad_curve",
            format!("must be 24, 48 or 96 shares that sum to 1; these are {} that sum to {sum}", curve.len()),
        ));
    }
    let ads_text = row.text_of(7)?;
    let ad_ids = ads_text
        .split(';')
        .filter(|id| !id.is_empty())
        .map(|id| {
            id.parse().map_err(|_| {
                BadValue::new("ad_ids", ads_text, "not_an_integer", format!("`{id}` is not an ad id, a whole number"))
            })
        })
        .collect::<std::result::Result<Vec<u64>, _>>()?;
    let [gender, age] = [row.integer(3)?.ok_or_else(|| row.empty(3))?, row.integer(4)?.ok_or_else(|| row.empty(4))?];
    check_viewer(gender, age)?;
    Ok(InventoryRow {
        node_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
        slot_id: row.integer(1)?.ok_or_else(|| row.empty(1))?,
        region: row.integer(2)?.ok_or_else(|| row.empty(2))?,
        gender,
        age,
        pv: row.number(5, 0.0, MAX_PV)?.ok_or_else(|| row.empty(5))?,
        curve,
        ad_ids,
    })
}
