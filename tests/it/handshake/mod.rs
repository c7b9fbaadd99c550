//! The handshake by which a run is checkpointed while it goes on, in every interleaving.
//!
//! Three parties: the **learner**, who owns the dense parameters; the owner of the sparse **table**, who gathers rows for
//! an update and applies its gradients; and the **checkpointer**, who copies snapshots out of two halves of shared memory
//! to disk. Rows and gradients go through two buffers each, so that the table can gather for the next update while the
//! learner is at this one. The snapshot of update n goes to half n mod 2; each owner puts its part there.
//!
//! The **literal** protocol, of the publication that this follows, has four flags of 0 and 1: *looked up*, *updated*,
//! *dense checkpoint ready*, *sparse checkpoint ready*. **Ours** has counters in their places that only grow, and a fifth
//! one, `committed`: half n mod 2 may be overwritten with snapshot n only when n - 1 is on disk. A counter cannot lose a
//! signal, and who waits for `committed` cannot overwrite what is being copied.
//!
//! Inside a trainer of values the learner and the table are two threads, and rows are also prefetched and evicted: [`rows`] explores that.
//!
//! What a restart needs depends on who owns the parts. With two owners, main takes back what one of them alone had called
//! ready, and the checkpointer makes sure that both flags that it saw are of one generation of owners. `shm::halves` is
//! used with one owner, the learner, and needs neither as long as the parts are always written in the same order.
//!
//! **Covered:** three iterations of both protocols in every interleaving of their steps; ours also with the owners or the
//! checkpointer killed at any step and started anew, and with bugs planted. **Not covered:** the order in which memory
//! shows the steps (that is `tests/loom`), and what the real files do (that is the tests of training).

mod explorer;
mod literal;
mod ours;
mod rows;

use explorer::Report;

/// Iterations: each half is used twice by the time that the third is under way.
const UPDATES: u8 = 3;

/// Learner, table, checkpointer.
const PARTIES: usize = 3;

/// What may never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Oracle {
    /// Some party has steps left and none can take one.
    Stuck,
    /// This signal was given, and its receiver has not taken it and can no longer see it.
    LostSignal(&'static str),
    /// A part of a half changes while the half is copied.
    TornCopy,
    /// A snapshot on disk one of whose parts is of another update.
    MixedParts,
    /// Snapshots have been announced, and neither half holds a complete one beside the base on disk.
    NoCompleteHalf,
    /// An update was made with the rows of another, or applied with its gradients.
    WrongUpdate,
}

/// One owner's part of a half.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    /// The update after which it was copied, 0 for none.
    update: u8,
    writing: bool,
}

/// A half of the shared memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Half {
    dense: Part,
    sparse: Part,
}

impl Half {
    fn complete(self) -> bool {
        self.dense == self.sparse && !self.dense.writing && self.dense.update > 0
    }

    fn changing(self) -> bool {
        self.dense.writing || self.sparse.writing
    }
}

/// What both protocols move: halves, disk, and the buffers between learner and table.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct Data {
    /// Updates in the dense parameters.
    dense: u8,
    /// Update whose gradients the table got last.
    table: u8,
    /// For which updates the rows in the two buffers were gathered.
    rows: [u8; 2],
    /// Of which updates the gradients in the two buffers are.
    gradients: [u8; 2],
    halves: [Half; 2],
    /// The half that the checkpointer is copying, and what it held when the copy began.
    copying: Option<(u8, Half)>,
    /// The newest snapshot on disk, which replaced the one before it in one step; 0 is the base that the run began with.
    disk: u8,
}

impl Data {
    /// The learner makes update `n`.
    fn update(&mut self, n: u8) -> bool {
        self.dense = n;
        self.rows[slot(n)] == n
    }

    /// The table applies the gradients that lie in the buffer of update `n`.
    fn apply(&mut self, n: u8) -> bool {
        self.table = self.gradients[slot(n)];
        self.table == n
    }

    fn begin_copy(&mut self, n: u8) {
        self.copying = Some((slot(n) as u8, self.halves[slot(n)]));
    }

    /// The copy of snapshot `n` is on disk under its final name; whether its parts are those of update `n` (that they
    /// did not change meanwhile is another oracle's business).
    fn commit(&mut self, n: u8) -> bool {
        let (_, copied) = self.copying.take().expect("a copy was begun");
        self.disk = n;
        copied.changing() || (copied.dense.update, copied.sparse.update) == (n, n)
    }

    /// What the state of the data breaks, when `announced` snapshots have been called ready by both owners.
    fn broken(&self, announced: u8) -> impl Iterator<Item = Oracle> {
        let torn = self.copying.is_some_and(|(half, _)| self.halves[half as usize].changing());
        let none = announced > 0 && !self.halves.iter().any(|half| half.complete());
        [torn.then_some(Oracle::TornCopy), none.then_some(Oracle::NoCompleteHalf)].into_iter().flatten()
    }
}

fn slot(n: u8) -> usize {
    usize::from(n % 2)
}

/// The broken oracles with their traces, for messages.
fn describe(report: &Report<Oracle>) -> String {
    let mut text = format!("{} states", report.states);
    for (oracle, trace) in &report.broken {
        text += &format!("\n{oracle:?} after {} steps:\n    {}", trace.len(), trace.join("\n    "));
    }
    text
}
