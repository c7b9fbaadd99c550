//! One contract: its targeting, flight, supply, demand and prices.

use super::audience::{BIN_MS, Cell};
use crate::log::schema::DAY_MS;
use crate::log::targeting::Targeting;

/// Difficulty of a contract's demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Easy,
    Tight,
    OverBooked,
    /// Owes few impressions to a narrow audience, of which it needs a large part.
    Small,
}

/// The lasting attributes of a contract; only its demand is redrawn every day.
#[derive(Debug, Clone)]
pub struct Contract {
    pub ad_id: u64,
    pub kind: Kind,
    pub targeting: Targeting,
    /// Flight in half hours after midnight, half open.
    pub flight: (usize, usize),
    /// Expected share of all requests that match and are in flight.
    pub supply: f64,
    /// Expected required impressions, as a share of all requests.
    pub demand: f64,
    /// Expected share of the contract's supply that lies before each half hour (49 values, 0 to 1).
    pub elapsed: Vec<f64>,
    /// Penalty, minor units per missing impression.
    pub penalty: f64,
    /// Worth of a predicted click, minor units.
    pub click_value: f64,
    /// Mean predicted click probability.
    pub pctr: f64,
}

impl Contract {
    /// Returns whether the flight covers this time after midnight.
    pub fn flies(&self, ms: u64) -> bool {
        let bin = (ms / BIN_MS) as usize;
        (self.flight.0..self.flight.1).contains(&bin)
    }

    /// Returns the expected share of the contract's supply that has passed, 0 to 1, at a time after midnight.
    pub fn elapsed_at(&self, ms: u64) -> f64 {
        let ms = ms.min(DAY_MS - 1);
        let (bin, part) = ((ms / BIN_MS) as usize, (ms % BIN_MS) as f64 / BIN_MS as f64);
        self.elapsed[bin] + part * (self.elapsed[bin + 1] - self.elapsed[bin])
    }

    /// Returns whether the targeting matches this cell.
    pub fn matches(&self, cell: &Cell) -> bool {
        self.targeting.matches(cell.slot, cell.region, cell.gender, cell.age)
    }
}
