//! Embedding rows of ids.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::log::CompiledLog;

/// Embedding indices of ids; 0 stands for every id without one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    pub ads: BTreeMap<u64, u32>,
    pub slots: BTreeMap<u32, u32>,
    pub regions: BTreeMap<u32, u32>,
}

impl Vocabulary {
    /// Collects the contracts, slots and regions of the training days; with `auctions`, also the auction ads that appear in at
    /// least 100 queues.
    pub fn of_days(logs: &[&CompiledLog], auctions: bool) -> Self {
        let mut vocabulary = Self::default();
        let mut counts = BTreeMap::<u64, u32>::new();
        for log in logs {
            for c in log.contracts() {
                let next = vocabulary.ads.len() as u32 + 1;
                vocabulary.ads.entry(c.ad_id).or_insert(next);
            }
            for r in log.requests() {
                let next = vocabulary.slots.len() as u32 + 1;
                vocabulary.slots.entry(r.slot_id).or_insert(next);
                let next = vocabulary.regions.len() as u32 + 1;
                vocabulary.regions.entry(r.region).or_insert(next);
                if auctions {
                    for a in log.auctions(&r) {
                        *counts.entry(a.ad_id).or_default() += 1;
                    }
                }
            }
        }
        for (ad_id, _) in counts.into_iter().filter(|&(_, n)| n >= 100) {
            let next = vocabulary.ads.len() as u32 + 1;
            vocabulary.ads.entry(ad_id).or_insert(next);
        }
        vocabulary
    }

    pub fn ad(&self, id: u64) -> u32 {
        self.ads.get(&id).copied().unwrap_or(0)
    }

    /// Returns the indices of a request's slot and region.
    pub fn place(&self, slot_id: u32, region: u32) -> [u16; 2] {
        let index = |i: Option<&u32>| i.map_or(0, |&i| u16::try_from(i).unwrap_or(0));
        [index(self.slots.get(&slot_id)), index(self.regions.get(&region))]
    }
}
