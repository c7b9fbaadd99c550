//! Policies without learning. Each sees exactly what a learned policy sees, with the same feedback delay.

mod clock;
mod dual_descent;
mod lottery;
mod oracle;
mod pass_rate;
mod pid;
mod prices;
mod random;
mod receding;
mod simple;

pub use dual_descent::DualDescent;
pub use lottery::{ShaleLottery, ThetaLottery};
pub use oracle::Oracle;
pub use pass_rate::PassRate;
pub use pid::Pid;
pub use prices::FixedPrices;
pub use random::Random;
pub use receding::{Receding, RecedingState};
pub use simple::{AuctionOnly, ContractFirst};

use crate::plan::{Plan, Tuned};

/// A baseline: how it is called, which forms it has, and how it is made.
struct Baseline {
    name: &'static str,
    /// Whether it is a classical controller. Studies say how much of the best one's gap a policy closes.
    classical: bool,
    /// Whether it also exists as NAME[`PREDICTING`].
    predicts: bool,
    /// Whether its scores on a request are drawn by the request's id, so that one request says nothing of the next.
    draws: bool,
    make: fn(&Parts) -> Made,
}

type Made = Result<Box<dyn super::Policy>, String>;

impl Baseline {
    const fn new(name: &'static str, make: fn(&Parts) -> Made) -> Self {
        Self { name, classical: false, predicts: false, draws: false, make }
    }

    const fn classical(self) -> Self {
        Self { classical: true, ..self }
    }

    const fn predicts(self) -> Self {
        Self { predicts: true, ..self }
    }

    const fn draws(self) -> Self {
        Self { draws: true, ..self }
    }
}

/// The baselines in the order of tables. Commands, help, studies and reports take names and properties from here.
const TABLE: [Baseline; 11] = [
    Baseline::new("random", |_| Ok(Box::new(Random::new(RANDOM_SEED)))).draws(),
    Baseline::new("auction-only", |_| Ok(Box::new(AuctionOnly))),
    Baseline::new("contract-first", |_| Ok(Box::new(ContractFirst))),
    Baseline::new("theta-lottery", |of| of.plan().map(|_| Box::new(ThetaLottery::default()) as _)).draws(),
    Baseline::new("shale", |of| of.plan().map(|_| Box::new(ShaleLottery::default()) as _)).draws(),
    Baseline::new("pass-rate", |of| Ok(Box::new(PassRate::new(of.tuned()?.pass_rate_step, of.tuned()?.interval_s))))
        .draws(),
    Baseline::new("static-prices", |of| of.plan().map(|_| Box::new(FixedPrices::default()) as _)),
    Baseline::new("pid", |of| Ok(Box::new(Pid::new(of.tuned()?.pid, of.tuned()?.interval_s)))).classical().predicts(),
    Baseline::new("dual-descent-cold", |of| {
        Ok(Box::new(DualDescent::cold(of.tuned()?.dual_cold_step, of.tuned()?.interval_s)))
    })
    .classical()
    .predicts(),
    Baseline::new("dual-descent-warm", |of| {
        Ok(Box::new(DualDescent::warm(of.tuned()?.dual_warm_step, of.tuned()?.interval_s)))
    })
    .classical()
    .predicts(),
    Baseline::new("receding-horizon", |of| {
        Ok(Box::new(Receding::new(of.plan()?.sample.clone(), of.tuned()?.receding)))
    })
    .predicts(),
];

/// Names of the baselines, in the order of the table.
pub const NAMES: [&str; TABLE.len()] = {
    let mut names = [""; TABLE.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = TABLE[i].name;
        i += 1;
    }
    names
};

/// Suffix of a baseline that counts its displays as delivered before they are observed: a Smith predictor. If
/// every display is confirmed in the end, as in replay, it equals the baseline without delay, tuned without delay.
pub const PREDICTING: &str = "-predicting";

/// Returns the names of the baselines that predict deliveries.
pub fn predictors() -> Vec<String> {
    TABLE.iter().filter(|b| b.predicts).map(|b| format!("{}{PREDICTING}", b.name)).collect()
}

/// Returns every name, predicting ones last.
pub fn known() -> Vec<String> {
    NAMES.map(String::from).into_iter().chain(predictors()).collect()
}

/// Whether a name is that of a baseline with a property, in its predicting form or not.
fn has(name: &str, property: impl Fn(&Baseline) -> bool) -> bool {
    let name = name.strip_suffix(PREDICTING).unwrap_or(name);
    TABLE.iter().any(|b| b.name == name && property(b))
}

/// Whether a name is that of a classical controller.
pub fn is_classical(name: &str) -> bool {
    has(name, |b| b.classical)
}

/// Whether a name is that of a baseline that draws on each request.
pub fn draws(name: &str) -> bool {
    has(name, |b| b.draws)
}

/// Seed of the random baseline's draws.
const RANDOM_SEED: u64 = 0x4A4D_0000_0000_0001;

/// What a baseline is made of.
struct Parts<'a> {
    name: &'a str,
    plan: Option<&'a Plan>,
    predicting: bool,
}

impl Parts<'_> {
    fn plan(&self) -> Result<&Plan, String> {
        self.plan.ok_or_else(|| format!("{} needs a plan: give --plan or a trained --policy", self.name))
    }

    fn tuned(&self) -> Result<Tuned, String> {
        let plan = self.plan()?;
        // A plan that was made for no delay is also one for predicting.
        let tuned = if self.predicting { plan.tuned_predicting.or(plan.tuned) } else { plan.tuned };
        tuned.ok_or_else(|| format!("{} needs a tuned plan; make the plan again", self.name))
    }
}

/// Returns the baseline called `name`, for a day planned with `plan`.
///
/// # Errors
/// If the name is unknown, or the plan lacks a part that the baseline needs; the error names it.
pub fn named(name: &str, plan: Option<&Plan>) -> Made {
    let found = TABLE.iter().find_map(|b| match name.strip_prefix(b.name)? {
        "" => Some((b, false)),
        PREDICTING if b.predicts => Some((b, true)),
        _ => None,
    });
    let Some((baseline, predicting)) = found else {
        return Err(format!("no baseline `{name}`; there are {}", known().join(", ")));
    };
    (baseline.make)(&Parts { name: baseline.name, plan, predicting })
}
