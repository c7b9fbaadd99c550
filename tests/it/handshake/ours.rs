//! Our protocol: counters that only grow, and a half is overwritten only when the other one is on disk.

use super::explorer::{Move, Program, Protocol, Report, explore};
use super::{Data, Oracle, PARTIES, Part, UPDATES, describe, slot};

/// The number of the last update that it was raised for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Counter {
    value: u8,
    /// How often it was raised. Nobody looks at this but the oracle.
    given: u8,
}

impl Counter {
    fn raise(&mut self, n: u8) {
        // Again, where an owner started anew and the counter was left as it was.
        self.given += u8::from(n > self.value);
        self.value = n;
    }

    fn set(&mut self, n: u8) {
        *self = Self { value: n, given: n };
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct State {
    next: [u8; PARTIES],
    /// Update or snapshot from which the process goes on: one for learner and table, who start together, and one for
    /// the checkpointer.
    owners_from: u8,
    checkpointer_from: u8,
    looked_up: Counter,
    updated: Counter,
    dense_ready: Counter,
    sparse_ready: Counter,
    committed: Counter,
    /// How often the owners were started anew, and what the checkpointer knows of it.
    generation: u8,
    noted: u8,
    data: Data,
    kills_left: Kills,
}

/// How often processes may be killed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Kills {
    owners: u8,
    checkpointer: u8,
}

/// The protocol, and bugs to be found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsDesigned,
    /// As `shm::halves` is used: the learner owns both parts and puts them there one after the other. Nothing is taken
    /// back when it is started anew, and nobody looks at generations: the part that comes second says that the first one
    /// is there.
    OneOwner,
    /// The learner raises *dense ready* before its part is complete.
    ReadyBeforeTheCopyEnds,
    /// The owners overwrite a half although the other one is not on disk.
    OverwriteWithoutWaiting,
    /// The checkpointer looks at one of the two parts only.
    DensePartOnly,
    /// The learner copies its part after the update that follows.
    PartOfTheNextUpdate,
    /// The table gathers rows into the buffer that the learner is still to use.
    RowsGatheredTooEarly,
    /// The checkpointer puts a flag from before a restart of the owners and one from after it together.
    FlagsOfTwoGenerations,
    /// A restart leaves *dense ready* where it was.
    FlagsOutliveTheOwners,
}

fn check(right: bool) -> Move<Oracle> {
    if right { Move::Next } else { Move::Broken(Oracle::WrongUpdate) }
}

/// The learner from the state after update `from` on.
fn learner(from: u8, variant: Variant) -> Program<State, Oracle> {
    let mut program = Program::new();
    if variant == Variant::OneOwner {
        for n in from + 1..=UPDATES {
            program
                .act(format!("learner makes update {n}"), move |s: &mut State| (s.data.dense, s.data.table) = (n, n));
            dense_part(&mut program, n, variant);
            sparse_part(&mut program, n, variant);
        }
        return program;
    }
    let mut copied = from;
    for n in from + 1..=UPDATES {
        program.wait(format!("learner sees rows looked up for {n}"), move |s: &State| s.looked_up.value >= n);
        program.step(format!("learner makes update {n}"), move |s: &mut State| check(s.data.update(n)));
        program.act(format!("learner hands gradients {n} over"), move |s: &mut State| s.data.gradients[slot(n)] = n);
        program.act(format!("learner raises updated to {n}"), move |s: &mut State| s.updated.raise(n));
        if variant == Variant::PartOfTheNextUpdate && n == 1 {
            continue;
        }
        // All parts that are due: one, but for the bug that is late with the first.
        for n in copied + 1..=n {
            dense_part(&mut program, n, variant);
        }
        copied = n;
    }
    program
}

fn dense_part(program: &mut Program<State, Oracle>, n: u8, variant: Variant) {
    let ready = move |s: &mut State| s.dense_ready.raise(n);
    if variant != Variant::OverwriteWithoutWaiting {
        program.wait(format!("learner sees {} committed", n - 1), move |s: &State| s.committed.value >= n - 1);
    }
    program.act(format!("learner begins dense part {n}"), move |s: &mut State| {
        s.data.halves[slot(n)].dense.writing = true;
    });
    if variant == Variant::ReadyBeforeTheCopyEnds {
        program.act(format!("learner raises dense ready to {n}"), ready);
    }
    program.act(format!("learner ends dense part {n}"), move |s: &mut State| {
        s.data.halves[slot(n)].dense = Part { update: s.data.dense, writing: false };
    });
    if variant != Variant::ReadyBeforeTheCopyEnds {
        program.act(format!("learner raises dense ready to {n}"), ready);
    }
}

