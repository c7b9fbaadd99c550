//! Rows into the pool, batches out of it.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use super::Numbers;

/// One unit for each number of the rows.
#[cube(launch_unchecked)]
fn write_kernel(rows: &Array<f32>, places: &Array<u32>, pool: &mut Array<f32>, width: usize) {
    if ABSOLUTE_POS >= rows.len() {
        terminate!();
    }
    let row = ABSOLUTE_POS / width;
    let to = places[row] as usize * width + ABSOLUTE_POS - row * width;
    pool[to] = rows[ABSOLUTE_POS];
}

/// One unit for each number of the batch.
#[cube(launch_unchecked)]
fn gather_kernel(pool: &Array<f32>, places: &Array<u32>, sources: &Array<u32>, batch: &mut Array<f32>, width: usize) {
    if ABSOLUTE_POS >= batch.len() {
        terminate!();
    }
    let source = sources[ABSOLUTE_POS] as usize;
    let row = source / width;
    batch[ABSOLUTE_POS] = pool[places[row] as usize * width + source - row * width];
}

fn whole(places: &[usize]) -> Vec<u32> {
    places.iter().map(|place| *place as u32).collect()
}

/// Writes rows where they are: nobody but the pool's owner has it.
pub fn write<R: CubeRuntime>(pool: &Numbers<R>, rows: &[f32], places: &[usize], width: usize) {
    assert!(places.iter().all(|place| (place + 1) * width <= pool.len), "a place beyond the pool");
    let rows = pool.with(pool.client.create_from_slice(bytemuck::cast_slice(rows)), rows.len());
    assert_eq!(rows.len, places.len() * width, "a place for each row");
    let places = pool.upload(&whole(places));
    let (count, dim) = pool.units(rows.len);
    // SAFETY: every unit beyond the rows ends, and every place is within the pool.
    unsafe {
        write_kernel::launch_unchecked::<R>(&pool.client, count, dim, rows.arg(), places.arg(), pool.arg(), width);
    }
}

/// The rows at `places` as a batch.
pub fn gather<R: CubeRuntime>(pool: &Numbers<R>, places: &[usize], sources: &Numbers<R>, width: usize) -> Numbers<R> {
    assert!(places.iter().all(|place| (place + 1) * width <= pool.len), "a place beyond the pool");
    assert_eq!(sources.len, places.len() * width, "sources of a batch of another size");
    let batch = pool.empty(sources.len);
    let places = pool.upload(&whole(places));
    let (count, dim) = pool.units(batch.len);
    // SAFETY: sources are of as many rows as there are places, and every place is within the pool.
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
