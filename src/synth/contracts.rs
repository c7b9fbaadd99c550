//! The guaranteed contracts: targeting, flight, demand and penalty.
//!
//! A third of them compete for the same few regions, so that their demands bind; one in ten asks for more of those regions than
//! the others leave; the rest share what remains and are easy.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::audience::{Audience, BIN_MS, BINS};
use super::contract::{Contract, Kind};
use super::demand;
use super::random::{normal, round};
use super::settings::WorldSettings;
use crate::log::schema::ControlRow;
use crate::log::targeting::Targeting;

/// Id of the first contract; auction ads begin above the maximum of 900 contracts.
pub const FIRST_ID: u64 = 101;
/// Number of targetings tried for each contract; the one whose supply is nearest to the wanted one is taken.
const CANDIDATES: usize = 64;
/// Range of the share of its supply that a small contract requires.
const SMALL_TIGHTNESS: std::ops::Range<f64> = 0.2..0.8;
/// Share of the traffic in the contested regions.
const CONTESTED_SHARE: f64 = 0.32;

/// All contracts of a world, with an index by cell.
pub struct Contracts {
    pub list: Vec<Contract>,
    /// Per cell: the contracts whose targeting matches.
    by_cell: Vec<Vec<usize>>,
}

impl Contracts {
    pub fn draw(settings: &WorldSettings, audience: &Audience, rng: &mut ChaCha8Rng) -> Self {
        let contested = contested_regions(audience, settings.regions, rng);
        let all: Vec<u32> = (1..=settings.regions).collect();
        let count = settings.contracts as usize;
        let small = (settings.small_share * count as f64).round() as usize;
        let large = count - small;
        let (tight, over) = (large.div_ceil(3), (large as f64 / 10.0).round() as usize);
        let mut list = Vec::with_capacity(count);
        // The easy ones come last and fill up the wanted number of contracts per queue.
        let mut covered = 0.0;
        for index in 0..count {
            let kind = match index {
                i if i < over => Kind::OverBooked,
                i if i < over + tight => Kind::Tight,
                i if i < over + tight + small => Kind::Small,
                _ => Kind::Easy,
            };
            let mut demand = 0.0;
            let left = (settings.contracts_per_queue - covered).max(0.02);
            let (pool, wanted) = match kind {
                Kind::OverBooked => (&contested, rng.random_range(0.02..0.05)),
                Kind::Tight => (&contested, rng.random_range(0.05..0.13)),
                Kind::Small => {
                    let (least, most) = (f64::from(settings.small_min), f64::from(settings.small_max));
                    demand = least * (most / least).powf(rng.random()) / f64::from(settings.requests);
                    (&all, (demand / rng.random_range(SMALL_TIGHTNESS)).min(0.5))
                }
                Kind::Easy => {
                    let spread = rng.random_range(0.4..1.6);
                    (&all, (left / (count - index) as f64 * spread).min(0.97))
                }
            };
            let flight = draw_flight(settings.part_day_share, rng);
            let contract = (0..CANDIDATES)
                .map(|_| {
                    let targeting = draw_targeting(pool, kind != Kind::Easy, settings, rng);
                    outline(kind, targeting, flight, audience)
                })
                .min_by(|a, b| {
                    let miss = |c: &Contract| (c.supply.max(1e-9) / wanted).ln().abs();
                    miss(a).total_cmp(&miss(b))
                })
                .expect("there is at least one candidate");
            covered += contract.supply;
            list.push(Contract { demand, ..contract });
        }
        demand::set_demands(&mut list, audience, settings.fill, rng);
        let price = settings.mean_best_ecpm / 1000.0;
        // Shuffled, so that ids do not reveal the kind.
        for i in (1..list.len()).rev() {
            list.swap(i, rng.random_range(0..=i));
        }
        for (contract, ad_id) in list.iter_mut().zip(FIRST_ID..) {
            let spread = rng.random::<f64>();
            let multiple = settings.penalty_min * (settings.penalty_max / settings.penalty_min).powf(spread);
            let click_worth = rng.random_range(0.0..=1.0) * settings.click_worth_max * price;
            contract.ad_id = ad_id;
            contract.pctr =
                round(settings.mean_pctr * (0.4 * normal(rng)).exp(), settings.pctr_decimals).clamp(1e-3, 0.5);
            contract.penalty = round(multiple * price, 4);
            contract.click_value = round(click_worth / contract.pctr, 2);
        }
        let by_cell =
            audience.cells.iter().map(|cell| (0..count).filter(|&j| list[j].matches(cell)).collect()).collect();
        Self { list, by_cell }
    }

    /// Returns the indices of the contracts that match a cell and are in flight.
    pub fn eligible(&self, cell: usize, ms: u64) -> impl Iterator<Item = usize> + '_ {
        let matching = self.by_cell[cell].iter().copied();
        matching.filter(move |&j| self.list[j].flies(ms))
    }

    /// Draws the control table of a day that begins at `midnight` (Unix milliseconds), with new demands.
    pub fn control(&self, settings: &WorldSettings, midnight: u64, rng: &mut ChaCha8Rng) -> Vec<ControlRow> {
        self.list
            .iter()
            .map(|c| {
                let drift = (settings.demand_drift * normal(rng)).exp();
                let expected = c.demand * f64::from(settings.requests);
                let required = ((expected * drift).round() as u64).max(1);
                ControlRow {
                    ad_id: c.ad_id,
                    required,
                    cap: (required as f64 * (1.0 + settings.cap_slack)).round() as u64,
                    delivered0: (required as f64 * settings.delivered0_share).round() as u64,
                    start_ms: midnight + c.flight.0 as u64 * BIN_MS,
                    end_ms: midnight + c.flight.1 as u64 * BIN_MS,
                    targeting: c.targeting.clone(),
                    theta: None,
                    rate: settings.rate,
                    penalty: c.penalty,
                    click_value: c.click_value,
                    pctr: Some(c.pctr),
                }
            })
            .collect()
    }
}