fn sparse_part(program: &mut Program<State, Oracle>, n: u8, variant: Variant) {
    if variant != Variant::OverwriteWithoutWaiting {
        program.wait(format!("table sees {} committed", n - 1), move |s: &State| s.committed.value >= n - 1);
    }
    program.act(format!("table begins sparse part {n}"), move |s: &mut State| {
        s.data.halves[slot(n)].sparse.writing = true;
    });
    program.act(format!("table ends sparse part {n}"), move |s: &mut State| {
        s.data.halves[slot(n)].sparse = Part { update: s.data.table, writing: false };
    });
    program.act(format!("table raises sparse ready to {n}"), move |s: &mut State| s.sparse_ready.raise(n));
}

/// The table from the state after update `from` on.
fn table(from: u8, variant: Variant) -> Program<State, Oracle> {
    let mut program = Program::new();
    if variant == Variant::OneOwner {
        return program;
    }
    let gather = |program: &mut Program<State, Oracle>, n: u8| {
        if n <= UPDATES {
            program.act(format!("table gathers rows for {n}"), move |s: &mut State| s.data.rows[slot(n)] = n);
            program.act(format!("table raises looked up to {n}"), move |s: &mut State| s.looked_up.raise(n));
        }
    };
    gather(&mut program, from + 1);
    gather(&mut program, from + 2);
    if variant == Variant::RowsGatheredTooEarly {
        gather(&mut program, from + 3);
    }
    for n in from + 1..=UPDATES {
        program.wait(format!("table sees updated for {n}"), move |s: &State| s.updated.value >= n);
        program.step(format!("table applies gradients {n}"), move |s: &mut State| check(s.data.apply(n)));
        sparse_part(&mut program, n, variant);
        // Both buffers of update `n` are free: the learner has used its rows, and its gradients are applied.
        gather(&mut program, n + 2);
    }
    program
}

/// The checkpointer, when snapshot `from` is the last one that was called committed.
fn checkpointer(from: u8, variant: Variant) -> Program<State, Oracle> {
    let mut program = Program::new();
    for n in from + 1..=UPDATES {
        program.act("checkpointer notes the owners' generation", |s: &mut State| s.noted = s.generation);
        program.wait(format!("checkpointer sees dense part {n} ready"), move |s: &State| s.dense_ready.value >= n);
        program.wait(format!("checkpointer sees sparse part {n} ready"), move |s: &State| {
            s.sparse_ready.value >= n || variant == Variant::DensePartOnly
        });
        program.step("checkpointer looks whether the generation is the same", move |s: &mut State| {
            let same = s.noted == s.generation || matches!(variant, Variant::FlagsOfTwoGenerations | Variant::OneOwner);
            if same { Move::Next } else { Move::Back(3) }
        });
        program.act(format!("checkpointer begins to copy snapshot {n}"), move |s: &mut State| s.data.begin_copy(n));
        program.step(format!("checkpointer renames snapshot {n} into place"), move |s: &mut State| {
            if s.data.commit(n) { Move::Next } else { Move::Broken(Oracle::MixedParts) }
        });
        program.act(format!("checkpointer raises committed to {n}"), move |s: &mut State| s.committed.raise(n));
    }
    program
}

struct Ours {
    variant: Variant,
    kills: Kills,
    /// By party and by where it goes on from.
    programs: [Vec<Program<State, Oracle>>; PARTIES],
}

impl Ours {
    fn explore(variant: Variant, kills: Kills) -> Report<Oracle> {
        let all =
            |program: fn(u8, Variant) -> Program<State, Oracle>| (0..=UPDATES).map(|n| program(n, variant)).collect();
        let report =
            explore(&Self { variant, kills, programs: [all(learner), all(table), all(checkpointer)] }, PARTIES);
        println!("{variant:?}, {kills:?}: {}", describe(&report));
        report
    }

