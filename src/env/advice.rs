//! Output of a replanner for each contract, stored in the state.

/// Number of columns that a replanner writes for each contract: the addition to the logit of the bid, then [`Advice`].
pub const ADVICE_COLUMNS: usize = 4;

/// A replanner's information on a contract's price, besides the one at which its bid starts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Advice {
    /// Logit of the price relative to the static one, at the forecast's volume and price levels.
    pub forecast: f32,
    /// Derivative of the logit by the log of the volume.
    pub by_volume: f32,
    /// Log of 0.1 plus the derivative of the supply won, as a share of the demand, by the log of the price.
    pub supply: f32,
}
