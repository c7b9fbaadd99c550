//! The keys of a world file, with their units, defaults and valid ranges.

use std::collections::BTreeMap;

use super::error_settings::ErrorSettings;
use crate::log::day::parse_date;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::log::schema::{DAY_MS, MAX_QUEUE};

/// Format of the large tables of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    Zst,
    Gz,
    None,
    /// The track log as Parquet, the other tables as `.tsv.zst` with quick compression: for days of millions of requests.
    Parquet,
}

impl Compress {
    /// Returns the file extension appended to the name of a table.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Zst | Self::Parquet => ".zst",
            Self::Gz => ".gz",
            Self::None => "",
        }
    }
}

/// A permanent step of all auction prices within one day.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jump {
    /// Index of the day, from 0; if fewer days are written, there is no jump.
    pub day: u32,
    /// Hour of that day, 0..24, from which prices are multiplied.
    pub hour: f64,
    /// Multiplier of the eCPM of every auction ad.
    pub factor: f64,
}

/// Settings of one synthetic world. Standard deviations of multiplicative quantities are those of the logarithm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSettings {
    /// Seed of everything that is drawn; default 1.
    pub seed: u64,
    /// Days to write; default 8.
    pub days: u32,
    /// Date of day-0, `YYYY-MM-DD`; default 2026-01-05.
    pub start_date: String,
    /// `zst` (default), `gz` or `none`, for track_log and joined_exposure; `parquet` writes track_log as Parquet.
    pub compress: Compress,

    /// Mean requests per day; default 60,000.
    pub requests: u32,
    /// Entries per queue, contracts included; default 16. Queues with many contracts are longer, because they always have two
    /// auction entries.
    pub queue: usize,
    /// Number of regions, Zipf-like in size; default 12.
    pub regions: u32,
    /// Known age buckets, 1..=9, beside the unknown one; default 6.
    pub ages: u8,
    /// Number of slots; default 4.
    pub slots: u32,
    /// Number of distinct users; default 40,000.
    pub users: u32,
    /// Day-to-day standard deviation of the traffic volume; default 0.1.
    pub volume_drift: f64,
    /// Standard deviation of the hour-scale traffic noise (AR(1)); default 0.05. It moves a day's requests between its hours
    /// and does not change their number.
    pub traffic_noise: f64,
    /// Standard deviation of the hourly volume (AR(1)), which changes the number of requests; default 0.
    pub volume_noise: f64,
    /// Correlation of the hourly volume from one hour to the next; default 0.5.
    pub volume_correlation: f64,
    /// Correlation of the volume and of the price level from one day to the next; default 0.
    pub level_persistence: f64,

    /// Number of auction ads; default 400.
    pub auction_ads: u32,
    /// Zipf exponent of the auction ads' popularity; default 1.
    pub zipf: f64,
    /// Mean of the best auction eCPM of a queue, minor units per 1,000 impressions; default 2000.
    pub mean_best_ecpm: f64,
    /// Standard deviation over requests of the logarithm of the best auction eCPM; default 0.76.
    pub best_log_sd: f64,
    /// Median ratio of the best to the second auction eCPM of a queue, above 1; default 1.12.
    pub top_ratio: f64,
    /// The part of `best_log_sd` that slot, region, gender and age explain; default 0.4.
    pub cell_log_sd: f64,
    /// Day-to-day standard deviation of the price level; default 0.1.
    pub price_drift: f64,
    /// Standard deviation of the hour-scale price noise (AR(1)); default 0.05.
    pub price_noise: f64,
    /// Minimum factor of the daily regional price shock (2-4 h, one or two regions); default 1.3.
    pub shock_min: f64,
    /// Maximum factor of that shock; default 1.8. Both 1 = no shocks.
    pub shock_max: f64,
    /// Groups of regions that share an hourly price level; default 4.
    pub price_groups: u32,
    /// Standard deviation of that level (AR(1)); default 0.
    pub group_price_noise: f64,
    /// Correlation of that level from one hour to the next; default 0.5.
    pub group_price_correlation: f64,
    /// Mean number of price shocks a day in each region that revert to the mean; default 0.
    pub reverting_shocks: f64,
    /// Standard deviation of the size of such a shock when it comes; default 0.3.
    pub reverting_shock_sd: f64,
    /// Hours after which `1 / e` of such a shock is left; default 1.
    pub reverting_shock_hours: f64,
    /// `{ day, hour, factor }`: a step of all auction prices; default none.
    pub jump: Option<Jump>,
    /// Mean predicted click probability; default 0.02.
    pub mean_pctr: f64,
    /// Power of the price level with which click probabilities grow; default 0.5.
    pub pctr_price_slope: f64,
    /// Probability that an auction entry carries filter 1; default 0.05.
    pub filter_share: f64,
    /// Probability that an entry carries a boost other than 1; default 0.
    pub boost_share: f64,

    /// Number of contracts, at most 900; default 30. 0 = auction only.
    pub contracts: u32,
    /// Mean number of contracts in a queue; default 6.
    pub contracts_per_queue: f64,
    /// Sum of the contracts' required impressions over the mean requests of a day; default 0.45.
    pub fill: f64,
    /// Standard deviation with which a contract's demand is redrawn each day; default 0.05.
    pub demand_drift: f64,
    /// Share of the contracts that require few impressions of a narrow audience; default 0. They count towards `fill`.
    pub small_share: f64,
    /// Minimum impressions required by a small contract; default 50.
    pub small_min: u32,
    /// Maximum impressions required by a small contract; default 500.
    pub small_max: u32,
    /// Share of the contracts whose flight is a part of the day; default 0.2.
    pub part_day_share: f64,
    /// Cap = required * (1 + this); default 0.
    pub cap_slack: f64,
    /// Impressions delivered before the day, as a share of required; default 0.
    pub delivered0_share: f64,
    /// Probability that a contract enters a queue; default 1.
    pub rate: f64,
    /// Minimum penalty, in multiples of `mean_best_ecpm / 1000`; default 1.
    pub penalty_min: f64,
    /// Maximum penalty, in multiples of `mean_best_ecpm / 1000`; default 4.
    pub penalty_max: f64,
    /// Maximum mean click worth of a contract, in multiples of `mean_best_ecpm / 1000`; default 0.3.
    pub click_worth_max: f64,
    /// Whether contract entries log `click_value * pctr * 1000` as their eCPM; default true, else 0.
    pub contract_ecpm: bool,

    /// Standard deviation of each forecast node's error; default 0.1.
    pub forecast_error: f64,
    /// Standard deviation of the error that all nodes of a day share; default 0.05.
    pub forecast_common_error: f64,
    /// Standard deviation of the forecaster's bias, which is the same on all days: one for all nodes, and one for each region;
    /// default 0.
    pub forecast_bias: f64,
    /// Probability with which the live policy shows an entry at random; default 0.05.
    pub explore: f64,
    /// Median delay of an impression's feedback, seconds; default 60.
    pub delay_median_s: f64,

    /// Decimals of every eCPM, at most 2; default 2.
    pub ecpm_decimals: u32,
    /// Decimals of every pctr, 3 to 6; default 6.
    pub pctr_decimals: u32,

    /// Whether queues hold only the entry that was shown, for large numbers of exposures; default false. Such days can be used
    /// for learning but not for replay.
    pub exposures_only: bool,
    /// Keys of this file that each world draws from its seed, with `[low, high]` of their uniform distribution; counts are
    /// rounded. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub draw: BTreeMap<String, [f64; 2]>,
    /// Errors of the logged predictions; default none. Days then have a `truth.tsv`.
    pub errors: Option<ErrorSettings>,
}

