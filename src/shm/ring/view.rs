//! A ring as observed from outside, at one moment.

use std::time::Duration;

use serde::Serialize;

use super::super::sync::{AtomicU64, Ordering};
use super::SampleRing;
use super::layout::{CONSUMED, DISCARDED, OVERWRITTEN, PRODUCED, State, TORN_BLOCKS, TORN_SAMPLES};
use super::ledger::Ledger;

/// Maximum number of looks at a ring in use until two consecutive looks agree.
const LOOKS: usize = 200;
/// Number of times that numbers which do not add up are read again before they are believed.
const DOUBTS: usize = 10;

/// State of one ring at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RingView {
    pub actor: u64,
    /// Payload capacity of a region, bytes.
    pub capacity: usize,
    /// Sequence number of the next block.
    pub next_seq: u64,
    /// Processes that hold the roles; `None` if nobody does.
    pub writer_pid: Option<u64>,
    pub reader_pid: Option<u64>,
    pub regions: Vec<RegionView>,
    pub ledger: Ledger,
    /// Samples of the block being written, which are produced but not accounted for yet.
    pub writing: u64,
    pub balance: Balance,
}

/// State of one region at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RegionView {
    pub state: State,
    /// Header of the block in it; 0 unless the block is readable or being read.
    pub seq: u64,
    pub samples: u64,
    pub bytes: u64,
    pub param_version: u64,
}

/// Whether every sample produced is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Exactly once, including the block being written.
    Exact,
    /// A move between two states is in progress, or a party died in the middle of one; recovery will decide it.
    Moving,
    /// Not balanced: a bug or broken memory.
    Off,
}

impl SampleRing {
    /// Returns the current ledger. A block that is being written counts as produced only.
    pub fn ledger(&self) -> Ledger {
        let head = self.head();
        let unread = self.regions().iter().map(|region| {
            // Acquire: pairs with the Release in `commit`, so that `samples` belongs to this phase.
            match State::of(region.phase.load(Ordering::Acquire)) {
                State::Readable | State::Reading => region.samples.load(Ordering::Relaxed),
                State::Free | State::Writing => 0,
            }
        });
        Ledger {
            produced: head.writer.account.total(PRODUCED),
            consumed: head.reader.total(CONSUMED),
            overwritten: head.writer.account.total(OVERWRITTEN),
            // Acquire: pairs with the Release in `recover_writer`.
            lost: head.lost.load(Ordering::Acquire).saturating_add(head.reader.total(TORN_SAMPLES)),
            unread: unread.fold(0, u64::saturating_add),
            discarded: head.writer.account.total(DISCARDED),
            torn_blocks: head.reader.total(TORN_BLOCKS),
        }
    }

