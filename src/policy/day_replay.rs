//! Replays a whole day under a policy and sums its earnings.

use serde::Serialize;

use crate::cancel;
use crate::env::{Choice, DayModel, Delay, Episode, Incoming, Replay, RowSampler, Visit, Weights};
use crate::log::schema::AdType;

use super::Policy;
use super::decide::Decider;
use super::witness::Ranking;

/// Options for replaying whole days, the same for every policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayOptions {
    pub rate_seed: u64,
    /// Feedback delay until a policy observes a delivery.
    pub delay: Delay,
}

impl ReplayOptions {
    /// The options of a policy that sees no delay, because it predicts deliveries, if it `predicts`.
    #[must_use]
    pub fn seen_by(self, predicts: bool) -> Self {
        if predicts { Self { delay: Delay::fixed(0.0), ..self } } else { self }
    }
}

/// The ad shown on a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shown {
    pub request_id: u64,
    /// `None` if nothing could be shown.
    pub ad: Option<(u64, AdType)>,
    /// Index into the day's contracts, if it is one.
    pub contract: Option<usize>,
    /// Milliseconds from midnight.
    pub offset: u64,
    /// Worth of the auction ad or of the predicted click, minor units; its sum over a day, less penalties, is J.
    pub worth: f64,
    /// Bid of the ad shown and the runner-up, if a comparison asks for them.
    pub ranking: Option<Ranking>,
}

/// Sums of a replayed day. Money in minor units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Totals {
    /// The total benefit.
    pub j: f64,
    pub auction_revenue: f64,
    pub click_worth: f64,
    /// Penalty for impressions still owed.
    pub penalty: f64,
    /// Impressions missing, and owed, over all contracts.
    pub missing: f64,
    pub owed: f64,
    pub contract_impressions: u64,
    pub auction_impressions: u64,
    pub unfilled: u64,
    /// Sum of the predicted click probabilities of the contract ads shown.
    pub contract_pctr: f64,
}

impl Totals {
    /// Returns missing over owed; 0 without contracts.
    pub fn shortage_rate(&self) -> f64 {
        if self.owed > 0.0 { self.missing / self.owed } else { 0.0 }
    }

    /// Returns the mean eCPM of the auction ads shown, minor units per 1,000 impressions.
    pub fn mean_auction_ecpm(&self) -> f64 {
        if self.auction_impressions == 0 {
            0.0
        } else {
            1000.0 * self.auction_revenue / self.auction_impressions as f64
        }
    }

    /// Returns the mean predicted click probability of the contract ads shown.
    pub fn mean_contract_ctr(&self) -> f64 {
        if self.contract_impressions == 0 { 0.0 } else { self.contract_pctr / self.contract_impressions as f64 }
    }
}

/// Replays the whole of `day`; `watch` is called with every decision.
pub fn replay_day(
    day: &DayModel,
    policy: &mut dyn Policy,
    options: ReplayOptions,
    watch: &mut dyn FnMut(Shown),
) -> Totals {
    let episode = Episode::whole_day(day, options.rate_seed);
    replay_episode(day, episode, options.delay.on_day(day.start_ms), policy, watch)
}

/// Replays an episode of a day from the episode's start to the day's end; `delay_s` is its feedback delay in seconds.
///
/// J and its parts are those of the episode's own requests, prices and demands.
pub fn replay_episode(
    day: &DayModel,
    episode: Episode,
    delay_s: f64,
    policy: &mut dyn Policy,
    watch: &mut dyn FnMut(Shown),
) -> Totals {
    let mut rows = RowSampler::new(&episode, day).peekable();
    let replay = Replay::start(day, episode, delay_s, 0.0, &mut rows);
    let mut pass = DayPass::begin(replay, policy);
    let mut requests = day.log.requests().iter();
    for row in rows {
        if row % 256 == 0 {
            cancel::point();
        }
        watch(pass.take(day.incoming_of(row, &requests.row(row)), policy));
    }
    pass.finish()
}

/// A replay that is given its requests one by one.
#[derive(Debug)]
pub struct DayPass {
    replay: Replay,
    decider: Decider,
    totals: Totals,
}

impl DayPass {
    /// Begins the replay of a whole day.
    pub fn of_day(day: &DayModel, policy: &mut dyn Policy, options: ReplayOptions) -> Self {
        let episode = Episode::whole_day(day, options.rate_seed);
        let delay_s = options.delay.on_day(day.start_ms);
        Self::begin(Replay::start(day, episode, delay_s, 0.0, &mut std::iter::empty().peekable()), policy)
    }

    fn begin(replay: Replay, policy: &mut dyn Policy) -> Self {
        policy.begin(&replay);
        Self { replay, decider: Decider::default(), totals: Totals::default() }
    }

    /// Shows an ad on the next request.
    #[inline]
    pub fn take(&mut self, incoming: Incoming, policy: &mut dyn Policy) -> Shown {
        let Self { replay, decider, totals } = self;
        replay.arrive(incoming);
        let choice = decider.decide(replay, policy);
        let Visit { request_id, offset, .. } = *replay.visit();
        let mut contract = None;
        let ad = match choice {
            Choice::Contract(i) => {
                let c = &replay.candidates()[i];
                totals.contract_impressions += 1;
                totals.contract_pctr += c.pctr;
                contract = Some(c.contract as usize);
                Some((replay.day.contracts[c.contract as usize].ad_id, AdType::Contract))
            }
            Choice::Auction(i) => {
                totals.auction_impressions += 1;
                Some((replay.auctions()[i].ad_id, AdType::Auction))
            }
            Choice::Nothing => {
                totals.unfilled += 1;
                None
            }
        };
        let display = replay.show(choice);
        totals.auction_revenue += display.auction;
        totals.click_worth += display.click;
        totals.j += display.absolute(&Weights::J);
        Shown { request_id, ad, contract, offset, worth: display.auction + display.click, ranking: None }
    }

    /// Returns the sums after the last request.
    pub fn finish(self) -> Totals {
        let Self { replay, mut totals, .. } = self;
        for (j, c) in replay.day.contracts.iter().enumerate() {
            let missing = (replay.episode.owed[j] - replay.state.delivered[j]).max(0.0);
            totals.owed += replay.episode.owed[j];
            totals.missing += missing;
            totals.penalty += c.penalty * missing;
        }
        totals.j -= replay.episode.stake(&replay.day);
        totals
    }
}
