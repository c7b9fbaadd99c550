//! Statistics in shared memory: a count that grows, and a number that moves both ways.

use super::sync::{AtomicU64, Ordering};

/// A count that grows. Relaxed: a statistic implies no ordering.
#[repr(transparent)]
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises the value to `n` if it is below.
    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// Sets the value, for a process that restarts from a checkpoint.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that moves both ways, stored as the bits of an `f64`. Relaxed: a statistic implies no ordering.
#[repr(transparent)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}