    /// Looks at the ring until two looks agree, so that the numbers belong together; returns the last look if they never do.
    /// Stores nothing.
    pub fn view(&self) -> RingView {
        let mut last = self.look();
        let mut doubts = DOUBTS;
        for _ in 0..LOOKS {
            let next = self.look();
            let still = next == last;
            last = next;
            if still && (last.balance != Balance::Off || doubts == 0) {
                return last;
            }
            if still {
                // Main may be in the middle of a recovery, which is not announced.
                doubts -= 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Numbers of different moments prove nothing.
        RingView { balance: Balance::Moving, ..last }
    }

    fn look(&self) -> RingView {
        let head = self.head();
        // First: a move that ends after this has changed the totals before they are read, so the next look differs.
        let moving = head.writer.account.is_armed() || head.reader.is_armed();
        let regions: Vec<RegionView> = self
            .regions()
            .iter()
            .map(|region| {
                // Acquire: pairs with the Release in `commit`, so that the header belongs to this phase.
                let state = State::of(region.phase.load(Ordering::Acquire));
                let holds = matches!(state, State::Readable | State::Reading);
                let field = |word: &AtomicU64| if holds { word.load(Ordering::Relaxed) } else { 0 };
                RegionView {
                    state,
                    seq: field(&region.seq),
                    samples: field(&region.samples),
                    bytes: field(&region.len),
                    param_version: field(&region.param_version),
                }
            })
            .collect();
        let writes = regions.iter().any(|region| region.state == State::Writing);
        let writing = if writes { head.writer.claim_samples.load(Ordering::Acquire) } else { 0 };
        let ledger = self.ledger();
        let balance = if ledger.produced == ledger.accounted().saturating_add(writing) {
            Balance::Exact
        } else if moving {
            Balance::Moving
        } else {
            Balance::Off
        };
        let role = |pid: u64| Some(pid).filter(|pid| *pid != 0);
        RingView {
            actor: head.actor.load(Ordering::Relaxed),
            capacity: self.capacity,
            next_seq: head.writer.next_seq.load(Ordering::Acquire),
            writer_pid: role(head.writer_pid.load(Ordering::Relaxed)),
            reader_pid: role(head.reader_pid.load(Ordering::Relaxed)),
            regions,
            ledger,
            writing,
            balance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::crash::{abandon, kill_after};
    use super::super::super::segment::tests::unique_name;
    use super::super::super::wait::Doorbell;
    use super::super::{Overflow, RingShape};
    use super::*;

    /// At every store at which the writer or reader can die, an observer sees exact or moving numbers, and exact ones once main
    /// has recovered the ring.
    #[test]
    fn no_death_looks_like_lost_samples() {
        // SAFETY: `Doorbell` is `Shareable`, hence valid as zeroes.
        let bell: Doorbell = unsafe { std::mem::zeroed() };
        let (mut exact, mut moving) = (0, 0);
        for step in 0.. {
            let shape = RingShape { actor: 3, regions: 3, capacity: 100 };
            let ring = SampleRing::create(&unique_name("view"), shape).unwrap();
            let mut sides = (ring.writer().unwrap(), ring.reader().unwrap());
            let done = kill_after(step, || {
                for i in 0..3 {
                    sides.0.claim(5 + i, Overflow::Overwrite).unwrap().commit(i as usize, 1, &bell);
                }
                sides.0.claim(9, Overflow::Overwrite).unwrap().commit(3, 2, &bell);
                drop(sides.0.claim(1, Overflow::Overwrite));
                sides.1.take().unwrap().unwrap().release();
                drop(sides.1.take().unwrap());
                sides.0.discard(4);
            });
            abandon(sides);
            let view = ring.view();
            assert!(view.writer_pid.is_some() && view.reader_pid.is_some());
            match view.balance {
                Balance::Exact => exact += 1,
                Balance::Moving => moving += 1,
                Balance::Off => panic!("step {step}: {view:?}"),
            }
            ring.recover_writer(&bell);
            ring.recover_reader();
            let after = ring.view();
            assert_eq!((after.balance, after.writing, after.writer_pid), (Balance::Exact, 0, None), "step {step}");
            if done.is_some() {
                assert_eq!(view.ledger, after.ledger);
                break;
            }
        }
        assert!(exact > 0 && moving > 0, "{exact} {moving}");
    }

    #[test]
    fn regions_tell_what_they_hold() {
        // SAFETY: as above.
        let bell: Doorbell = unsafe { std::mem::zeroed() };
        let name = unique_name("view");
        let ring = SampleRing::create(&name, RingShape { actor: 1, regions: 4, capacity: 64 }).unwrap();
        let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
        writer.claim(10, Overflow::Wait).unwrap().commit(11, 12, &bell);
        writer.claim(20, Overflow::Wait).unwrap().commit(21, 22, &bell);
        let read = reader.take().unwrap().unwrap();
        let written = writer.claim(30, Overflow::Wait).unwrap();
        let view = SampleRing::observe(&name).unwrap().view();
        let states: Vec<State> = view.regions.iter().map(|r| r.state).collect();
        assert_eq!(states, [State::Reading, State::Readable, State::Writing, State::Free]);
        let held = RegionView { state: State::Readable, seq: 1, samples: 20, bytes: 21, param_version: 22 };
        assert_eq!(view.regions[1], held);
        assert_eq!((view.ledger.produced, view.ledger.unread, view.writing), (60, 30, 30));
        assert_eq!((view.next_seq, view.balance, view.capacity), (2, Balance::Exact, 64));
        drop((read, written));
    }
}
