//! Rows that are rebuilt from a segment: those that the networks take are what the environment says of the moment, all others are
//! zero, and a choice is between the ads that the policy chose from.

use std::sync::Arc;

use admix::bench::world;
use admix::env::{DayModel, FEATURES, Moment, Replay, Segment, State, Terms};
use admix::formulas::shared::ahead;
use admix::learner::Dims;
use admix::learner::batch::{Decided, Rebuild, SegmentRows, Witness, replay};
use admix::log::schema::{AdType, ControlRow, QueueEntry, TrackRow};
use admix::policy::PolicySpec;
use admix::settings::{ScoreMode, Settings};

use super::worlds::{MIDNIGHT, World, plain_contract};

const HOUR: u64 = 3_600_000;
const REQUESTS: usize = 4;

/// A request an hour, each with two contracts and three auction ads. The first contract owes one impression and may have three; the
/// flight of the second ends after two requests. Their clicks are worth nothing, so what owes nothing has no potential.
fn day() -> DayModel {
    let contracts = vec![
        ControlRow { cap: 3, ..plain_contract(0, 1, 3.0) },
        ControlRow { end_ms: MIDNIGHT + 2 * HOUR + HOUR / 2, ..plain_contract(1, 2, 3.0) },
    ];
    let request = |i: usize| {
        let entry = |ad_id, ad_type, ecpm| QueueEntry { ad_id, ad_type, ecpm, pctr: 0.0, filter: 0, boost: 1.0 };
        let auctions =
            [2.0, 1.5, 1.0].map(|worth| entry(9_000 + (10.0 * worth) as u64, AdType::Auction, 1000.0 * worth));
        let contracts = contracts.iter().map(|c| entry(c.ad_id, AdType::Contract, 0.0));
        TrackRow {
            request_id: 1 + i as u64,
            ts_ms: MIDNIGHT + (1 + i as u64) * HOUR,
            slot_id: 1,
            region: 1,
            gender: 0,
            age: 0,
            user_id: None,
            queue: contracts.chain(auctions).collect(),
        }
    };
    let rows = (0..REQUESTS).map(request).collect();
    World { utc_offset_minutes: 0, rows, contracts: contracts.clone() }.load().day
}

/// What the environment says of each contract at each step, and what was taken for the action on each request.
#[derive(Default)]
struct Seen {
    terms: Vec<Terms>,
    /// By step and contract: the row as it is, and with one step's displays more.
    rows: Vec<Vec<[[f32; FEATURES]; 2]>>,
    shown: Vec<Option<usize>>,
    auctions: Vec<usize>,
    per_step: usize,
}

impl Witness for Seen {
    fn step(&mut self, replay: &Replay, _: usize) {
        if self.terms.is_empty() {
            self.terms = Terms::all(&replay.day, &replay.episode, false);
        }
        let moment = Moment::new(replay);
        let of_contract = |(j, terms): (usize, &Terms)| {
            let delivered = replay.state.delivered[j] as f32;
            let more = ahead(self.per_step as f32, replay.episode.left[j] as f32 - delivered);
            [delivered, delivered + more].map(|delivered| {
                let mut row = [0.0; FEATURES];
                moment.of(j, terms).write(delivered, &mut row);
                row
            })
        };
        self.rows.push(self.terms.iter().enumerate().map(of_contract).collect());
    }

    fn request(&mut self, replay: &Replay, _: usize, decided: Decided) {
        self.shown.push(decided.shown);
        self.auctions.push(replay.auctions().len());
    }

    fn earned(&mut self, _: usize, _: Option<usize>, _: f32) {}

    fn last(&mut self, _: &Replay) {}
}

fn settings(mode: ScoreMode, per_step: usize) -> Settings {
    let mut settings = Settings { score_mode: mode, ..Settings::default() };
    settings.policy.warm_start = false;
    settings.policy.auction_candidates = 3;
    settings.learner.segment = REQUESTS;
    let episodes = &mut settings.episodes;
    (episodes.steps, episodes.requests_per_step) = (REQUESTS, per_step);
    (episodes.demand_jitter, episodes.price_jitter, episodes.volume_jitter) = (0.0, 0.0, 0.0);
    (episodes.mid_day_share, episodes.start_error, episodes.supply_error) = (0.0, 0.0, 0.0);
    (episodes.jump_share, episodes.shock_sd) = (0.0, 0.0);
    settings
}

/// The first request shows the first contract, the second an auction ad that only a policy that scores them chose from, the third
/// the best one, the last the first contract again.
fn segment(day: &DayModel, per_step: usize) -> Segment {
    Segment {
        day: 0,
        episode: 7,
        start: State::new(vec![0.0; day.contracts.len()]),
        per_step: per_step as u16,
        rows: (0..REQUESTS as u32).collect(),
        actions: vec![0, 3, 1, 0],
        replans: vec![],
        probabilities: vec![],
        lessons: vec![],
        next: None,
    }
}

#[test]
fn rows_that_are_taken_are_those_of_the_moment_and_all_others_are_zero() {
    for (mode, per_step) in [(ScoreMode::Contract, 1), (ScoreMode::Contract, 2), (ScoreMode::All, 1)] {
        let settings = settings(mode, per_step);
        let days = [day()];
        let spec: Arc<PolicySpec> = world::spec(&days[0], &settings);
        let dims = Dims::of(&days, &spec, &settings);
        let with = Rebuild { days: &days, spec: &spec, settings: &settings, dims: &dims };
        let segment = segment(&days[0], per_step);
        let mut seen = Seen { per_step, ..Seen::default() };
        replay(&segment, with, &mut seen);
        let rows = SegmentRows::build(&segment, with);

        let (scored, beyond) = if mode == ScoreMode::All { (3, Some(3)) } else { (1, None) };
        assert_eq!(seen.auctions, [scored; REQUESTS], "auction ads of the choice");
        assert_eq!(seen.shown, [Some(0), beyond, Some(1), Some(0)], "{mode:?}");

        let zeros = [0.0; FEATURES];
        let (mut used, mut without_potential) = (0, 0);
        for (t, contracts) in seen.rows.iter().enumerate() {
            for (j, [now, _]) in contracts.iter().enumerate() {
                let at = t * dims.contracts + j;
                let expected = if rows.potential[at] == 0.0 { &zeros } else { now };
                assert_eq!(rows.state(at), expected, "{mode:?}, {per_step}: state of contract {j} in step {t}");
                used += usize::from(rows.potential[at] != 0.0);
            }
            for slot in 0..dims.eligible {
                let at = t * dims.eligible + slot;
                let Some(bidder) = rows.bidders[at] else {
                    assert_eq!(rows.after(at), zeros, "{mode:?}, {per_step}: nobody in row {slot} of step {t}");
                    continue;
                };
                let j = bidder.contract as usize;
                let [now, after] = &contracts[j];
                let actor = rows.actor(t * dims.actor_rows() + slot, spec.features());
                assert_eq!(actor, now, "{mode:?}, {per_step}: bidder {j} in step {t}");
                let expected = if bidder.after_potential == 0.0 { &zeros } else { after };
                assert_eq!(rows.after(at), expected, "{mode:?}, {per_step}: bidder {j} after step {t}");
                without_potential += usize::from(rows.potential[t * dims.contracts + j] == 0.0);
            }
        }
        assert!(used > 0 && without_potential > 0, "a case is missing: {used}, {without_potential}");
        // The second contract's flight is over in the second half of the day.
        let last = seen.rows.len() - 1;
        assert_eq!(rows.potential[last * dims.contracts + 1], 0.0);
    }
}
