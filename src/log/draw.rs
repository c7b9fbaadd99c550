//! The rate draw: whether a contract with `rate < 1` enters the queue of a request.
//!
//! Documented and stateless, so that anyone who holds the seed can repeat it: `hash64(seed, request, ad)` is
//! three rounds of the SplitMix64 finaliser, `h = mix(seed)`, `h = mix(h ^ request_id)`, `h = mix(h ^ ad_id)`
//! with `mix(x)`: `x += 0x9E3779B97F4A7C15; x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27;
//! x *= 0x94D049BB133111EB; x ^= x >> 31`, all modulo 2^64.

const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the hash of the rate draw.
pub const fn hash64(seed: u64, request_id: u64, ad_id: u64) -> u64 {
    mix(mix(mix(seed) ^ request_id) ^ ad_id)
}

/// Returns whether `hash64 / 2^64 < rate`.
pub fn passes(seed: u64, request_id: u64, ad_id: u64, rate: f64) -> bool {
    rate >= 1.0 || (hash64(seed, request_id, ad_id) as f64) < rate * 18_446_744_073_709_551_616.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_that_passes_is_the_rate() {
        for rate in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let n = (0..20_000).filter(|&i| passes(7, i, 9001, rate)).count() as f64;
            assert!((n / 20_000.0 - rate).abs() < 0.012, "{rate}: {n}");
        }
    }

    #[test]
    fn draws_differ_by_seed_request_and_ad() {
        let h = hash64(1, 2, 3);
        assert!(h != hash64(2, 2, 3) && h != hash64(1, 3, 3) && h != hash64(1, 2, 4) && h != hash64(1, 3, 2));
    }
}
