//! Steps of the optimiser: the norm in parts, then all arrays in one launch.

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::formulas::shared::{AdamFactors, AdamParameter, adam, clip_factor};

use super::super::super::optimiser::{Arrays, Optimise};
use crate::gpu::numbers::{CUBE, Cube, Numbers};

/// Number of parts of a sum of squares, one cube each.
const PARTS: usize = 64;

/// Sums the squares of every [`PARTS`]th stretch of numbers in each cube.
#[cube(launch_unchecked)]
fn squares_kernel(gradient: &Array<f32>, parts: &mut Array<f32>) {
    let unit = UNIT_POS as usize;
    let units = comptime!(CUBE as usize);
    let mut sums = SharedMemory::<f32>::new(units);
    let mut sum = 0.0f32;
    let mut i = CUBE_POS * units + unit;
    while i < gradient.len() {
        sum += gradient[i] * gradient[i];
        i += units * parts.len();
    }
    sums[unit] = sum;
    sync_cube();
    if unit == 0 {
        let mut sum = 0.0f32;
        for i in 0..units {
            sum += sums[i];
        }
        parts[CUBE_POS] = sum;
    }
}

/// Does a step, with one unit for each parameter.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn step_kernel(
    gradient: &Array<f32>,
    squares: &Array<f32>,
    params: &Array<f32>,
    follower: &Array<f32>,
    first: &Array<f32>,
    second: &Array<f32>,
    new_params: &mut Array<f32>,
    new_follower: &mut Array<f32>,
    new_first: &mut Array<f32>,
    new_second: &mut Array<f32>,
    norm_out: &mut Array<f32>,
    by: AdamFactors,
) {
    let i = ABSOLUTE_POS;
    if i >= gradient.len() {
        terminate!();
    }
    let mut square = 0.0f32;
    for part in 0..squares.len() {
        square += squares[part];
    }
    let norm = square.sqrt();
    if i == 0 {
        norm_out[0] = norm;
    }
    let g = gradient[i] * clip_factor(norm, by.clip);
    let old = AdamParameter { param: params[i], follower: follower[i], first: first[i], second: second[i] };
    let new = adam(g, &old, &by);
    new_first[i] = new.first;
    new_second[i] = new.second;
    new_params[i] = new.param;
    new_follower[i] = new.follower;
}

impl<R: CubeRuntime> Optimise for Cube<R> {
    fn step(at: &mut Arrays<Self>, gradient: Tensor<Self, 1>, step: AdamFactors) -> Tensor<Self, 1> {
        let gradient = Numbers::of(&gradient);
        let old = [&at.params, &at.follower, &at.first, &at.second].map(|array| Numbers::of(array));
        assert!(old.iter().all(|array| array.len == gradient.len), "a gradient of other parameters");
        let new = [(); 4].map(|()| gradient.empty(gradient.len));
        let squares = gradient.empty(PARTS);
        let norm = gradient.empty(1);
        let client = &gradient.client;
        let cubes = CubeCount::Static(PARTS as u32, 1, 1);
        let (count, dim) = gradient.units(gradient.len);
        // SAFETY: units beyond the arrays, which have one length, end; a cube for each part.
        unsafe {
            squares_kernel::launch_unchecked::<R>(client, cubes, dim, gradient.arg(), squares.arg());
            let [params, follower, first, second] = &old;
            let [new_params, new_follower, new_first, new_second] = &new;
            step_kernel::launch_unchecked::<R>(
                client,
                count,
                dim,
                gradient.arg(),
                squares.arg(),
                params.arg(),
                follower.arg(),
                first.arg(),
                second.arg(),
                new_params.arg(),
                new_follower.arg(),
                new_first.arg(),
                new_second.arg(),
                norm.arg(),
                step.launched(),
            );
        }
        let [params, follower, first, second] = new.map(Numbers::flat);
        *at = Arrays { params, follower, first, second };
        norm.flat()
    }
}
