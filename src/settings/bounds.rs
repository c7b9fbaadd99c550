//! Checks of value bounds, and their errors.

use super::load::SettingsError;

/// Returns the error of a value that cannot be used.
pub(super) fn bad<T>(key: &str, why: String) -> Result<T, SettingsError> {
    Err(SettingsError::Value { key: key.into(), why })
}

/// Checks that a count is from 1 to `most`.
pub(super) fn count(key: &str, value: usize, most: usize) -> Result<(), SettingsError> {
    match value {
        0 => bad(key, "must be at least 1".into()),
        _ if value > most => bad(key, format!("is {value}; must be at most {most}")),
        _ => Ok(()),
    }
}

/// Checks that a number is within bounds.
pub(super) fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), SettingsError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    bad(key, format!("is {value}; must lie within {low}..={high}"))
}
