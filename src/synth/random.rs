//! Random streams, and small arithmetic that the parts of a world share.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// Purpose of a random stream.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    Audience,
    Contracts,
    Market,
    Conditions,
    Demand,
    Forecast,
    Traffic,
    Queues,
    Live,
    Process,
    Wander,
    Bias,
    Errors,
}

/// Returns the random stream of a purpose on a day; `day` is 0 for what all days share.
pub fn stream(seed: u64, purpose: Purpose, day: u32) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((purpose as u64) << 32) | u64::from(day));
    rng
}

/// Draws a standard normal number.
pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

/// Divides the values by their sum.
pub fn normalise(values: &mut [f64]) {
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

/// Rounds to `decimals` decimals, so that files are short and hold exactly the values used.
pub fn round(value: f64, decimals: u32) -> f64 {
    let unit = 10f64.powi(decimals as i32);
    (value * unit).round() / unit
}