impl Default for WorldSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            days: 8,
            start_date: "2026-01-05".into(),
            compress: Compress::Zst,
            requests: 60_000,
            queue: 16,
            regions: 12,
            ages: 6,
            slots: 4,
            users: 40_000,
            volume_drift: 0.1,
            traffic_noise: 0.05,
            volume_noise: 0.0,
            volume_correlation: 0.5,
            level_persistence: 0.0,
            auction_ads: 400,
            zipf: 1.0,
            mean_best_ecpm: 2000.0,
            best_log_sd: 0.76,
            top_ratio: 1.12,
            cell_log_sd: 0.4,
            price_drift: 0.1,
            price_noise: 0.05,
            shock_min: 1.3,
            shock_max: 1.8,
            price_groups: 4,
            group_price_noise: 0.0,
            group_price_correlation: 0.5,
            reverting_shocks: 0.0,
            reverting_shock_sd: 0.3,
            reverting_shock_hours: 1.0,
            jump: None,
            mean_pctr: 0.02,
            pctr_price_slope: 0.5,
            filter_share: 0.05,
            boost_share: 0.0,
            contracts: 30,
            contracts_per_queue: 6.0,
            fill: 0.45,
            demand_drift: 0.05,
            small_share: 0.0,
            small_min: 50,
            small_max: 500,
            part_day_share: 0.2,
            cap_slack: 0.0,
            delivered0_share: 0.0,
            rate: 1.0,
            penalty_min: 1.0,
            penalty_max: 4.0,
            click_worth_max: 0.3,
            contract_ecpm: true,
            forecast_error: 0.1,
            forecast_common_error: 0.05,
            forecast_bias: 0.0,
            explore: 0.05,
            delay_median_s: 60.0,
            ecpm_decimals: 2,
            pctr_decimals: 6,
            draw: BTreeMap::new(),
            errors: None,
            exposures_only: false,
        }
    }
}

