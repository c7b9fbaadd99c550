//! What was chosen lately, so that exposures can confirm or correct it.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

/// An impression that was really shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposure {
    pub request_id: u64,
    pub ad_id: u64,
    /// Unix milliseconds.
    pub ts_ms: u64,
}

/// What was chosen on a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub ad_id: u64,
    /// Index into the day's contracts; `None`: an auction ad.
    pub contract: Option<u32>,
    pub pctr: f32,
    /// Minor units per impression; 0 for a contract.
    pub worth: f32,
    /// Whether an exposure has said what was shown.
    pub settled: bool,
}

/// The newest claims in time order; a later one with the same request id replaces the earlier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// When each was made, milliseconds from midnight, and for which request.
    order: VecDeque<(u64, u64)>,
    by_request: HashMap<u64, Claim>,
    /// Choices before this time, milliseconds from midnight, were forgotten for want of room: they count as shown.
    counted_until: u64,
}

/// The most claims that are kept; older ones count as shown.
const MOST: usize = 2_000_000;

impl Claims {
    pub fn push(&mut self, offset: u64, request_id: u64, claim: Claim) {
        if self.order.len() == MOST {
            self.counted_until = self.order[0].0 + 1;
            self.forget_oldest();
        }
        self.by_request.insert(request_id, claim);
        self.order.push_back((offset, request_id));
    }

    pub fn get_mut(&mut self, request_id: u64) -> Option<&mut Claim> {
        self.by_request.get_mut(&request_id)
    }

    pub fn get(&self, request_id: u64) -> Option<Claim> {
        self.by_request.get(&request_id).copied()
    }

    /// The time before which choices were forgotten and count as shown, milliseconds from midnight.
    pub fn counted_until(&self) -> u64 {
        self.counted_until
    }

    /// Takes out the oldest claim made before `offset`.
    pub fn pop_before(&mut self, offset: u64) -> Option<Claim> {
        while self.order.front().is_some_and(|&(at, _)| at < offset) {
            let claim = self.forget_oldest();
            if claim.is_some() {
                return claim;
            }
        }
        None
    }

    fn forget_oldest(&mut self) -> Option<Claim> {
        let (_, request_id) = self.order.pop_front()?;
        self.by_request.remove(&request_id)
    }

    /// The newest `most` claims.
    pub fn newest(&self, most: usize) -> Self {
        let dropped = self.order.len().saturating_sub(most);
        let counted_until = dropped.checked_sub(1).map_or(self.counted_until, |last| self.order[last].0 + 1);
        let order: VecDeque<(u64, u64)> = self.order.iter().skip(dropped).copied().collect();
        let kept = order.iter().filter_map(|(_, id)| Some((*id, *self.by_request.get(id)?)));
        Self { by_request: kept.collect(), order, counted_until }
    }

    /// Whether all claims name contracts of a day of so many.
    pub fn fit(&self, contracts: usize) -> bool {
        self.by_request.values().all(|claim| {
            claim.contract.is_none_or(|j| (j as usize) < contracts) && claim.pctr.is_finite() && claim.worth.is_finite()
        })
    }
}