    /// Main has reaped the owners, settles what they left, and starts both from the newest complete snapshot.
    fn restart_owners(&self, state: &mut State) {
        let from = state.dense_ready.value.min(state.sparse_ready.value);
        state.looked_up.set(from);
        state.updated.set(from);
        // What one of them had called ready is made again, so it is ready no longer.
        if !matches!(self.variant, Variant::FlagsOutliveTheOwners | Variant::OneOwner) {
            state.dense_ready.set(from);
        }
        state.sparse_ready.set(from);
        state.generation += 1;
        state.owners_from = from;
        (state.next[0], state.next[1]) = (0, 0);
        let data = &mut state.data;
        (data.dense, data.table, data.rows, data.gradients) = (from, from, [0; 2], [0; 2]);
    }
}

impl Protocol for Ours {
    type State = State;
    type Oracle = Oracle;
    const STUCK: Oracle = Oracle::Stuck;

    fn start(&self) -> State {
        State { kills_left: self.kills, ..State::default() }
    }

    fn at(&self, state: &State, party: usize) -> (&Program<State, Oracle>, usize) {
        let from = [state.owners_from, state.owners_from, state.checkpointer_from][party];
        (&self.programs[party][usize::from(from)], state.next[party].into())
    }

    fn set_next(&self, state: &mut State, party: usize, step: usize) {
        state.next[party] = step as u8;
    }

    fn broken(&self, state: &State) -> Vec<Oracle> {
        let counters = [
            ("looked up", state.looked_up),
            ("updated", state.updated),
            ("dense ready", state.dense_ready),
            ("sparse ready", state.sparse_ready),
            ("committed", state.committed),
        ];
        let lost = counters.into_iter().filter(|(_, c)| c.value < c.given).map(|(name, _)| Oracle::LostSignal(name));
        lost.chain(state.data.broken(state.dense_ready.value.min(state.sparse_ready.value))).collect()
    }

    fn kills(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut after = Vec::new();
        if state.kills_left.owners > 0 {
            let mut state = state.clone();
            state.kills_left.owners -= 1;
            self.restart_owners(&mut state);
            after.push(("learner and table are killed and started anew", state));
        }
        if state.kills_left.checkpointer > 0 {
            let mut state = state.clone();
            state.kills_left.checkpointer -= 1;
            state.data.copying = None;
            (state.checkpointer_from, state.next[2], state.noted) = (state.committed.value, 0, 0);
            after.push(("the checkpointer is killed and started anew", state));
        }
        after
    }
}

const UNHARMED: Kills = Kills { owners: 0, checkpointer: 0 };
const KILLED: Kills = Kills { owners: 2, checkpointer: 2 };

#[test]
fn counters_pass_every_oracle_also_when_processes_are_killed() {
    for variant in [Variant::AsDesigned, Variant::OneOwner] {
        for kills in [UNHARMED, KILLED] {
            let report = Ours::explore(variant, kills);
            assert!(report.broken.is_empty(), "{variant:?}: {}", describe(&report));
            assert!(report.states > 50, "{}", describe(&report));
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for (variant, kills, oracle) in [
        (Variant::ReadyBeforeTheCopyEnds, UNHARMED, Oracle::TornCopy),
        (Variant::OverwriteWithoutWaiting, UNHARMED, Oracle::TornCopy),
        (Variant::OverwriteWithoutWaiting, UNHARMED, Oracle::NoCompleteHalf),
        (Variant::DensePartOnly, UNHARMED, Oracle::MixedParts),
        (Variant::PartOfTheNextUpdate, UNHARMED, Oracle::MixedParts),
        (Variant::RowsGatheredTooEarly, UNHARMED, Oracle::WrongUpdate),
        (Variant::FlagsOfTwoGenerations, KILLED, Oracle::TornCopy),
        (Variant::FlagsOutliveTheOwners, KILLED, Oracle::TornCopy),
    ] {
        let report = Ours::explore(variant, kills);
        assert!(report.broken.contains_key(&oracle), "{variant:?} does not break {oracle:?}: {}", describe(&report));
    }
}