/// Draws regions that together hold about the contested share; a single one may hold more.
fn contested_regions(audience: &Audience, regions: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let mut left: Vec<u32> = (1..=regions).collect();
    let (mut chosen, mut held) = (Vec::new(), 0.0);
    while !left.is_empty() {
        let region = left.swap_remove(rng.random_range(0..left.len()));
        let cells = audience.cells.iter().filter(|c| c.region == region);
        let share: f64 = cells.map(|c| c.share).sum();
        if chosen.is_empty() || held + share <= CONTESTED_SHARE {
            held += share;
            chosen.push(region);
        }
    }
    chosen
}

/// Draws a flight: the whole day, or 8 to 14 hours of it.
fn draw_flight(part_day_share: f64, rng: &mut ChaCha8Rng) -> (usize, usize) {
    if rng.random::<f64>() >= part_day_share {
        return (0, BINS);
    }
    let start = rng.random_range(0..=20);
    (start, (start + rng.random_range(16..=28)).min(BINS))
}

/// Draws a random AND of ORs; `restricted` targetings always name regions of the pool.
fn draw_targeting(pool: &[u32], restricted: bool, settings: &WorldSettings, rng: &mut ChaCha8Rng) -> Targeting {
    let mut targeting = Targeting::default();
    if restricted || rng.random::<f64>() < 0.6 {
        targeting.region = subset(pool, rng);
    }
    if rng.random::<f64>() < 0.35 {
        targeting.gender = vec![rng.random_range(1..=2)];
    }
    if rng.random::<f64>() < 0.45 {
        let (a, b) = (rng.random_range(1..=settings.ages), rng.random_range(1..=settings.ages));
        targeting.age = (a.min(b)..=a.max(b)).map(u32::from).collect();
    }
    if settings.slots > 1 && rng.random::<f64>() < 0.4 {
        let slots: Vec<u32> = (1..=settings.slots).collect();
        targeting.slot = subset(&slots, rng);
    }
    targeting
}

/// Draws a sorted non-empty subset.
fn subset(pool: &[u32], rng: &mut ChaCha8Rng) -> Vec<u32> {
    let keep = rng.random_range(0.2..0.9);
    let mut chosen: Vec<u32> = pool.iter().copied().filter(|_| rng.random::<f64>() < keep).collect();
    if chosen.is_empty() {
        chosen.push(pool[rng.random_range(0..pool.len())]);
    }
    chosen.sort_unstable();
    chosen
}

/// Computes a contract's supply and its course over the day; money and demand are set later.
fn outline(kind: Kind, targeting: Targeting, flight: (usize, usize), audience: &Audience) -> Contract {
    let mut contract = Contract {
        ad_id: 0,
        kind,
        targeting,
        flight,
        supply: 0.0,
        demand: 0.0,
        elapsed: Vec::with_capacity(BINS + 1),
        penalty: 0.0,
        click_value: 0.0,
        pctr: 0.0,
    };
    let mut region_share = vec![0.0; audience.curves.len()];
    for cell in audience.cells.iter().filter(|c| contract.matches(c)) {
        region_share[cell.region as usize - 1] += cell.share;
    }
    let mut sum = 0.0;
    for bin in 0..BINS {
        contract.elapsed.push(sum);
        if (flight.0..flight.1).contains(&bin) {
            let shares = region_share.iter().zip(&audience.curves);
            sum += shares.map(|(share, curve)| share * curve[bin]).sum::<f64>();
        }
    }
    contract.elapsed.push(sum);
    contract.supply = sum;
    if sum > 0.0 {
        contract.elapsed.iter_mut().for_each(|e| *e /= sum);
    }
    contract
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn draw(settings: &WorldSettings) -> Contracts {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let audience = Audience::draw(settings, &mut rng).unwrap();
        Contracts::draw(settings, &audience, &mut rng)
    }

    #[test]
    fn the_expected_number_of_contracts_in_a_queue_is_near_the_wanted_one() {
        let contracts = draw(&WorldSettings::default());
        let mean: f64 = contracts.list.iter().map(|c| c.supply).sum();
        assert!((mean - 6.0).abs() < 0.6, "{mean}");
    }

    #[test]
    fn supply_elapses_only_in_flight() {
        let settings = WorldSettings { part_day_share: 1.0, ..WorldSettings::default() };
        for c in &draw(&settings).list {
            let (start, end) = (c.flight.0 as u64 * BIN_MS, c.flight.1 as u64 * BIN_MS);
            assert!(c.flight.1 - c.flight.0 < BINS);
            assert_eq!(c.elapsed_at(start), 0.0);
            assert!((c.elapsed_at(end) - 1.0).abs() < 1e-6);
            assert!(c.flies(start) && !c.flies(end));
        }
    }
}
