//! What a number of a plan has to be, whoever wrote the file.

/// Whether this can be an amount that a plan states: what is summed and multiplied stays finite.
pub(super) fn is_amount(value: f64) -> bool {
    (0.0..=1e15).contains(&value)
}
