//! The learner and the row thread in every interleaving: look-ups, prefetches, evictions with write-back, updates, and kills
//! between them.
//!
//! A row's value is the number of its updates. The cache has two places over a host table of three rows. Batches share rows so that
//! one is a hit, one finds no room until the batch before it is over, and one needs a row that was evicted just before.

use std::collections::BTreeMap;

use super::explorer::{Move, Program, Protocol, Report, explore};

const IDS: usize = 3;
const PLACES: usize = 2;
const SLOTS: usize = 3;
/// The rows of each batch.
const BATCHES: [&[usize]; 4] = [&[0, 1], &[1], &[0, 2], &[1]];
const LAST: u8 = BATCHES.len() as u8;
/// The update after which a snapshot is taken.
const SNAPSHOT: u8 = 2;
const PARTIES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Oracle {
    Stuck,
    /// A batch was computed with rows that lack the update of a batch before it.
    EarlyRead,
    /// Gradients were applied that are not those of the batch.
    EarlyUpdate,
    /// A row was taken from the host while its newest value was in the cache, or while it was being written.
    StaleFetch,
    /// A row that a batch needs was evicted.
    PinnedEvicted,
    /// At the end a row lacks an update or has one too many.
    WrongTable,
}

/// The protocol, and bugs to be found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsDesigned,
    InteractsBeforeLookedUp,
    UpdatesBeforeReady,
    GathersBeforeTheUpdate,
    FetchesWhatIsResident,
    EvictsPinned,
    ForgetsTheWriteBack,
    SavesWithoutWritingBack,
    KeepsTheTableAfterAKill,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    id: Option<u8>,
    value: u8,
    dirty: bool,
    pins: u8,
    /// The batch that asked for it last.
    asked: u8,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Slot {
    rows: [u8; IDS],
    gradient: u8,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct State {
    next: [u8; PARTIES],
    /// The snapshot that both go on from.
    from: u8,
    asked: u8,
    looked_up: u8,
    ready: u8,
    updated: u8,
    slots: [Slot; SLOTS],
    host: [u8; IDS],
    /// The row that is being written.
    torn: Option<u8>,
    places: [Place; PLACES],
    /// Newest batch whose rows are pinned.
    fetched: u8,
    /// The batch that is being fetched has room.
    fetching: bool,
    victim: Option<u8>,
    /// Update of the newest snapshot, and the rows in it.
    saved: u8,
    rows_saved: [u8; IDS],
    kills_left: u8,
}

/// Updates of a row in the batches up to `n`.
fn expected(id: usize, n: u8) -> u8 {
    BATCHES[..usize::from(n)].iter().filter(|ids| ids.contains(&id)).count() as u8
}

impl State {
    fn slot(&mut self, n: u8) -> &mut Slot {
        &mut self.slots[usize::from(n) % SLOTS]
    }

    fn resident(&self, id: usize) -> Option<usize> {
        self.places.iter().position(|place| place.id == Some(id as u8))
    }

    /// Pins what is resident of batch `n`, if there is room for the rest.
    fn begin_fetch(&mut self, n: u8, variant: Variant) {
        let ids = BATCHES[usize::from(n) - 1];
        let pinned = self.places.iter().filter(|place| place.pins > 0);
        let unpinned = ids.iter().filter(|id| self.resident(**id).is_none_or(|at| self.places[at].pins == 0));
        self.fetching = pinned.count() + unpinned.count() <= PLACES || variant == Variant::EvictsPinned;
        for &id in ids {
            if let (true, Some(at)) = (self.fetching, self.resident(id)) {
                self.places[at].pins += 1;
                self.places[at].asked = n;
            }
        }
    }

    fn write_back(&mut self, at: usize) {
        if let Place { id: Some(id), dirty: true, value, .. } = self.places[at] {
            self.host[usize::from(id)] = value;
            self.places[at].dirty = false;
        }
    }
}

fn check(right: bool, oracle: Oracle) -> Move<Oracle> {
    if right { Move::Next } else { Move::Broken(oracle) }
}

fn learner(from: u8, variant: Variant) -> Program<State, Oracle> {
    let mut program = Program::new();
    let ask = |program: &mut Program<State, Oracle>, n: u8| {
        if n <= LAST {
            program.wait(format!("learner sees room for {n}"), move |s: &State| {
                usize::from(n) <= usize::from(s.updated) + SLOTS
            });
            program.act(format!("learner asks for {n}"), move |s: &mut State| s.asked = n);
        }
    };
    ask(&mut program, from + 1);
    for n in from + 1..=LAST {
        ask(&mut program, n + 1);
        if variant != Variant::InteractsBeforeLookedUp {
            program.wait(format!("learner sees {n} looked up"), move |s: &State| s.looked_up >= n);
        }
        program.step(format!("learner computes {n}"), move |s: &mut State| {
            let slot = s.slot(n);
            slot.gradient = n;
            let right = BATCHES[usize::from(n) - 1].iter().all(|&id| slot.rows[id] == expected(id, n - 1));
            check(right, Oracle::EarlyRead)
        });
        program.act(format!("learner raises ready to {n}"), move |s: &mut State| s.ready = n);
        if n == SNAPSHOT || n == LAST {
            program.wait(format!("learner sees {n} updated"), move |s: &State| s.updated >= n);
            program.act("learner has all rows written back", move |s: &mut State| {
                if variant != Variant::SavesWithoutWritingBack {
                    (0..PLACES).for_each(|at| s.write_back(at));
                }
            });
            program.act(format!("learner saves {n}"), move |s: &mut State| (s.saved, s.rows_saved) = (n, s.host));
        }
    }
    program.step("learner ends", |s: &mut State| {
        check((0..IDS).all(|id| s.host[id] == expected(id, LAST)), Oracle::WrongTable)
    });
    program
}

/// Fetches batch `n`, all of its rows or none.
fn fetch(program: &mut Program<State, Oracle>, n: u8, variant: Variant) {
    if n > LAST {
        return;
    }
    program.act(format!("rows look for room for {n}"), move |s: &mut State| {
        s.fetching = false;
        if s.asked >= n && s.fetched < n {
            s.begin_fetch(n, variant);
        }
    });
    for &id in BATCHES[usize::from(n) - 1] {
        let missing = move |s: &State| {
            let resident = s.resident(id).is_some() && variant != Variant::FetchesWhatIsResident;
            s.fetching && !resident
        };
        program.step(format!("rows begin to write a victim of {n} back"), move |s: &mut State| {
            s.victim = None;
            if !missing(s) || s.places.iter().any(|place| place.id.is_none()) {
                return Move::Next;
            }
            let candidates = (0..PLACES).filter(|at| s.places[*at].pins == 0 || variant == Variant::EvictsPinned);
            let Some(at) = candidates.min_by_key(|at| s.places[*at].asked) else { return Move::Next };
            s.victim = Some(at as u8);
            if s.places[at].dirty && variant != Variant::ForgetsTheWriteBack {
                s.torn = s.places[at].id;
            }
            check(s.places[at].pins == 0, Oracle::PinnedEvicted)
        });
        program.act(format!("rows end the write-back for {n}"), move |s: &mut State| {
            if let Some(at) = s.victim.take().map(usize::from) {
                if variant != Variant::ForgetsTheWriteBack {
                    s.write_back(at);
                }
                s.torn = None;
                s.places[at] = Place::default();
            }
        });
        program.step(format!("rows fetch row {id} for {n}"), move |s: &mut State| {
            let newer = s.resident(id).is_some_and(|at| s.places[at].value > s.host[id]);
            let stale = newer || s.torn == Some(id as u8);
            if !missing(s) {
                return Move::Next;
            }
            if let Some(at) = s.places.iter().position(|place| place.id.is_none()) {
                s.places[at] = Place { id: Some(id as u8), value: s.host[id], dirty: false, pins: 1, asked: n };
            }
            check(!stale, Oracle::StaleFetch)
        });
    }
    program.act(format!("rows end the fetch for {n}"), move |s: &mut State| {
        if s.fetching {
            s.fetched = n;
        }
    });
}

fn rows(from: u8, variant: Variant) -> Program<State, Oracle> {
    let mut program = Program::new();
    let gather = |program: &mut Program<State, Oracle>, n: u8| {
        program.act(format!("rows gather {n}"), move |s: &mut State| {
            for &id in BATCHES[usize::from(n) - 1] {
                let value = s.resident(id).map_or(s.host[id], |at| s.places[at].value);
                s.slot(n).rows[id] = value;
            }
        });
        program.act(format!("rows raise looked up to {n}"), move |s: &mut State| s.looked_up = n);
    };
    for n in from + 1..=LAST {
        program.wait(format!("rows see that {n} was asked for"), move |s: &State| s.asked >= n);
        fetch(&mut program, n, variant);
        if variant != Variant::GathersBeforeTheUpdate || n == from + 1 {
            gather(&mut program, n);
        }
        fetch(&mut program, n + 1, variant);
        if variant == Variant::GathersBeforeTheUpdate && n < LAST {
            program.wait(format!("rows see that {} was asked for", n + 1), move |s: &State| s.asked > n);
            gather(&mut program, n + 1);
        }
        if variant != Variant::UpdatesBeforeReady {
            program.wait(format!("rows see {n} ready"), move |s: &State| s.ready >= n);
        }
        program.step(format!("rows apply the gradients of {n}"), move |s: &mut State| {
            let right = s.slot(n).gradient == n;
            for &id in BATCHES[usize::from(n) - 1] {
                if let Some(at) = s.resident(id) {
                    let place = &mut s.places[at];
                    (place.value, place.dirty, place.pins) = (place.value + 1, true, place.pins.saturating_sub(1));
                }
            }
            check(right, Oracle::EarlyUpdate)
        });
        program.act(format!("rows raise updated to {n}"), move |s: &mut State| s.updated = n);
    }
    program
}

struct Overlap {
    variant: Variant,
    kills: u8,
    programs: BTreeMap<u8, [Program<State, Oracle>; PARTIES]>,
}

impl Overlap {
    fn explore(variant: Variant, kills: u8) -> Report<Oracle> {
        let programs = [0, SNAPSHOT, LAST].map(|from| (from, [learner(from, variant), rows(from, variant)]));
        explore(&Self { variant, kills, programs: programs.into() }, PARTIES)
    }
}

impl Protocol for Overlap {
    type State = State;
    type Oracle = Oracle;
    const STUCK: Oracle = Oracle::Stuck;

    fn start(&self) -> State {
        State { kills_left: self.kills, ..State::default() }
    }

    fn at(&self, state: &State, party: usize) -> (&Program<State, Oracle>, usize) {
        (&self.programs[&state.from][party], state.next[party].into())
    }

    fn set_next(&self, state: &mut State, party: usize, step: usize) {
        state.next[party] = step as u8;
    }

    fn broken(&self, _: &State) -> Vec<Oracle> {
        Vec::new()
    }

    /// The trainer dies with both threads and its cache; the host table survives, and main has it put back to the snapshot.
    fn kills(&self, state: &State) -> Vec<(&'static str, State)> {
        if state.kills_left == 0 {
            return Vec::new();
        }
        let n = state.saved;
        let restored = self.variant != Variant::KeepsTheTableAfterAKill;
        let after = State {
            from: n,
            asked: n,
            looked_up: n,
            ready: n,
            updated: n,
            fetched: n,
            saved: n,
            rows_saved: state.rows_saved,
            host: if restored { state.rows_saved } else { state.host },
            kills_left: state.kills_left - 1,
            ..State::default()
        };
        vec![("the trainer is killed and started anew", after)]
    }
}

fn describe(report: &Report<Oracle>) -> String {
    report.broken.iter().map(|(oracle, trace)| format!("\n{oracle:?}:\n    {}", trace.join("\n    "))).collect()
}

#[test]
fn rows_are_read_and_written_in_turn_also_when_the_trainer_is_killed() {
    for kills in [0, 2] {
        let report = Overlap::explore(Variant::AsDesigned, kills);
        println!("{kills} kills: {} states", report.states);
        assert!(report.broken.is_empty(), "{}", describe(&report));
        assert!(report.states > 100);
    }
}

#[test]
fn planted_bugs_of_the_overlap_are_found() {
    for (variant, kills, oracle) in [
        (Variant::InteractsBeforeLookedUp, 0, Oracle::EarlyRead),
        (Variant::UpdatesBeforeReady, 0, Oracle::EarlyUpdate),
        (Variant::GathersBeforeTheUpdate, 0, Oracle::EarlyRead),
        (Variant::FetchesWhatIsResident, 0, Oracle::StaleFetch),
        (Variant::EvictsPinned, 0, Oracle::PinnedEvicted),
        (Variant::ForgetsTheWriteBack, 0, Oracle::WrongTable),
        (Variant::SavesWithoutWritingBack, 1, Oracle::WrongTable),
        (Variant::KeepsTheTableAfterAKill, 1, Oracle::WrongTable),
    ] {
        let report = Overlap::explore(variant, kills);
        assert!(report.broken.contains_key(&oracle), "{variant:?} does not break {oracle:?}: {}", describe(&report));
    }
}
