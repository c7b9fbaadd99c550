//! Decisions that are counted as shown; and what was really shown: exposures confirm choices, correct them, or fail to come.

use crate::env::Choice;
use crate::log::error::BadValue;
use crate::log::schema::TrackRow;

use super::claims::{Claim, Exposure, Stage};
use super::scorer::{Decision, Scorer};

/// What an exposure told a scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It was counted, or confirms what was.
    News,
    /// The request is not remembered, or its contract is gone, and nothing was counted. It may have been said before.
    Unknown,
    /// It was said before.
    Repeated,
    /// It is of another day than the one that is scored, and of no request that is remembered; nothing was counted.
    OtherDay,
}

impl Scorer {
    /// Scores a request, chooses an ad and counts it.
    ///
    /// # Errors
    /// As [`Scorer::check`]; the state does not move then.
    pub fn decide(&mut self, request: &TrackRow, out: &mut Decision) -> Result<(), BadValue> {
        self.check(request)?;
        let offset = (request.ts_ms - self.day.start_ms).max(self.now);
        if self.options.stateless {
            self.begin_late(offset);
            self.warm(offset);
            self.score_frozen(request, offset, out);
            return Ok(());
        }
        self.begin_late(offset);
        self.withdraw(offset);
        let choice = self.score(request, offset, out);
        self.now = offset;
        self.begun = true;
        self.count(choice, request.request_id);
        Ok(())
    }

    /// What was chosen on a request, where it is remembered.
    pub fn claimed(&self, request_id: u64) -> Option<Claim> {
        self.claims.get(request_id)
    }

    /// Counts a choice on the current request.
    fn count(&mut self, choice: Choice, request_id: u64) {
        if self.options.exposures
            && let Some(claim) = self.claim(choice)
        {
            self.remember(request_id, claim);
        }
        if self.options.confirms() {
            self.replay.claim(choice);
        } else {
            self.replay.show(choice);
        }
    }

    /// Remembers what was chosen on a request; forgets the oldest choice for want of room.
    fn remember(&mut self, request_id: u64, claim: Claim) {
        let forgotten = self.claims.push(self.now, request_id, claim);
        if let Some((offset, claim)) = forgotten
            && claim.stage == Stage::Open
        {
            // Nothing can confirm it any more: it counts as shown.
            claim.observe(&mut self.replay.state, offset);
        }
    }

    fn claim(&self, choice: Choice) -> Option<Claim> {
        let replay = &self.replay;
        let stage = if self.options.confirms() { Stage::Open } else { Stage::Shown };
        let of = |ad_id, contract, pctr: f64, worth: f64| Claim {
            ad_id,
            contract,
            pctr: pctr as f32,
            worth: worth as f32,
            stage,
        };
        match choice {
            Choice::Contract(i) => {
                let c = &replay.candidates()[i];
                Some(of(replay.day.contracts[c.contract as usize].ad_id, Some(c.contract), c.pctr, 0.0))
            }
            Choice::Auction(i) => {
                let a = &replay.auctions()[i];
                Some(of(a.ad_id, None, a.pctr, replay.worth(a)))
            }
            Choice::Nothing => None,
        }
    }

    /// Takes back what was not confirmed in time.
    fn withdraw(&mut self, offset: u64) {
        let Some(within) = self.options.confirm_within_s else { return };
        let before = offset.saturating_sub((within * 1000.0) as u64);
        while let Some(claim) = self.claims.withdraw_before(before) {
            if let Some(j) = claim.contract {
                self.replay.state.delivered[j as usize] -= 1.0;
            }
        }
    }

    /// Takes in what was really shown; in any order, repeats are ignored, and what was taken back counts after all.
    ///
    /// An exposure of a request that is not remembered counts for its contract, once. A stateless scorer counts none.
    pub fn confirm(&mut self, exposure: Exposure) -> Heard {
        if self.options.stateless {
            return Heard::Unknown;
        }
        let shown = self.rules.contract(exposure.ad_id);
        let at = exposure.ts_ms.saturating_sub(self.day.start_ms).min(self.now);
        let Some(claim) = self.claims.get_mut(exposure.request_id) else {
            if !self.day.contains(exposure.ts_ms) {
                return Heard::OtherDay;
            }
            if at < self.claims.counted_until() {
                // Counted when it was chosen, or when it was forgotten.
                return Heard::Unknown;
            }
            self.count_unforeseen(shown, at);
            let claim = Claim { ad_id: exposure.ad_id, contract: shown, pctr: 0.0, worth: 0.0, stage: Stage::Settled };
            self.remember(exposure.request_id, claim);
            return if shown.is_some() { Heard::News } else { Heard::Unknown };
        };
        let stage = std::mem::replace(&mut claim.stage, Stage::Settled);
        let claim = *claim;
        let contract = claim.contract.map(|j| j as usize);
        let as_chosen = claim.ad_id == exposure.ad_id;
        let state = &mut self.replay.state;
        match (stage, contract) {
            (Stage::Settled, _) => return Heard::Repeated,
            (Stage::Gone, _) if shown.is_none() => return Heard::Unknown,
            (Stage::Withdrawn, Some(j)) if as_chosen => state.delivered[j] += 1.0,
            (Stage::Open, Some(j)) if !as_chosen => state.delivered[j] -= 1.0,
            (Stage::Shown, Some(j)) if !as_chosen => state.take_back(j, claim.pctr),
            _ => {}
        }
        if !as_chosen || stage == Stage::Gone {
            self.count_unforeseen(shown, at);
        } else if stage != Stage::Shown {
            claim.observe(state, at);
        }
        Heard::News
    }

    /// Counts the display of a contract that was not chosen here, at the predicted click rate of contracts.
    fn count_unforeseen(&mut self, contract: Option<u32>, at: u64) {
        let Some(j) = contract.map(|j| j as usize) else { return };
        self.replay.state.delivered[j] += 1.0;
        self.replay.state.confirm(Some(j), at, self.replay.day.contract_pctr, 0.0);
    }
}
