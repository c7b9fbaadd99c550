//! The network's parameters on a device, and their optimiser.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::formulas::shared::{AdamFactors, AdamParameter, adam};
use crate::gpu::numbers::Numbers;

/// Largest number that is finite.
pub const FINITE: f32 = f32::MAX;

/// Does a step of Adam in place; one unit for each parameter.
#[cube(launch_unchecked)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is not finite either")]
fn adam_kernel(
    gradient: &Array<f32>,
    params: &mut Array<f32>,
    first: &mut Array<f32>,
    second: &mut Array<f32>,
    bad: &mut Array<f32>,
    by: AdamFactors,
) {
    let i = ABSOLUTE_POS;
    if i >= gradient.len() {
        terminate!();
    }
    let g = gradient[i];
    if !(g.abs() <= FINITE) {
        bad[0] = f32::new(1.0);
    }
    let old = AdamParameter { param: params[i], follower: params[i], first: first[i], second: second[i] };
    let new = adam(g, &old, &by);
    params[i] = new.param;
    first[i] = new.first;
    second[i] = new.second;
}

/// Parameters with their moments.
pub struct Parameters<R: CubeRuntime> {
    pub params: Numbers<R>,
    pub first: Numbers<R>,
    pub second: Numbers<R>,
}

impl<R: CubeRuntime> Parameters<R> {
    /// Does a step along a gradient; one that is not finite is noted in `bad`.
    pub fn step(&self, gradient: &Numbers<R>, by: AdamFactors, bad: &Numbers<R>) {
        assert_eq!(gradient.len, self.params.len, "a gradient of other parameters");
        let (count, dim) = gradient.units(gradient.len);
        // SAFETY: units beyond the arrays, which have one length, end.
        unsafe {
            adam_kernel::launch_unchecked::<R>(
                &gradient.client,
                count,
                dim,
                gradient.arg(),
                self.params.arg(),
                self.first.arg(),
                self.second.arg(),
                bad.arg(),
                by.launched(),
            );
        }
    }
}
