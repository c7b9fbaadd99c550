//! Gathers batches from the pool.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::gpu::numbers::{Numbers, whole};

/// Gathers a batch, with one unit for each of its numbers.
#[cube(launch_unchecked)]
fn gather_kernel(pool: &Array<f32>, places: &Array<u32>, sources: &Array<u32>, batch: &mut Array<f32>, width: usize) {
    if ABSOLUTE_POS >= batch.len() {
        terminate!();
    }
    let source = sources[ABSOLUTE_POS] as usize;
    let row = source / width;
    batch[ABSOLUTE_POS] = pool[places[row] as usize * width + source - row * width];
}

/// Returns the rows at `places` as a batch.
pub fn gather<R: CubeRuntime>(pool: &Numbers<R>, places: &[usize], sources: &Numbers<R>, width: usize) -> Numbers<R> {
    assert!(places.iter().all(|place| (place + 1) * width <= pool.len), "a place beyond the pool");
    assert_eq!(sources.len, places.len() * width, "sources of a batch of another size");
    let batch = pool.empty(sources.len);
    let places = pool.upload(&whole(places));
    let (count, dim) = pool.units(batch.len);
    // SAFETY: `sources` refer to as many rows as there are places, and every place is within the pool.
    unsafe {
        let client = &pool.client;
        gather_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            pool.arg(),
            places.arg(),
            sources.arg(),
            batch.arg(),
            width,
        );
    }
    batch
}
