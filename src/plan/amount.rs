//! Validation of the numbers in a plan, whatever program wrote the file.

/// Whether this can be an amount in a plan: small enough that sums and products stay finite.
pub(super) fn is_amount(value: f64) -> bool {
    (0.0..=1e15).contains(&value)
}
