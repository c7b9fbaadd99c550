//! A scorer's state as bytes: for going on after an end, and for scoring at a state that was recorded.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::env::State;

use super::claims::Claims;
use super::scorer::Scorer;

/// A state of another day than the one that is scored.
#[derive(Debug, thiserror::Error)]
#[error("it was saved on another day than {date}")]
pub struct AnotherDay {
    date: String,
}

/// A state that another version of the program has saved.
#[derive(Debug, thiserror::Error)]
#[error("it is no state that this version of admix has saved")]
pub struct AnotherVersion;

/// What a scorer took over from a saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Whether the policy goes on as it was. If not, another one saved the state or the contracts have changed: the counts are taken over, and the
    /// policy begins anew from them.
    pub goes_on: bool,
    /// Contracts of the control table that the state has no counts of, and those whose counts it has for nothing.
    pub new_contracts: usize,
    pub gone_contracts: usize,
}

const MAGIC: &[u8; 8] = b"ADMXSCR4";
/// Whatever a length field says, no more than this is read ahead.
const LIMIT: usize = 1 << 30;

/// Everything that a scorer goes on from beside the day and the policy.
#[derive(Serialize, Deserialize)]
pub struct Saved {
    /// Unix milliseconds of the day's midnight, and the contracts in the control table's order.
    start_ms: u64,
    contracts: Vec<u64>,
    rate_seed: u64,
    version: String,
    state: State,
    policy: Vec<u8>,
    claims: Claims,
    now: u64,
    late: bool,
    begun: bool,
}

impl Saved {
    /// The bytes that [`Scorer::restore`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = bincode::serde::encode_to_vec(self, bincode::config::standard()).expect("plain values serialise");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&XxHash3_64::oneshot(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

impl Scorer {
    /// The state as bytes; a scorer of the same day and policy that restores them goes on as this one would.
    pub fn save(&self) -> Vec<u8> {
        self.saved(self.replay.state.clone(), self.claims.clone()).to_bytes()
    }

    /// A copy of the state of bounded size: displays whose delivery has not been observed count as observed, and of the choices
    /// to be confirmed the newest `claims` are kept; older ones that are open count as shown ([`Scorer::restore`]).
    pub fn counts(&self, claims: usize) -> Saved {
        let mut state = self.replay.state.clone();
        state.observe_all();
        self.saved(state, self.claims.newest(claims))
    }

    fn saved(&self, state: State, claims: Claims) -> Saved {
        Saved {
            start_ms: self.day.start_ms,
            contracts: self.replay.day.contracts.iter().map(|c| c.ad_id).collect(),
            rate_seed: self.options.rate_seed,
            version: self.version.clone(),
            state,
            policy: self.policy.save(),
            claims,
            now: self.now,
            late: self.late,
            begun: self.begun,
        }
    }

    /// Goes on from saved bytes. Contracts may have changed since: each keeps its counts by its ad id. Choices that wait for an exposure count as shown
    /// where exposures need not confirm them any more.
    ///
    /// # Errors
    /// [`AnotherDay`], [`AnotherVersion`], and bytes that are damaged; the scorer is as it was.
    pub fn restore(&mut self, bytes: &[u8]) -> anyhow::Result<Restored> {
        let body = bytes.strip_prefix(MAGIC).ok_or(AnotherVersion)?;
        let (checksum, body) = body.split_first_chunk::<8>().context("it ends within its header")?;
        ensure!(XxHash3_64::oneshot(body) == u64::from_le_bytes(*checksum), "its checksum does not fit, it is damaged");
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (mut saved, _): (Saved, usize) = bincode::serde::decode_from_slice(body, config)?;
        if saved.start_ms != self.day.start_ms {
            return Err(AnotherDay { date: self.day.date.clone() }.into());
        }
        let rate_seed = saved.rate_seed;
        ensure!(rate_seed == self.options.rate_seed, "it was saved with --rate-seed {rate_seed}: give the same");
        let n = saved.contracts.len();
        ensure!(saved.state.fits(n) && saved.claims.fit(n), "its counters are malformed");
        let contracts = &self.replay.day.contracts;
        let places: HashMap<u64, usize> = saved.contracts.iter().copied().zip(0..).collect();
        let from: Vec<Option<usize>> = contracts.iter().map(|c| places.get(&c.ad_id).copied()).collect();
        let same = from.len() == n && from.iter().enumerate().all(|(j, from)| *from == Some(j));
        let kept = from.iter().flatten().count();
        if !same {
            let mut to = vec![None; n];
            from.iter().zip(0..).for_each(|(from, j)| from.iter().for_each(|&from| to[from] = Some(j)));
            saved.state = saved.state.of_contracts(&from, &to);
            saved.claims.of_contracts(&to);
        }
        let own = same && saved.version == self.version;
        if own {
            // The last thing that can fail: the scorer is as it was until here.
            self.policy.load(&self.replay, &saved.policy)?;
        }
        self.count_forgotten(&mut saved);
        if !self.options.confirms() && !self.options.stateless {
            // Exposures correct choices from now on, and need not confirm them.
            let state = &mut saved.state;
            saved.claims.show_open(|offset, claim| claim.observe(state, offset));
        }
        self.replay.state = saved.state;
        self.now = saved.now;
        self.replay.set_time(saved.now);
        if !own {
            self.replay.state.forget_plan();
            self.policy.begin(&self.replay);
            self.policy.hand_out(self.hands_out);
        }
        self.claims = saved.claims;
        self.late = saved.late;
        self.begun = own && saved.begun;
        Ok(Restored { goes_on: own, new_contracts: from.len() - kept, gone_contracts: n - kept })
    }

    /// Counts choices that are not among the saved claims as shown, for nothing can confirm them any more.
    fn count_forgotten(&self, saved: &mut Saved) {
        // Displays that are only not observed yet will be.
        let mut due = saved.state.clone();
        due.observe_all();
        let mut open = vec![0.0; saved.state.delivered.len()];
        saved.claims.open().for_each(|j| open[j] += 1.0);
        for (j, open) in open.iter().enumerate() {
            let forgotten = saved.state.delivered[j] - due.observed[j] - open;
            for _ in 0..forgotten.max(0.0) as u64 {
                saved.state.confirm(Some(j), saved.now, self.replay.day.contract_pctr, 0.0);
            }
        }
    }
}
