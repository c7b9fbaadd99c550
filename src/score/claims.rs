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

/// A choice in its place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Made {
    /// Milliseconds from midnight.
    offset: u64,
    request_id: u64,
    claim: Claim,
}

/// The newest claims in time order; a later one with the same request id replaces the earlier.
///
/// Claims lie side by side, so that copying the newest takes little time: a server does that while requests wait.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Claims {
    made: VecDeque<Made>,
    /// Of each request, the number of its latest claim; the front of `made` has number `forgotten`.
    numbers: HashMap<u64, u64>,
    forgotten: u64,
    /// Choices before this time, milliseconds from midnight, were forgotten for want of room: they count as shown.
    counted_until: u64,
}

/// What is written of claims.
#[derive(Serialize, Deserialize)]
struct Stored {
    made: VecDeque<Made>,
    counted_until: u64,
}

impl From<Claims> for Stored {
    fn from(Claims { made, counted_until, .. }: Claims) -> Self {
        Self { made, counted_until }
    }
}

impl From<Stored> for Claims {
    fn from(Stored { made, counted_until }: Stored) -> Self {
        let numbers = made.iter().map(|made| made.request_id).zip(0..).collect();
        Self { made, numbers, forgotten: 0, counted_until }
    }
}

/// The most claims that are kept; older ones count as shown.
const MOST: usize = 2_000_000;

impl Claims {
    /// Remembers a claim. Returns the oldest one with its time, if it is forgotten for want of room.
    #[must_use = "what is forgotten counts as shown"]
    pub fn push(&mut self, offset: u64, request_id: u64, claim: Claim) -> Option<(u64, Claim)> {
        let mut forgotten = None;
        if self.made.len() == MOST {
            let offset = self.made[0].offset;
            self.counted_until = offset + 1;
            forgotten = self.forget_oldest().map(|claim| (offset, claim));
        }
        self.numbers.insert(request_id, self.forgotten + self.made.len() as u64);
        self.made.push_back(Made { offset, request_id, claim });
        forgotten
    }

    fn place(&self, request_id: u64) -> Option<usize> {
        Some((self.numbers.get(&request_id)? - self.forgotten) as usize)
    }

    pub fn get_mut(&mut self, request_id: u64) -> Option<&mut Claim> {
        let place = self.place(request_id)?;
        Some(&mut self.made[place].claim)
    }

    pub fn get(&self, request_id: u64) -> Option<Claim> {
        Some(self.made[self.place(request_id)?].claim)
    }

    /// The time before which choices were forgotten and count as shown, milliseconds from midnight.
    pub fn counted_until(&self) -> u64 {
        self.counted_until
    }

    /// Takes out the oldest claim made before `offset`.
    pub fn pop_before(&mut self, offset: u64) -> Option<Claim> {
        while self.made.front().is_some_and(|made| made.offset < offset) {
            let claim = self.forget_oldest();
            if claim.is_some() {
                return claim;
            }
        }
        None
    }

    /// Takes out the oldest; `None` where a later one has replaced it, or there is none.
    fn forget_oldest(&mut self) -> Option<Claim> {
        let Made { request_id, claim, .. } = self.made.pop_front()?;
        let number = self.forgotten;
        self.forgotten += 1;
        if self.numbers.get(&request_id) != Some(&number) {
            return None;
        }
        self.numbers.remove(&request_id);
        Some(claim)
    }

    /// The newest `most` claims, to be written.
    pub fn newest(&self, most: usize) -> Self {
        let dropped = self.made.len().saturating_sub(most);
        let counted_until = dropped.checked_sub(1).map_or(self.counted_until, |last| self.made[last].offset + 1);
        let made = self.made.range(dropped..).copied().collect();
        Self { made, counted_until, ..Self::default() }
    }

    /// The contract of each claim that no exposure has settled.
    pub fn unsettled(&self) -> impl Iterator<Item = usize> + '_ {
        let latest = |(number, made): &(u64, &Made)| self.numbers.get(&made.request_id) == Some(number);
        let claims = (self.forgotten..).zip(&self.made).filter(latest).map(|(_, made)| made.claim);
        claims.filter(|claim| !claim.settled).filter_map(|claim| claim.contract).map(|j| j as usize)
    }

    /// Gives contracts other places: `to` has that of each; `None` for one that is gone, whose choices need no exposure any more.
    pub fn of_contracts(&mut self, to: &[Option<u32>]) {
        for Made { claim, .. } in &mut self.made {
            let Some(j) = claim.contract else { continue };
            claim.contract = to[j as usize];
            claim.settled |= claim.contract.is_none();
        }
    }

    /// Whether all claims name contracts of a day of so many.
    pub fn fit(&self, contracts: usize) -> bool {
        self.made.iter().map(|made| &made.claim).all(|claim| {
            claim.contract.is_none_or(|j| (j as usize) < contracts) && claim.pctr.is_finite() && claim.worth.is_finite()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ad_id: u64) -> Claim {
        Claim { ad_id, contract: None, pctr: 0.0, worth: 0.0, settled: false }
    }

    #[test]
    fn a_later_claim_replaces_an_earlier_one_of_the_same_request_before_and_after_saving() {
        let mut claims = Claims::default();
        for (offset, request_id, ad_id) in [(1, 7, 70), (2, 8, 80), (3, 7, 71)] {
            assert_eq!(claims.push(offset, request_id, claim(ad_id)), None);
        }
        let stored: Claims = Stored::from(claims.clone()).into();
        for mut claims in [claims, stored] {
            assert_eq!(claims.get(7).map(|c| c.ad_id), Some(71));
            assert_eq!(claims.pop_before(3).map(|c| c.ad_id), Some(80), "the first was replaced");
            assert_eq!((claims.get(8), claims.get(7).map(|c| c.ad_id)), (None, Some(71)));
            claims.get_mut(7).unwrap().settled = true;
            assert!(claims.pop_before(4).unwrap().settled);
            assert_eq!(claims.pop_before(u64::MAX), None);
        }
    }

    #[test]
    fn of_the_newest_the_older_ones_count_as_shown() {
        let mut claims = Claims::default();
        (0..10).for_each(|i| assert_eq!(claims.push(i, i, claim(i)), None));
        let newest: Claims = Stored::from(claims.newest(3)).into();
        assert_eq!((newest.counted_until(), newest.get(6), newest.get(7)), (7, None, Some(claim(7))));
        assert_eq!(claims.newest(100).counted_until(), 0);
    }
}
