//! Scalar formulas, each written once and compiled twice: for loops on the host and for kernels on a GPU.
//!
//! **Why twice.** `#[cube]` also emits a function as plain Rust, so functions over `f32` serve both sides unchanged
//! ([`shared`]). Functions that the host computes in double precision cannot: the arithmetic of cubecl's generic floats exists
//! in kernels only. So [`host`] and [`device`] are one source file, included with `Real` as `f64` and as `f32`. (A macro cannot
//! emit it: `#[cube]` and macro hygiene do not go together.)

/// For the host, in double precision.
pub mod host {
    /// Number type of the host.
    pub type Real = f64;

    include!("real.rs");
}

/// For kernels, in single precision.
#[allow(clippy::unnecessary_cast, reason = "the host casts from double precision")]
pub mod device {
    /// Number that kernels compute with.
    pub type Real = f32;

    include!("real.rs");
}

/// Formulas of the value model that both sides compute in single precision.
pub mod values;

/// Formulas that both sides compute in single precision.
pub mod shared {
    use cubecl::prelude::*;

    /// Whether a contract bids in a step of many requests, because a later request may show it even if the first may not.
    /// `flight_state` is -1 before the flight, 0 within it, 1 after it.
    #[cube]
    pub fn may_bid(flight_state: f32, delivered: f32, left: f32) -> bool {
        flight_state < 1.0 && delivered < left
    }

    /// Returns the number of impressions by which the row after a display is ahead: a step's requests, at most `left`, at least 1.
    #[cube]
    pub fn ahead(requests: f32, left: f32) -> f32 {
        let mut ahead = left;
        if ahead < 1.0 {
            ahead = f32::new(1.0);
        }
        if ahead > requests {
            ahead = requests;
        }
        ahead
    }

    /// Returns the change of a contract's expected future earnings by the next impression.
    #[cube]
    pub fn outlook(after: f32, now: f32, ahead: f32) -> f32 {
        (after - now) / ahead
    }

    /// Returns the derivative of a request's expected value by the output of one of its offers; `probability` may include a
    /// weight.
    #[cube]
    pub fn policy_gradient(probability: f32, advantage: f32, expected: f32, slope: f32) -> f32 {
        probability * (advantage - expected) * slope
    }

    /// Computes one step of V-trace lambda-returns with gamma 1 (Espeholt et al. 2018, section 4.1):
    /// `G_t = V_t + rho_t (r_t + V_(t+1) - V_t + lambda (G_(t+1) - V_(t+1)))`.
    #[cube]
    pub fn return_step(
        value: f32,
        reward: f32,
        next_value: f32,
        next_return: f32,
        ratio: f32,
        by: &LossFactors,
    ) -> f32 {
        let delta = reward + next_value - value;
        value + ratio * (delta + by.lambda * (next_return - next_value))
    }

    /// Constants of the losses, from the settings.
    #[derive(Debug, Clone, Copy, CubeType, CubeLaunch)]
    pub struct LossFactors {
        /// Temperature of the softmax over a request's offers, in units of the mean best auction worth.
        pub temperature: f32,
        /// Lambda of the lambda-returns.
        pub lambda: f32,
        /// Constants of the quantile Huber loss: `1 / kappa` and `kappa / 2`.
        pub inverse_kappa: f32,
        pub half_kappa: f32,
    }

    /// Returns the derivative of the squared loss of a difference between the return and its estimate, and the loss.
    #[cube]
    #[inline(always)]
    pub fn scalar_loss(u: f32) -> (f32, f32) {
        (u, 0.5f32 * u * u)
    }

    /// Returns the derivative of Huber's loss of a difference between a target and the quantile `tau`, and the loss (Dabney et
    /// al. 2018, equations 9 and 10). The loss is `u^2 / (2 kappa)` within kappa and `|u| - kappa / 2` outside, weighted by the
    /// side.
    #[cube]
    #[inline(always)]
    pub fn quantile_huber(u: f32, tau: f32, by: &LossFactors) -> (f32, f32) {
        let mut side = tau;
        if u < 0.0 {
            side = 1.0f32 - tau;
        }
        let mut bounded = u * by.inverse_kappa;
        if bounded < -1.0 {
            bounded = f32::new(-1.0);
        }
        if bounded > 1.0 {
            bounded = f32::new(1.0);
        }
        (side * bounded, side * (bounded * (u - by.half_kappa * bounded)))
    }

    /// Constants of a step of Adam.
    #[derive(Debug, Clone, Copy, CubeType, CubeLaunch)]
    pub struct AdamFactors {
        /// Maximum norm of the gradient.
        pub clip: f32,
        /// Learning rate over the correction of the first moment.
        pub rate: f32,
        /// Correction of the second moment.
        pub correction: f32,
        pub epsilon: f32,
        /// Rate of the exponential moving average that follows the parameter.
        pub follow: f32,
        /// Weights of the old value and of the gradient in each moment.
        pub decay1: f32,
        pub fresh1: f32,
        pub decay2: f32,
        pub fresh2: f32,
    }

    impl AdamFactors {
        /// Returns the constants as a kernel's launch argument.
        pub fn launched<R: Runtime>(self) -> AdamFactorsLaunch<R> {
            let Self { clip, rate, correction, epsilon, follow, decay1, fresh1, decay2, fresh2 } = self;
            AdamFactorsLaunch::new(clip, rate, correction, epsilon, follow, decay1, fresh1, decay2, fresh2)
        }
    }

    /// A parameter with its optimiser state.
    #[derive(Debug, Clone, Copy, CubeType)]
    pub struct AdamParameter {
        pub param: f32,
        pub follower: f32,
        pub first: f32,
        pub second: f32,
    }

    /// Returns the factor that clips a gradient of this norm.
    #[cube]
    pub fn clip_factor(norm: f32, clip: f32) -> f32 {
        let mut factor = 1.0f32 / (norm + 1e-12f32) * clip;
        if factor > 1.0 {
            factor = f32::new(1.0);
        }
        factor
    }

    /// Does one step of Adam (Kingma and Ba 2015) on a clipped gradient; the follower moves towards the parameter.
    #[cube]
    #[inline(always)]
    pub fn adam(gradient: f32, old: &AdamParameter, by: &AdamFactors) -> AdamParameter {
        let first = old.first * by.decay1 + gradient * by.fresh1;
        let second = old.second * by.decay2 + gradient * gradient * by.fresh2;
        let param = old.param - first * by.rate / ((second / by.correction).sqrt() + by.epsilon);
        let follower = old.follower + (param - old.follower) * by.follow;
        AdamParameter { param, follower, first, second }
    }
}
