//! Rows of a log directory as plain values, before lookups and compilation.
//!
//! There is one struct per file of the input contract. Readers produce them and writers (importers, the synthetic generator)
//! consume them, so both sides agree by construction.

use super::targeting::Targeting;

/// How an impression is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdType {
    /// Guaranteed impressions with a penalty for each one missing.
    Contract,
    /// Paid by its eCPM.
    Auction,
}

/// One candidate of a request's ranked queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueEntry {
    pub ad_id: u64,
    pub ad_type: AdType,
    /// eCPM, minor units per 1,000 impressions.
    pub ecpm: f64,
    /// Predicted click probability, 0..=1.
    pub pctr: f64,
    /// Bit mask of reasons not to show the entry; 0 = may be shown.
    pub filter: u64,
    /// Multiplier on the entry's score; it does not change the worth.
    pub boost: f64,
}

/// One display request with its whole queue (`track_log`).
#[derive(Debug, Clone, PartialEq)]
pub struct TrackRow {
    pub request_id: u64,
    /// Time of the request, Unix milliseconds, UTC.
    pub ts_ms: u64,
    pub slot_id: u32,
    pub region: u32,
    /// Gender: 0 unknown, 1, 2.
    pub gender: u8,
    /// Age bucket 0..=9, 0 unknown.
    pub age: u8,
    pub user_id: Option<u64>,
    pub queue: Vec<QueueEntry>,
}

/// One contract (`control`).
#[derive(Debug, Clone, PartialEq)]
pub struct ControlRow {
    pub ad_id: u64,
    /// Impressions owed this day.
    pub required: u64,
    pub cap: u64,
    /// Impressions delivered before the log starts.
    pub delivered0: u64,
    /// Flight `[start_ms, end_ms)` in Unix milliseconds.
    pub start_ms: u64,
    pub end_ms: u64,
    pub targeting: Targeting,
    /// Planned play probability; `None` = computed by the planner.
    pub theta: Option<f64>,
    /// Probability that the contract enters a queue.
    pub rate: f64,
    /// Penalty, minor units per missing impression.
    pub penalty: f64,
    /// Worth of a predicted click, minor units.
    pub click_value: f64,
    /// Fallback click probability for logs that lack the contract's entry.
    pub pctr: Option<f64>,
}

/// One forecast supply node (`inventory`).
#[derive(Debug, Clone, PartialEq)]
pub struct InventoryRow {
    pub node_id: u64,
    pub slot_id: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    /// Forecast page views of the day.
    pub pv: f64,
    /// Shares of the day's views, 24, 48 or 96 of them, summing to 1.
    pub curve: Vec<f64>,
    /// Contracts that the node may serve; empty = derived from targeting.
    pub ad_ids: Vec<u64>,
}

/// One impression that the live system showed (`joined_exposure`).
#[derive(Debug, Clone, PartialEq)]
pub struct ExposureRow {
    pub request_id: u64,
    pub ts_ms: u64,
    pub arrival_ms: u64,
    pub ad_id: u64,
    pub ad_type: AdType,
    /// Amount charged, minor units per impression.
    pub charge: f64,
    pub ecpm: f64,
    pub pctr: f64,
    pub click: bool,
    /// Probability with which the ad was shown, (0, 1]; `None` = not logged.
    pub propensity: Option<f64>,
    pub explore: bool,
}

/// `day.toml`: the calendar day that a log directory holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DayFile {
    /// Local date, `YYYY-MM-DD`.
    pub date: String,
    #[serde(default)]
    pub utc_offset_minutes: i32,
}

pub const DAY_MS: u64 = 86_400_000;
/// Maximum number of entries in a queue.
pub const MAX_QUEUE: usize = 512;
/// Maximum eCPM, minor units per 1,000 impressions.
pub const MAX_ECPM: f64 = 1e7;
/// Maximum penalty, minor units per missing impression: ten times the maximum revenue of an auction impression.
pub const MAX_PENALTY: f64 = 1e5;
/// Maximum worth of a click, minor units.
pub const MAX_CLICK_VALUE: f64 = 1e6;
/// Maximum impressions of a contract in a day.
pub const MAX_IMPRESSIONS: u64 = 1_000_000_000;
/// Maximum page views of a forecast node in a day.
pub const MAX_PV: f64 = 1e12;
/// Maximum number of contracts of a day: planning them takes 2 GB where targeting is broad.
pub const MAX_CONTRACTS: usize = 10_000;
