//! Random numbers for drawing futures.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

const SEED: u64 = 0x1F0A_3ED0_0000_0002;

/// Random numbers of one future: the same at every solution, so that prices change with the observations and not with the draws.
pub struct Normals(ChaCha8Rng);

impl Normals {
    pub(super) fn new(stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        rng.set_stream(stream);
        Self(rng)
    }

    pub(super) fn next(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }

    /// Draws an exponential waiting time.
    pub(super) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.0.random::<f64>()).ln()
    }
}
