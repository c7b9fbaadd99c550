//! What was chosen lately, so that exposures can confirm or correct it.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::env::State;

/// An impression that was really shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposure {
    pub request_id: u64,
    pub ad_id: u64,
    /// Unix milliseconds.
    pub ts_ms: u64,
}

/// What has become of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It counts as delivered, and policies observe it when an exposure confirms it. None has come yet.
    Open,
    /// It counts as shown. No exposure has come yet.
    Shown,
    /// An exposure has said what was shown.
    Settled,
    /// No exposure came in time, and it was taken back.
    Withdrawn,
    /// Its contract is gone, with its counts. No exposure has come yet.
    Gone,
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
    pub stage: Stage,
}

impl Claim {
    /// Lets policies observe it as shown.
    pub(super) fn observe(&self, state: &mut State, offset: u64) {
        state.confirm(self.contract.map(|j| j as usize), offset, self.pctr.into(), self.worth.into());
    }
}

/// A choice in its place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Made {
    /// Milliseconds from midnight.
    offset: u64,
    request_id: u64,
    claim: Claim,
}

/// The newest claims in time order; of several with the same request id, exposures mean the latest.
///
/// Claims lie side by side, so that copying the newest takes little time: a server does that while requests wait.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Claims {
    made: VecDeque<Made>,
    /// Of each request, the number of its latest claim; the front of `made` has number `forgotten`.
    numbers: HashMap<u64, u64>,
    forgotten: u64,
    /// Number of the first claim that may be open; not saved.
    open_from: u64,
    /// Choices before this time, milliseconds from midnight, were forgotten for want of room: those that were open count as shown, and
    /// exposures change nothing any more.
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
        Self { made, numbers, forgotten: 0, open_from: 0, counted_until }
    }
}

/// The most claims that are kept; older ones that are open count as shown.
const MOST: usize = 2_000_000;

impl Claims {
    /// Remembers a claim. Returns the oldest one with its time, if it is forgotten for want of room.
    #[must_use = "what is forgotten and open counts as shown"]
    pub fn push(&mut self, offset: u64, request_id: u64, claim: Claim) -> Option<(u64, Claim)> {
        let forgotten = (self.made.len() == MOST).then(|| self.forget_oldest()).flatten();
        self.numbers.insert(request_id, self.forgotten + self.made.len() as u64);
        self.made.push_back(Made { offset, request_id, claim });
        forgotten
    }

    fn forget_oldest(&mut self) -> Option<(u64, Claim)> {
        let Made { offset, request_id, claim } = self.made.pop_front()?;
        let number = self.forgotten;
        self.forgotten += 1;
        self.counted_until = offset + 1;
        if self.numbers.get(&request_id) == Some(&number) {
            self.numbers.remove(&request_id);
        }
        Some((offset, claim))
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

    /// The time before which choices were forgotten, milliseconds from midnight.
    pub fn counted_until(&self) -> u64 {
        self.counted_until
    }

    /// Withdraws the oldest open claim made before `offset`, and returns it. It is remembered: its exposure may be late.
    pub fn withdraw_before(&mut self, offset: u64) -> Option<Claim> {
        self.open_from = self.open_from.max(self.forgotten);
        while let Some(made) = self.made.get_mut((self.open_from - self.forgotten) as usize)
            && made.offset < offset
        {
            self.open_from += 1;
            if made.claim.stage == Stage::Open {
                made.claim.stage = Stage::Withdrawn;
                return Some(made.claim);
            }
        }
        None
    }

    /// The newest `most` claims, to be written.
    pub fn newest(&self, most: usize) -> Self {
        let dropped = self.made.len().saturating_sub(most);
        let counted_until = dropped.checked_sub(1).map_or(self.counted_until, |last| self.made[last].offset + 1);
        let made = self.made.range(dropped..).copied().collect();
        Self { made, counted_until, ..Self::default() }
    }

    /// Lets open claims count as shown; `each` is told of them with their times.
    pub fn show_open(&mut self, mut each: impl FnMut(u64, Claim)) {
        for Made { offset, claim, .. } in self.made.iter_mut().filter(|made| made.claim.stage == Stage::Open) {
            claim.stage = Stage::Shown;
            each(*offset, *claim);
        }
    }

    /// The contract of each open claim.
    pub fn open(&self) -> impl Iterator<Item = usize> + '_ {
        let open = self.made.iter().map(|made| made.claim).filter(|claim| claim.stage == Stage::Open);
        open.filter_map(|claim| claim.contract).map(|j| j as usize)
    }

    /// Gives contracts other places: `to` has that of each; `None` for one that is gone.
    pub fn of_contracts(&mut self, to: &[Option<u32>]) {
        for Made { claim, .. } in &mut self.made {
            let Some(j) = claim.contract else { continue };
            claim.contract = to[j as usize];
            if claim.contract.is_none() && claim.stage != Stage::Settled {
                claim.stage = Stage::Gone;
            }
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
        Claim { ad_id, contract: None, pctr: 0.0, worth: 0.0, stage: Stage::Open }
    }

    #[test]
    fn claims_are_withdrawn_once_and_remembered_before_and_after_saving() {
        let mut claims = Claims::default();
        for (offset, request_id, ad_id) in [(1, 7, 70), (2, 8, 80), (3, 7, 71), (4, 9, 90)] {
            assert_eq!(claims.push(offset, request_id, claim(ad_id)), None);
        }
        let stored: Claims = Stored::from(claims.clone()).into();
        for mut claims in [claims, stored] {
            assert_eq!(claims.get(7).map(|c| c.ad_id), Some(71), "the later one of two with the same request");
            claims.get_mut(8).unwrap().stage = Stage::Settled;
            assert_eq!(claims.withdraw_before(3).map(|c| c.ad_id), Some(70));
            assert_eq!(claims.withdraw_before(3), None);
            let mut again: Claims = Stored::from(claims.clone()).into();
            for claims in [&mut claims, &mut again] {
                assert_eq!(claims.withdraw_before(u64::MAX).map(|c| c.ad_id), Some(71));
                assert_eq!(claims.open().count(), 0, "of contracts");
                assert_eq!(claims.withdraw_before(u64::MAX).map(|c| c.ad_id), Some(90));
                assert_eq!(claims.withdraw_before(u64::MAX), None);
                let stages = [7, 8, 9].map(|request| claims.get(request).unwrap().stage);
                assert_eq!(stages, [Stage::Withdrawn, Stage::Settled, Stage::Withdrawn]);
            }
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
