//! Lotteries of planned play probabilities: who wins how often, and that a draw hangs on nothing but seed, request and ad.

use std::collections::BTreeMap;

use admix::log::schema::{AdType, ControlRow, DAY_MS, QueueEntry, TrackRow};
use admix::log::targeting::Targeting;
use admix::policy::baselines::named;
use admix::policy::{ReplayOptions, replay_day};

use super::replay::decide;
use super::worlds::{Decision, Loaded, World};

const REQUESTS: usize = 6000;

fn options(rate_seed: u64) -> ReplayOptions {
    ReplayOptions { rate_seed, delay: admix::env::Delay::fixed(0.0) }
}

fn contract(ad_id: u64, required: u64, theta: Option<f64>) -> ControlRow {
    ControlRow {
        ad_id,
        required,
        cap: required,
        delivered0: 0,
        start_ms: 0,
        end_ms: DAY_MS,
        targeting: Targeting::default(),
        theta,
        rate: 1.0,
        penalty: 2.0,
        click_value: 0.0,
        pctr: None,
    }
}

/// Requests spread over the day, regions 1 and 2 in turn; `queue` gives each its entries.
fn world(contracts: Vec<ControlRow>, queue: impl Fn(usize) -> Vec<(u64, AdType)>) -> World {
    let mut world = World { utc_offset_minutes: 0, rows: vec![], contracts };
    let start = world.start_ms();
    for c in &mut world.contracts {
        (c.start_ms, c.end_ms) = (c.start_ms + start, c.end_ms + start);
    }
    for i in 0..REQUESTS {
        let entry = |(ad_id, ad_type)| {
            let ecpm = if ad_type == AdType::Auction { 1000.0 } else { 0.0 };
            QueueEntry { ad_id, ad_type, ecpm, pctr: 0.01, filter: 0, boost: 1.0 }
        };
        world.rows.push(TrackRow {
            request_id: 1 + i as u64,
            ts_ms: start + i as u64 * DAY_MS / REQUESTS as u64,
            slot_id: 1,
            region: 1 + i as u32 % 2,
            gender: 0,
            age: 0,
            user_id: None,
            queue: queue(i).into_iter().map(entry).collect(),
        });
    }
    world
}

fn served(world: &World, name: &str, rate_seed: u64) -> Vec<Decision> {
    let Loaded { day, plan, dir: _dir, .. } = world.load();
    decide(&day, &mut *named(name, Some(&plan)).unwrap(), options(rate_seed)).1
}

/// Share of the requests that each ad won.
fn shares(decisions: &[Decision]) -> BTreeMap<u64, f64> {
    let mut shares = BTreeMap::new();
    for (ad, _) in decisions.iter().filter_map(|(_, shown)| *shown) {
        *shares.entry(ad).or_default() += 1.0 / decisions.len() as f64;
    }
    shares
}

const BOTH: [(u64, AdType); 3] = [(11, AdType::Contract), (12, AdType::Contract), (90, AdType::Auction)];

#[test]
fn contracts_win_with_their_probabilities_of_the_whole_request() {
    // The second one asked is not worse off for it: 0.5 and 0.3, not 0.5 and 0.15.
    let world = world(vec![contract(11, 9000, Some(0.5)), contract(12, 8000, Some(0.3))], |_| BOTH.to_vec());
    let shares = shares(&served(&world, "theta-lottery", 4));
    assert!((shares[&11] - 0.5).abs() < 0.025 && (shares[&12] - 0.3).abs() < 0.025, "{shares:?}");
    assert!((shares[&90] - 0.2).abs() < 0.025, "{shares:?}");
}

#[test]
fn probabilities_that_do_not_fit_give_the_first_in_order_its_share() {
    let world = world(vec![contract(11, 9000, Some(0.7)), contract(12, 8000, Some(0.7))], |_| BOTH.to_vec());
    let shares = shares(&served(&world, "theta-lottery", 4));
    // Equal supply: the larger demand is asked first; nothing is left for the auction.
    assert!((shares[&11] - 0.7).abs() < 0.025 && (shares[&12] - 0.3).abs() < 0.025, "{shares:?}");
    assert_eq!(shares.get(&90), None);
}

/// Contract 11 may have region 1 only, and half of all requests are of that region; contract 12 has to move to region 2.
fn contested() -> World {
    let mut first = contract(11, 2100, None);
    first.targeting = Targeting { region: vec![1], ..Targeting::default() };
    world(vec![first, contract(12, 2700, None)], |i| if i % 2 == 0 { BOTH.to_vec() } else { BOTH[1..].to_vec() })
}

#[test]
fn both_plans_deliver_contracts_that_share_a_part_of_their_supply() {
    let world = contested();
    for name in ["theta-lottery", "shale"] {
        let Loaded { day, plan, .. } = world.load();
        let totals = replay_day(&day, &mut *named(name, Some(&plan)).unwrap(), options(1), &mut |_| {});
        assert!(totals.shortage_rate() < 0.02, "{name} misses {} of {}", totals.missing, totals.owed);
        // The whole day long, not all at once: a theta of 1 would be done far too early.
        let decisions = served(&world, name, 1);
        let early = shares(&decisions[..REQUESTS / 2]);
        assert!((early[&11] - 0.35).abs() < 0.03, "{name}: {early:?}");
    }
}

#[test]
fn a_draw_hangs_on_seed_request_and_ad_only() {
    let straight = contested();
    let mut turned = straight.clone();
    turned.rows.iter_mut().for_each(|r| r.queue.reverse());
    turned.contracts.reverse();
    for name in ["theta-lottery", "shale"] {
        let decisions = served(&straight, name, 1);
        assert_eq!(decisions, served(&straight, name, 1), "{name}: the same seed, the same day");
        assert_eq!(decisions, served(&turned, name, 1), "{name}: the order of queue and control table is nothing");
        assert_ne!(decisions, served(&straight, name, 2), "{name}: another seed, other draws");
        // Half the requests again under the same ids: they are decided as before while demands last.
        let mut half = straight.clone();
        half.rows.truncate(REQUESTS / 2);
        let plan = straight.load().plan;
        let day = half.load();
        let log = super::worlds::open(day.dir.path());
        let model = admix::env::DayModel::with_forecast(log, &plan.forecast, &plan, day.day.vocabulary.clone());
        let alone = decide(&model, &mut *named(name, Some(&plan)).unwrap(), options(1)).1;
        assert_eq!(alone, decisions[..REQUESTS / 2], "{name}: what comes later changes nothing before");
    }
}

/// Where no auction ad may be shown a request is not wasted on a contract that lost its draw to nobody.
#[test]
fn without_an_auction_ad_the_first_contract_that_owes_is_shown() {
    let mut world = contested();
    for r in &mut world.rows {
        r.queue.retain(|e| e.ad_type == AdType::Contract);
    }
    for name in ["theta-lottery", "shale"] {
        let decisions = served(&world, name, 1);
        let owing = 2100 + 2700;
        let shown = decisions.iter().filter(|(_, shown)| shown.is_some()).count();
        assert!(shown == owing, "{name}: {shown} of {owing}");
    }
}

#[test]
fn a_lottery_without_a_plan_says_what_it_lacks() {
    for name in ["theta-lottery", "shale"] {
        let why = named(name, None).err().unwrap();
        assert!(why.contains(name) && why.contains("--plan"), "{why}");
    }
}
