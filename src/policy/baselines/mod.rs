//! What can be had without learning; each sees exactly what a learned policy sees, with the same feedback delay.

mod lottery;
mod pid;
mod prices;
mod simple;
pub mod tune;

pub use lottery::{ShaleLottery, ThetaLottery};
pub use pid::Pid;
pub use prices::FixedPrices;
pub use simple::{AuctionOnly, ContractFirst};

/// Names of the baselines, in the order of the table.
pub const NAMES: [&str; 6] = ["auction-only", "contract-first", "theta-lottery", "shale", "static-prices", "pid"];

/// The baseline called `name`, for a day planned with `plan`; an error says what it lacks.
///
/// # Errors
/// An unknown name, or a plan without what the baseline needs.
pub fn named(name: &str, plan: Option<&crate::plan::Plan>, interval_s: f64) -> Result<Box<dyn super::Policy>, String> {
    let needs_plan = || format!("{name} needs a plan: give --plan or a trained --policy");
    Ok(match name {
        "auction-only" => Box::new(AuctionOnly),
        "contract-first" => Box::new(ContractFirst),
        "theta-lottery" => {
            plan.ok_or_else(needs_plan)?;
            Box::new(ThetaLottery::default())
        }
        "shale" => {
            plan.ok_or_else(needs_plan)?;
            Box::new(ShaleLottery::default())
        }
        "static-prices" => {
            plan.ok_or_else(needs_plan)?;
            Box::new(FixedPrices::training_days())
        }
        "pid" => {
            let gains = plan.ok_or_else(needs_plan)?.pid.ok_or("pid needs tuned gains; make the plan again")?;
            Box::new(Pid::new(gains, interval_s))
        }
        other => return Err(format!("no baseline `{other}`; there are {}", NAMES.join(", "))),
    })
}
