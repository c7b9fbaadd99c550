//! Results of tuning on the training days, for the baselines with parameters and for the controller under the learned
//! bids.

use serde::{Deserialize, Serialize};

use super::amount::is_amount;

/// Tuned parameters by baseline; tuning starts from the defaults. Plans and policy files hold them: a file that was written
/// before a baseline existed has the defaults for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuned {
    /// Seconds of log time between two steps of a controller.
    #[serde(default = "usual_interval_s")]
    pub interval_s: f64,
    pub pid: PidGains,
    /// Relative change of a pass rate in one step of the throttle.
    pub pass_rate_step: f64,
    /// Step size of dual descent from half the penalty, and from the training days' prices: the price change, as a share of a
    /// contract's stake, if its whole demand is missing.
    pub dual_cold_step: f64,
    pub dual_warm_step: f64,
    pub receding: Horizon,
    /// Gains of the controller under the learned policy's bids.
    pub pacing: PacingGains,
}

/// The interval of plans that do not say theirs.
fn usual_interval_s() -> f64 {
    Tuned::default().interval_s
}

impl Tuned {
    /// Returns each tuned baseline's name with its parameters in words.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        // Not `..`: a field that is added does not compile until it is named here.
        let Self { interval_s: _, pid, pass_rate_step, dual_cold_step, dual_warm_step, receding, pacing: _ } = self;
        vec![
            ("pid", format!("P {:.2}, I {:.2}, D {:.3}", pid.proportional, pid.integral, pid.derivative)),
            ("pass-rate", format!("step {pass_rate_step:.3}")),
            ("dual-descent-cold", format!("step {dual_cold_step:.2}")),
            ("dual-descent-warm", format!("step {dual_warm_step:.2}")),
            ("receding-horizon", format!("each {:.0} s, price memory {:.0} s", receding.interval_s, receding.memory_s)),
        ]
    }

    /// Whether every figure can be used.
    pub(super) fn is_sound(&self) -> bool {
        let Self { interval_s, pid, pass_rate_step, dual_cold_step, dual_warm_step, receding, pacing } = *self;
        let steps = [pass_rate_step, dual_cold_step, dual_warm_step];
        let gains =
            [pid.proportional, pid.integral, pid.derivative, pacing.proportional, pacing.integral, pacing.market];
        steps.iter().chain(&gains).all(|v| is_amount(v.abs()))
            && (1.0..=86_400.0).contains(&interval_s)
            && [receding.interval_s, receding.memory_s].iter().all(|&v| is_amount(v) && v > 0.0)
    }
}

impl Default for Tuned {
    fn default() -> Self {
        Self {
            interval_s: 300.0,
            pid: PidGains::default(),
            pass_rate_step: 0.1,
            dual_cold_step: 5.0,
            dual_warm_step: 5.0,
            receding: Horizon::default(),
            pacing: PacingGains::default(),
        }
    }
}

/// Gains of the PID baseline on the logarithm of a contract's virtual bid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PidGains {
    pub proportional: f64,
    pub integral: f64,
    pub derivative: f64,
}

impl Default for PidGains {
    /// Robust gains for a day of some thousand requests; tuning starts from them.
    fn default() -> Self {
        Self { proportional: 10.0, integral: 30.0, derivative: 0.0 }
    }
}

/// Gains of the learned policy's pacing controller on the logit of a contract's bid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacingGains {
    /// Gain on the planned minus the observed share of the demand.
    pub proportional: f64,
    /// Gain on the sum of that error over the planned share.
    pub integral: f64,
    /// Gain on the logarithm of the price level seen on the contract's requests over the expected one.
    pub market: f64,
}

impl PacingGains {
    /// No controller.
    pub const NONE: Self = Self { proportional: 0.0, integral: 0.0, market: 0.0 };
}

impl Default for PacingGains {
    /// Robust gains for a day of some thousand requests; tuning starts from them.
    fn default() -> Self {
        Self { proportional: 10.0, integral: 30.0, market: 0.25 }
    }
}

/// Settings of the receding-horizon baseline. Seconds of log time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Horizon {
    /// Interval between two solutions.
    pub interval_s: f64,
    /// Time constant of the observed price level.
    pub memory_s: f64,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { interval_s: 600.0, memory_s: 10_800.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan or policy that was made before a baseline existed stays readable.
    #[test]
    fn a_file_without_a_field_has_its_default() {
        let tuned = Tuned { pass_rate_step: 0.25, ..Tuned::default() };
        let mut file = serde_json::to_value(tuned).unwrap();
        let fields: Vec<String> = file.as_object().unwrap().keys().cloned().collect();
        for field in fields.iter().filter(|field| *field != "pass_rate_step") {
            file.as_object_mut().unwrap().remove(field);
            assert_eq!(serde_json::from_value::<Tuned>(file.clone()).unwrap(), tuned, "without {field}");
        }
        file["pass_rat_step"] = 1.0.into();
        assert!(serde_json::from_value::<Tuned>(file).is_err(), "an unknown field is refused");
    }
}
