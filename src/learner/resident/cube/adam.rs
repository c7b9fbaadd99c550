//! Steps of the optimiser: a norm in parts, then everything that a step changes in one launch.

use burn::tensor::Tensor;
use burn_cubecl::{BoolElement, CubeRuntime};
use cubecl::prelude::*;

use super::super::super::optimiser::{Arrays, Optimise, Step};
use super::{CUBE, Cube, Numbers};

/// Parts of a sum of squares, each of a cube.
const PARTS: usize = 64;

/// What a step multiplies and adds.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Factors {
    clip: f32,
    rate: f32,
    correction: f32,
    epsilon: f32,
    follow: f32,
    decay1: f32,
    fresh1: f32,
    decay2: f32,
    fresh2: f32,
}

/// Each cube sums the squares of every [`PARTS`]th stretch of numbers.
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

/// One unit for each parameter.
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
    by: Factors,
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
    let mut factor = by.clip / (norm + 1e-12);
    if factor > 1.0 {
        factor = f32::new(1.0);
    }
    let g = gradient[i] * factor;
    let m = first[i] * by.decay1 + g * by.fresh1;
    let v = second[i] * by.decay2 + g * g * by.fresh2;
    let param = params[i] - m * by.rate / ((v / by.correction).sqrt() + by.epsilon);
    new_first[i] = m;
    new_second[i] = v;
    new_params[i] = param;
    new_follower[i] = follower[i] + (param - follower[i]) * by.follow;
}

impl<R: CubeRuntime, B: BoolElement> Optimise for Cube<R, B> {
    fn step(at: &Arrays<Self>, gradient: Tensor<Self, 1>, step: Step) -> (Arrays<Self>, Tensor<Self, 1>) {
        let gradient = Numbers::of(&gradient);
        let old = [&at.params, &at.follower, &at.first, &at.second].map(|array| Numbers::of(array));
        assert!(old.iter().all(|array| array.len == gradient.len), "a gradient of other parameters");
        let new = [(); 4].map(|()| gradient.empty(gradient.len));
        let squares = gradient.empty(PARTS);
        let norm = gradient.empty(1);
        let [decay1, decay2] = Step::DECAY;
        let factors = FactorsLaunch::new(
            step.clip as f32,
            step.rate as f32,
            step.correction as f32,
            step.epsilon as f32,
            step.follow as f32,
            decay1 as f32,
            (1.0 - decay1) as f32,
            decay2 as f32,
            (1.0 - decay2) as f32,
        );
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
                factors,
            );
        }
        let [params, follower, first, second] = new.map(Numbers::flat);
        (Arrays { params, follower, first, second }, norm.flat())
    }
}