impl WorldSettings {
    /// Checks every key's range.
    ///
    /// # Errors
    /// A value out of range, with its key and the range.
    pub fn validate(&self) -> Result<()> {
        let within = |name: &str, value: f64, low: f64, high: f64| {
            ensure!((low..=high).contains(&value), "`{name} = {value}` must lie in {low}..={high}");
            Ok(())
        };
        let start = parse_date(&self.start_date).map_err(anyhow::Error::msg)?;
        let last = i64::from(self.days.max(1)) - 1;
        ensure!(
            start >= 0 && start.checked_add(last).is_some(),
            "`start_date = \"{}\"` must not lie before 1970-01-01",
            self.start_date
        );
        for (name, value, low, high) in [
            ("days", f64::from(self.days), 1.0, 10_000.0),
            ("requests", f64::from(self.requests), 1.0, 5e7),
            ("queue", self.queue as f64, 2.0, MAX_QUEUE as f64),
            ("regions", f64::from(self.regions), 1.0, 10_000.0),
            ("ages", f64::from(self.ages), 1.0, 9.0),
            ("slots", f64::from(self.slots), 1.0, 1000.0),
            ("users", f64::from(self.users), 1.0, 1e9),
            ("volume_drift", self.volume_drift, 0.0, 1.0),
            ("traffic_noise", self.traffic_noise, 0.0, 1.0),
            ("volume_noise", self.volume_noise, 0.0, 1.0),
            ("volume_correlation", self.volume_correlation, 0.0, 0.999),
            ("level_persistence", self.level_persistence, 0.0, 0.999),
            ("zipf", self.zipf, 0.0, 3.0),
            ("mean_best_ecpm", self.mean_best_ecpm, 1.0, 1e5),
            ("best_log_sd", self.best_log_sd, 0.01, 2.0),
            ("top_ratio", self.top_ratio, 1.001, 3.0),
            ("cell_log_sd", self.cell_log_sd, 0.0, 2.0),
            ("price_drift", self.price_drift, 0.0, 1.0),
            ("price_noise", self.price_noise, 0.0, 1.0),
            ("shock_min", self.shock_min, 0.1, 10.0),
            ("shock_max", self.shock_max, self.shock_min, 10.0),
            ("price_groups", f64::from(self.price_groups), 1.0, 10_000.0),
            ("group_price_noise", self.group_price_noise, 0.0, 1.0),
            ("group_price_correlation", self.group_price_correlation, 0.0, 0.999),
            ("reverting_shocks", self.reverting_shocks, 0.0, 24.0),
            ("reverting_shock_sd", self.reverting_shock_sd, 0.0, 2.0),
            ("reverting_shock_hours", self.reverting_shock_hours, 0.01, 24.0),
            ("mean_pctr", self.mean_pctr, 0.001, 0.3),
            ("pctr_price_slope", self.pctr_price_slope, -2.0, 2.0),
            ("filter_share", self.filter_share, 0.0, 1.0),
            ("boost_share", self.boost_share, 0.0, 1.0),
            ("contracts", f64::from(self.contracts), 0.0, 900.0),
            ("fill", self.fill, 0.001, 2.0),
            ("demand_drift", self.demand_drift, 0.0, 1.0),
            ("small_share", self.small_share, 0.0, 1.0),
            ("small_min", f64::from(self.small_min), 1.0, 1e9),
            ("small_max", f64::from(self.small_max), f64::from(self.small_min), f64::from(u32::MAX)),
            ("part_day_share", self.part_day_share, 0.0, 1.0),
            ("cap_slack", self.cap_slack, 0.0, 100.0),
            ("delivered0_share", self.delivered0_share, 0.0, 1.0),
            ("rate", self.rate, 0.0, 1.0),
            ("penalty_min", self.penalty_min, 0.001, 1000.0),
            ("penalty_max", self.penalty_max, self.penalty_min, 1000.0),
            ("click_worth_max", self.click_worth_max, 0.0, 10.0),
            ("forecast_error", self.forecast_error, 0.0, 2.0),
            ("forecast_common_error", self.forecast_common_error, 0.0, 2.0),
            ("forecast_bias", self.forecast_bias, 0.0, 2.0),
            ("explore", self.explore, 0.0, 1.0),
            ("delay_median_s", self.delay_median_s, 0.001, 1e5),
            ("ecpm_decimals", f64::from(self.ecpm_decimals), 0.0, 2.0),
            ("pctr_decimals", f64::from(self.pctr_decimals), 3.0, 6.0),
        ] {
            within(name, value, low, high)?;
        }
        ensure!(
            self.auction_ads as usize >= 2 * self.queue,
            "`auction_ads = {}` must be at least twice `queue = {}`: an ad is in a queue at most once",
            self.auction_ads,
            self.queue
        );
        if self.contracts > 0 {
            let most = 0.95 * f64::from(self.contracts);
            within("contracts_per_queue", self.contracts_per_queue, 0.01, most)?;
        }
        ensure!(
            self.contracts as usize + 2 <= MAX_QUEUE,
            "`contracts = {}` may not fit a queue of {MAX_QUEUE} with two auction entries",
            self.contracts
        );
        if let Some(errors) = &self.errors {
            errors.validate()?;
        }
        if let Some(jump) = self.jump {
            within("jump.hour", jump.hour, 0.0, (DAY_MS / 3_600_000) as f64)?;
            within("jump.factor", jump.factor, 0.01, 100.0)?;
        }
        Ok(())
    }
}
