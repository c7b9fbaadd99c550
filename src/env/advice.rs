//! What a replanner writes into the state for each contract.

/// Columns that a replanner writes for each contract: what is added to the logit of the bid, then [`Advice`].
pub const ADVICE_COLUMNS: usize = 5;

/// What a replanner knows of a contract's price, beside where its bid starts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Advice {
    /// Logit of the price relative to the static one: at the volume and price levels seen, and at the forecast's.
    pub seen: f32,
    pub forecast: f32,
    /// What a doubling of the volume by `e` moves the logit by.
    pub by_volume: f32,
    /// What the supply won grows by, as a share of the demand, when the price grows by `e`.
    pub supply: f32,
}
