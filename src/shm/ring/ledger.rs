//! Where every sample went.

use std::fmt;

/// The samples of one ring, exact to the last one whenever nobody is at work in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ledger {
    /// Counted when a region is claimed for them.
    pub produced: u64,
    /// Read and released by the learner.
    pub consumed: u64,
    /// In blocks that the actor overwrote before they were read.
    pub overwritten: u64,
    /// In blocks that died with their actor, or were damaged.
    pub lost: u64,
    /// In committed blocks that are still there.
    pub unread: u64,
    /// Given up by the actor before they made a block.
    pub discarded: u64,
    /// Damaged blocks; their samples are among the lost. Anything but 0 is a bug or broken memory.
    pub torn_blocks: u64,
}

/// A ledger in which samples are missing or counted twice.
#[derive(Debug, thiserror::Error)]
#[error("the ledger does not balance: {0}")]
pub struct Unbalanced(pub Ledger);

impl Ledger {
    /// Checks that every sample produced is accounted for, exactly once.
    ///
    /// # Errors
    /// All figures, where they do not add up.
    pub fn balance(&self) -> Result<(), Unbalanced> {
        if self.produced == self.accounted() { Ok(()) } else { Err(Unbalanced(*self)) }
    }

    /// The ledger once the rings are gone: what was unread, or in a block under way, is lost.
    pub fn closed(self) -> Self {
        let kept = self.consumed + self.overwritten + self.discarded + self.lost;
        // Read while actors were at work: a figure may be newer than the one before it.
        let produced = self.produced.max(kept);
        Self { produced, lost: self.lost + (produced - kept), unread: 0, ..self }
    }

    /// The sum over several rings.
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

    pub(super) fn accounted(&self) -> u64 {
        let parts = [self.consumed, self.overwritten, self.lost, self.unread, self.discarded];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.produced == self.accounted() { "=" } else { "!=" };
        let Self { produced, consumed, overwritten, lost, unread, discarded, torn_blocks } = self;
        write!(
            f,
            "produced {produced} {sign} consumed {consumed} + overwritten {overwritten} + lost {lost} \
             + unread {unread} + discarded {discarded}"
        )?;
        if *torn_blocks > 0 {
            write!(f, " ({torn_blocks} blocks torn)")?;
        }
        Ok(())
    }
}
