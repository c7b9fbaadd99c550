//! Description of a learned policy besides its weights and its plan: settings, vocabulary, and the resulting shape of the network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::env::outlook::{OUTLOOK_NAMES, WIDE};
use crate::env::{FEATURE_NAMES, FEATURES, Visit, Vocabulary};
use crate::settings::{self, ScoreMode};

use super::net::{Shape, Table};

/// Everything about a learned policy except its weights and its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    pub score_mode: ScoreMode,
    pub policy: settings::Policy,
    pub vocabulary: Vocabulary,
}

/// Rows of the embeddings of gender and age.
const GENDERS: u32 = 3;
const AGES: u32 = 10;
/// Maximum width of a network.
const WIDEST: usize = 1 << 14;

impl PolicySpec {
    /// Checks what parsing cannot. Must come first: the shape of a spec that fails this cannot be computed.
    ///
    /// # Errors
    /// If the network has no hidden units, or is larger than any that this program writes.
    pub fn check(&self) -> anyhow::Result<()> {
        let p = &self.policy;
        anyhow::ensure!(p.hidden > 0, "its network has no hidden units");
        for width in [p.hidden, p.ad_embedding, p.traffic_embedding] {
            anyhow::ensure!(width <= WIDEST, "its network is larger than any that this program writes");
        }
        Ok(())
    }

    /// Returns the width of the actor's input rows.
    pub fn features(&self) -> usize {
        if self.policy.outlook { WIDE } else { FEATURES }
    }

    /// Returns the names of the actor's inputs, in order.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let beyond: &[&str] = if self.policy.outlook { &OUTLOOK_NAMES } else { &[] };
        FEATURE_NAMES.iter().chain(beyond).copied().collect()
    }

    /// Returns the shape of the actor's network.
    pub fn actor_shape(&self) -> Shape {
        let mut tables = Vec::new();
        if self.policy.ad_embedding > 0 {
            tables.push(Table { rows: self.vocabulary.ads.len() + 1, width: self.policy.ad_embedding });
        }
        if self.policy.traffic_embedding > 0 {
            let width = self.policy.traffic_embedding;
            let fixed = [GENDERS as usize, AGES as usize];
            for rows in [self.vocabulary.slots.len() + 1, self.vocabulary.regions.len() + 1].into_iter().chain(fixed) {
                tables.push(Table { rows, width });
            }
        }
        Shape { features: self.features(), tables, hidden: self.policy.hidden, outputs: 1 }
    }

    /// Returns, for each embedding table, the rows of this spec and of `other` that stand for the same id; row 0 stands for
    /// unknown ids in both.
    pub fn embedding_rows(&self, other: &Self) -> Vec<(String, Vec<(u32, u32)>)> {
        fn shared<K: Ord>(own: &BTreeMap<K, u32>, other: &BTreeMap<K, u32>) -> Vec<(u32, u32)> {
            let both = own.iter().filter_map(|(id, &row)| Some((row, *other.get(id)?)));
            std::iter::once((0, 0)).chain(both).collect()
        }
        let fixed = |rows: u32| (0..rows).map(|row| (row, row)).collect();
        let (own, other) = (&self.vocabulary, &other.vocabulary);
        let mut tables: Vec<Vec<(u32, u32)>> = Vec::new();
        if self.policy.ad_embedding > 0 {
            tables.push(shared(&own.ads, &other.ads));
        }
        if self.policy.traffic_embedding > 0 {
            tables.extend([shared(&own.slots, &other.slots), shared(&own.regions, &other.regions)]);
            tables.extend([fixed(GENDERS), fixed(AGES)]);
        }
        tables.into_iter().enumerate().map(|(k, rows)| (format!("embedding{k}"), rows)).collect()
    }

    /// Returns the number of auction ads of a queue that are scored.
    pub fn auction_candidates(&self) -> usize {
        match self.score_mode {
            ScoreMode::Contract => 1,
            ScoreMode::All => self.policy.auction_candidates.max(1),
        }
    }

    /// Appends the ids that the actor's tables look up, for an ad on a request.
    pub fn push_ids(&self, visit: &Visit, ad: u32, ids: &mut Vec<u32>) {
        if self.policy.ad_embedding > 0 {
            ids.push(ad);
        }
        if self.policy.traffic_embedding > 0 {
            let [slot, region] = visit.place;
            ids.extend([slot, region, visit.gender.into(), visit.age.into()].map(u32::from));
        }
    }
}
