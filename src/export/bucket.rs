//! Buckets of predicted click probability (`pac_bucket`, predicted ad click): eight per doubling, so that a feature server
//! computes the bucket with a logarithm.

/// Lowest click probability that is distinguished from 0.
const LEAST: f64 = 1e-6;
const PER_DOUBLING: f64 = 8.0;

/// Number of buckets: bucket 0 for click probabilities up to a millionth, then 8 for each doubling up to 1.
pub const BUCKETS: u32 = 161;

/// Returns the bucket of a click probability: `0` up to a millionth, else `1 + floor(8 log2(pctr / 1e-6))`.
pub fn bucket_of(pctr: f64) -> u32 {
    if pctr <= LEAST {
        return 0;
    }
    let doublings = (pctr / LEAST).log2() * PER_DOUBLING;
    (1 + doublings as u32).min(BUCKETS - 1)
}

/// Returns the click probability at which a bucket's scores are computed: its geometric mean; 0 for bucket 0.
pub fn pctr_of(bucket: u32) -> f64 {
    if bucket == 0 { 0.0 } else { (LEAST * ((f64::from(bucket) - 0.5) / PER_DOUBLING).exp2()).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_lies_in_it_and_is_near_all_of_it() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(pctr_of(bucket)), bucket);
        }
        assert_eq!((bucket_of(0.0), bucket_of(1.0)), (0, BUCKETS - 1));
        for i in 1..10_000 {
            let pctr = f64::from(i) * 1e-4;
            assert!((pctr_of(bucket_of(pctr)) / pctr).ln().abs() < 0.06, "{pctr}");
        }
    }
}
