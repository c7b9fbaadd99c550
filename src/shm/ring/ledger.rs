//! The sample ledger: where every sample went.

use std::fmt;

/// The sample ledger of one ring, exact to the last sample whenever no process is changing the ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Samples produced, counted when a region is claimed for them.
    pub produced: u64,
    /// Samples read and released by the learner.
    pub consumed: u64,
    /// Samples in blocks that the actor overwrote before they were read.
    pub overwritten: u64,
    /// Samples in blocks that died with their actor or were damaged, and those that were unread when a run's processes were gone.
    pub lost: u64,
    /// Samples in committed blocks that are still in the ring.
    pub unread: u64,
    /// Samples dropped by the actor before they made a block.
    pub discarded: u64,
    /// Number of damaged blocks; their samples are among the lost. Anything but 0 is a bug or broken memory.
    pub torn_blocks: u64,
}

/// Error of a ledger in which samples are missing or counted twice.
#[derive(Debug, thiserror::Error)]
#[error("the ledger does not balance: {0}")]
pub struct Unbalanced(pub Ledger);

impl Ledger {
    /// Checks that every sample produced is accounted for exactly once.
    ///
    /// # Errors
    /// All numbers, if they do not balance.
    pub fn balance(&self) -> Result<(), Unbalanced> {
        if self.produced == self.accounted() { Ok(()) } else { Err(Unbalanced(*self)) }
    }

    /// Returns the ledger after the rings are gone: samples that were unread, or in an unfinished block, are lost.
    pub fn closed(self) -> Self {
        let kept = self.consumed + self.overwritten + self.discarded + self.lost;
        // Read while actors were at work: one number may be newer than another.
        let produced = self.produced.max(kept);
        Self { produced, lost: self.lost + (produced - kept), unread: 0, ..self }
    }

    /// Returns the sum over several rings.
    pub fn sum(ledgers: impl IntoIterator<Item = Self>) -> Self {
        ledgers.into_iter().fold(Self::default(), |a, b| Self {
            produced: a.produced.saturating_add(b.produced),
            consumed: a.consumed.saturating_add(b.consumed),
            overwritten: a.overwritten.saturating_add(b.overwritten),
            lost: a.lost.saturating_add(b.lost),
            unread: a.unread.saturating_add(b.unread),
            discarded: a.discarded.saturating_add(b.discarded),
            torn_blocks: a.torn_blocks.saturating_add(b.torn_blocks),
        })
    }

    /// Returns the number of samples that are accounted for.
    pub fn accounted(&self) -> u64 {
        let parts = [self.consumed, self.overwritten, self.lost, self.unread, self.discarded];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the ledger as one line; `number` writes a count.
    pub fn line(&self, number: impl Fn(u64) -> String) -> String {
        let sign = if self.produced == self.accounted() { "=" } else { "!=" };
        let Self { produced, consumed, overwritten, lost, unread, discarded, torn_blocks } = *self;
        let parts = [
            ("consumed", consumed),
            ("overwritten", overwritten),
            ("lost", lost),
            ("unread", unread),
            ("discarded", discarded),
        ];
        let parts = parts.map(|(name, n)| format!("{name} {}", number(n))).join(" + ");
        let torn = if torn_blocks > 0 { format!(" ({torn_blocks} blocks torn)") } else { String::new() };
        format!("produced {} {sign} {parts}{torn}", number(produced))
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(|n| n.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field that a sum or the line forgets would be noticed by nobody else: totals would still look plausible.
    #[test]
    fn every_part_is_summed_accounted_for_and_written() {
        let parts =
            Ledger { consumed: 1, overwritten: 20, lost: 300, unread: 4000, discarded: 50_000, ..Ledger::default() };
        let ledger = Ledger { produced: 54_321, ..parts };
        assert_eq!((ledger.accounted(), ledger.balance().is_ok(), parts.balance().is_ok()), (54_321, true, false));
        let line = "produced 54321 = consumed 1 + overwritten 20 + lost 300 + unread 4000 + discarded 50000";
        assert_eq!(ledger.to_string(), line);
        let torn = Ledger::sum([ledger, Ledger { torn_blocks: 2, ..ledger }]);
        assert_eq!(torn.line(|n| (n / 2).to_string()), format!("{line} (2 blocks torn)"));
        let read: Ledger = serde_json::from_str(r#"{"produced": 3, "consumed": 3}"#).unwrap();
        assert_eq!(read, Ledger { produced: 3, consumed: 3, ..Ledger::default() });
    }
}
