//! Inputs of the outlook network for a contract beyond the rows of [`super::features`]: the bids of several planners, the
//! traffic against the forecast with several time constants, and the displays that are not yet confirmed.
//!
//! A planner has to commit to one time constant and one forecast. The network sees the same day through several of them and
//! learns from hindsight prices how far to trust each. All features are independent of the day's size and of its unit of money.

use crate::log::schema::DAY_MS;

use super::features::FEATURES;
use super::replay::Replay;
use super::tracker::VOLUME_PRIOR;

/// Features of a contract beyond the base row.
pub const OUTLOOK: usize = 28;
/// Width of a row of the outlook network: the base row followed by the outlook.
pub const WIDE: usize = FEATURES + OUTLOOK;
/// Names of the outlook features, in order; stored in the policy file.
pub const OUTLOOK_NAMES: [&str; OUTLOOK] = [
    "static_price_logit",
    "start_price_logit",
    "price_for_levels_of_hour",
    "price_at_forecast_levels",
    "price_by_volume",
    "supply_by_price",
    "log_volume_10_minutes",
    "log_volume_hour",
    "log_volume_day",
    "log_own_volume_10_minutes",
    "log_own_volume_hour",
    "log_own_volume_day",
    "log_price_10_minutes",
    "log_price_day",
    "log_demand_over_supply_at_own_volume",
    "log_demand_over_supply_at_hour_volume",
    "time_left",
    "root_time_left",
    "own_supply_left",
    "root_traffic_left",
    "in_flight",
    "delay",
    "wander",
    "inverse_root_hourly_requests",
    "inverse_root_supply_left",
    "price_move_by_day_volume",
    "price_move_by_own_volume",
    "price_move_by_price_level",
];

fn log(x: f64, limit: f32) -> f32 {
    (x as f32).ln().clamp(-limit, limit)
}

fn logit(share: f64) -> f64 {
    (share / (1.0 - share)).ln()
}

/// Writes the outlook features of contract `j` at the current request, `[OUTLOOK]`. Unconfirmed displays count as delivered,
/// because the policy knows what it showed.
pub fn write(replay: &Replay, j: usize, out: &mut [f32]) {
    let out: &mut [f32; OUTLOOK] = out.try_into().expect("a row of OUTLOOK");
    let Replay { day, episode, state, .. } = replay;
    let offset = replay.offset();
    let (c, tracker) = (&day.contracts[j], &state.tracker);
    let n = day.contracts.len();
    let (own, all) = (&tracker.volumes[j], &tracker.volumes[n]);
    let advice = state.advice(j);
    let share = if c.penalty > 0.0 { (c.price / c.penalty).clamp(0.02, 0.98) } else { 0.5 };
    let start = logit(share) + f64::from(state.replanned(j));
    let bid = 1.0 / (1.0 + (-start).exp());

    let remaining = (episode.owed[j] - state.delivered[j]).max(0.0);
    let now = crate::plan::Time::at(offset);
    let scale = episode.thinning * f64::from(episode.supply_error[j]);
    let supply = (c.supply.total() - c.supply.until(now)) * scale;
    let whole = (c.supply.total() * scale).max(1e-9);
    let traffic = day.traffic.total().max(1e-9);
    let traffic_left = 1.0 - day.traffic.until(now) / traffic;
    let time_left = c.end.min(DAY_MS).saturating_sub(offset) as f64 / DAY_MS as f64;
    let in_flight = state.delivered[j] - state.observed[j];

    let volume = [0, 1, 2].map(|i| log(all.ratio(i, VOLUME_PRIOR), 2.0));
    let own_volume = [0, 1, 2].map(|i| log(own.ratio(i, VOLUME_PRIOR), 2.0));
    let price = [0, 1, 2].map(|i| log(tracker.prices.ratio(i, VOLUME_PRIOR * day.unit), 2.0));
    let pressure = |level: f32| log((remaining + 0.1) / (supply * f64::from(level).exp() + 0.1), 4.0);
    let hourly = traffic * episode.thinning / 24.0;
    *out = [
        0.5 * logit(share) as f32,
        0.5 * start.clamp(-4.0, 4.0) as f32,
        state.replanned(j).clamp(-3.0, 3.0),
        advice.forecast.clamp(-3.0, 3.0),
        advice.by_volume.clamp(-4.0, 4.0) * 0.5,
        advice.supply.clamp(-3.0, 3.0),
        2.0 * volume[0],
        2.0 * volume[1],
        2.0 * volume[2],
        2.0 * own_volume[0],
        2.0 * own_volume[1],
        2.0 * own_volume[2],
        2.0 * price[0],
        2.0 * price[2],
        pressure(own_volume[2]),
        pressure(volume[1]),
        time_left as f32,
        time_left.sqrt() as f32,
        (supply / whole) as f32,
        traffic_left.max(0.0).sqrt() as f32,
        (in_flight / (remaining + in_flight + 1.0)) as f32,
        (replay.delay_ms() as f32 / 3_600_000.0).min(4.0).sqrt(),
        2.0 * (tracker.wander.0 / tracker.wander.1.max(1.0)).sqrt(),
        (10.0 / (hourly + 1.0).sqrt()) as f32,
        (1.0 / (supply + 1.0).sqrt()) as f32,
        (advice.by_volume * volume[2]).clamp(-3.0, 3.0),
        (advice.by_volume * own_volume[2]).clamp(-3.0, 3.0),
        (f64::from(price[1]) / (1.0 - bid).max(0.1)).clamp(-3.0, 3.0) as f32,
    ];
}
