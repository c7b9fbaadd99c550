//! Policies without learning. Each sees exactly what a learned policy sees, with the same feedback delay.

mod clock;
mod dual_descent;
mod lottery;
mod pass_rate;
mod pid;
mod prices;
mod random;
mod receding;
mod simple;

pub use dual_descent::DualDescent;
pub use lottery::{ShaleLottery, ThetaLottery};
pub use pass_rate::PassRate;
pub use pid::Pid;
pub use prices::FixedPrices;
pub use random::Random;
pub use receding::{Receding, RecedingState};
pub use simple::{AuctionOnly, ContractFirst};

use crate::plan::{Plan, Tuned};

/// Names of the baselines, in the order of the table.
pub const NAMES: [&str; 11] = [
    "random",
    "auction-only",
    "contract-first",
    "theta-lottery",
    "shale",
    "pass-rate",
    "static-prices",
    "pid",
    "dual-descent-cold",
    "dual-descent-warm",
    "receding-horizon",
];

/// Suffix of a baseline that counts its displays as delivered before they are observed: a Smith predictor. If
/// every display is confirmed in the end, as in replay, it equals the baseline without delay, tuned without delay.
pub const PREDICTING: &str = "-predicting";

/// Names of the baselines that can predict.
pub const PREDICTORS: [&str; 4] =
    ["pid-predicting", "dual-descent-cold-predicting", "dual-descent-warm-predicting", "receding-horizon-predicting"];

/// Returns every name, predicting ones last.
pub fn known() -> Vec<&'static str> {
    NAMES.into_iter().chain(PREDICTORS).collect()
}

/// Seed of the random baseline's draws.
const RANDOM_SEED: u64 = 0x4A4D_0000_0000_0001;

/// Returns the baseline called `name`, for a day planned with `plan`.
///
/// `interval_s`: seconds of log time between two steps of a controller.
///
/// # Errors
/// If the name is unknown, or the plan lacks a part that the baseline needs; the error names it.
pub fn named(name: &str, plan: Option<&Plan>, interval_s: f64) -> Result<Box<dyn super::Policy>, String> {
    let (name, predicts) = match name.strip_suffix(PREDICTING).filter(|_| PREDICTORS.contains(&name)) {
        Some(name) => (name, true),
        None => (name, false),
    };
    let planned = || plan.ok_or_else(|| format!("{name} needs a plan: give --plan or a trained --policy"));
    let tuned = || -> Result<Tuned, String> {
        let plan = planned()?;
        // A plan that was made for no delay is also one for predicting.
        let tuned = if predicts { plan.tuned_predicting.or(plan.tuned) } else { plan.tuned };
        tuned.ok_or_else(|| format!("{name} needs a tuned plan; make the plan again"))
    };
    Ok(match name {
        "random" => Box::new(Random::new(RANDOM_SEED)),
        "auction-only" => Box::new(AuctionOnly),
        "contract-first" => Box::new(ContractFirst),
        "theta-lottery" => {
            planned()?;
            Box::new(ThetaLottery::default())
        }
        "shale" => {
            planned()?;
            Box::new(ShaleLottery::default())
        }
        "pass-rate" => Box::new(PassRate::new(tuned()?.pass_rate_step, interval_s)),
        "static-prices" => {
            planned()?;
            Box::new(FixedPrices::training_days())
        }
        "pid" => Box::new(Pid::new(tuned()?.pid, interval_s)),
        "dual-descent-cold" => Box::new(DualDescent::cold(tuned()?.dual_cold_step, interval_s)),
        "dual-descent-warm" => Box::new(DualDescent::warm(tuned()?.dual_warm_step, interval_s)),
        "receding-horizon" => Box::new(Receding::new(planned()?.sample.clone(), tuned()?.receding)),
        other => return Err(format!("no baseline `{other}`; there are {}", known().join(", "))),
    })
}
