//! The rule of viewers: what gender and age can be, in requests, inventory nodes and targeting alike.

use super::error::BadValue;

/// Checks the attributes of a viewer.
///
/// # Errors
/// The one that is out of range.
pub(super) fn check_viewer(gender: u8, age: u8) -> Result<(), BadValue> {
    if gender > 2 {
        return Err(BadValue::new("gender", &gender.to_string(), "out_of_range", "must be 0, 1 or 2"));
    }
    if age > 9 {
        return Err(BadValue::new("age", &age.to_string(), "out_of_range", "must be a bucket 0..=9"));
    }
    Ok(())
}
