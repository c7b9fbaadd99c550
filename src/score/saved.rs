//! A scorer's state as bytes: for going on after an end, and for scoring at a state that was recorded.

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::env::State;

use super::claims::Claims;
use super::scorer::Scorer;

const MAGIC: &[u8; 8] = b"ADMXSCR2";
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
    /// to be confirmed the newest `claims` are kept.
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

    /// Goes on from saved bytes. Returns false where another policy saved them: then the counts are taken over, and the policy
    /// begins anew from them.
    ///
    /// # Errors
    /// Bytes that are damaged or of another day; the scorer is as it was.
    pub fn restore(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        let body = bytes.strip_prefix(MAGIC).context("it is not a saved scorer of this version")?;
        let (checksum, body) = body.split_first_chunk::<8>().context("it ends within its header")?;
        ensure!(XxHash3_64::oneshot(body) == u64::from_le_bytes(*checksum), "its checksum does not fit, it is damaged");
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (saved, _): (Saved, usize) = bincode::serde::decode_from_slice(body, config)?;
        let contracts = &self.replay.day.contracts;
        let same = contracts.len() == saved.contracts.len()
            && contracts.iter().zip(&saved.contracts).all(|(c, &ad_id)| c.ad_id == ad_id);
        ensure!(saved.start_ms == self.day.start_ms, "it was saved on another day than {}", self.day.date);
        ensure!(same, "it was saved with other contracts; the control table must name the same in the same order");
        ensure!(saved.rate_seed == self.options.rate_seed, "it was saved with --rate-seed {}", saved.rate_seed);
        let n = contracts.len();
        ensure!(saved.state.fits(n) && saved.claims.fit(n), "its counters are malformed");
        let own = saved.version == self.version;
        if own {
            // The last thing that can fail: the scorer is as it was until here.
            self.policy.load(&self.replay, &saved.policy)?;
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
        Ok(own)
    }
}
