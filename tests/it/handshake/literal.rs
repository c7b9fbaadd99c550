//! The published protocol: four flags of 0 and 1, and it fails.

use super::explorer::{Move, Program, Protocol, explore};
use super::{Data, Oracle, PARTIES, Part, UPDATES, describe, slot};

/// A flag of 0 and 1, with a count beside it of what it is to convey.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Flag {
    up: bool,
    /// Signals given and, by the other party, taken. Nobody looks at these but the oracle.
    given: u8,
    taken: u8,
}

impl Flag {
    fn raise(&mut self) {
        self.up = true;
        self.given += 1;
    }

    /// The receiver sees it up.
    fn take(&mut self) -> Move<Oracle> {
        if !self.up {
            return Move::Wait;
        }
        self.taken += 1;
        Move::Next
    }

    fn reset(&mut self) {
        self.up = false;
    }

    fn lost(self) -> bool {
        self.given > self.taken && !self.up
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct State {
    next: [u8; PARTIES],
    looked_up: Flag,
    updated: Flag,
    dense_ready: Flag,
    sparse_ready: Flag,
    data: Data,
}

fn check(right: bool) -> Move<Oracle> {
    if right { Move::Next } else { Move::Broken(Oracle::WrongUpdate) }
}

fn learner() -> Program<State, Oracle> {
    let mut program = Program::new();
    for n in 1..=UPDATES {
        program.step(format!("learner sees rows looked up for {n}"), |s: &mut State| s.looked_up.take());
        program.act("learner resets looked up", |s: &mut State| s.looked_up.reset());
        program.step(format!("learner makes update {n}"), move |s: &mut State| check(s.data.update(n)));
        program.act(format!("learner hands gradients {n} over"), move |s: &mut State| s.data.gradients[slot(n)] = n);
        program.act(format!("learner raises updated for {n}"), |s: &mut State| s.updated.raise());
        program.act(format!("learner begins dense part {n}"), move |s: &mut State| {
            s.data.halves[slot(n)].dense.writing = true;
        });
        program.act(format!("learner ends dense part {n}"), move |s: &mut State| {
            s.data.halves[slot(n)].dense = Part { update: s.data.dense, writing: false };
        });
        program.act(format!("learner raises dense ready for {n}"), |s: &mut State| s.dense_ready.raise());
    }
    program
}

fn table() -> Program<State, Oracle> {
    let mut program = Program::new();
    let gather = |program: &mut Program<State, Oracle>, n: u8| {
        program.act(format!("table gathers rows for {n}"), move |s: &mut State| s.data.rows[slot(n)] = n);
        program.act(format!("table raises looked up for {n}"), |s: &mut State| s.looked_up.raise());
    };
    gather(&mut program, 1);
    for n in 1..=UPDATES {
        if n < UPDATES {
            program.wait(format!("table sees that the rows for {n} are taken"), |s: &State| !s.looked_up.up);
            gather(&mut program, n + 1);
        }
        program.step(format!("table sees updated for {n}"), |s: &mut State| s.updated.take());
        program.step(format!("table applies gradients {n}"), move |s: &mut State| check(s.data.apply(n)));
        program.act("table resets updated", |s: &mut State| s.updated.reset());
        program.act(format!("table begins sparse part {n}"), move |s: &mut State| {
            s.data.halves[slot(n)].sparse.writing = true;
        });
        program.act(format!("table ends sparse part {n}"), move |s: &mut State| {
            s.data.halves[slot(n)].sparse = Part { update: s.data.table, writing: false };
        });
        program.act(format!("table raises sparse ready for {n}"), |s: &mut State| s.sparse_ready.raise());
    }
    program
}

fn checkpointer() -> Program<State, Oracle> {
    let mut program = Program::new();
    for n in 1..=UPDATES {
        program.step(format!("checkpointer sees dense ready for {n}"), |s: &mut State| s.dense_ready.take());
        program.step(format!("checkpointer sees sparse ready for {n}"), |s: &mut State| s.sparse_ready.take());
        program.act(format!("checkpointer begins to copy snapshot {n}"), move |s: &mut State| s.data.begin_copy(n));
        program.step(format!("checkpointer commits snapshot {n}"), move |s: &mut State| {
            if s.data.commit(n) { Move::Next } else { Move::Broken(Oracle::MixedParts) }
        });
        program.act("checkpointer resets dense ready", |s: &mut State| s.dense_ready.reset());
        program.act("checkpointer resets sparse ready", |s: &mut State| s.sparse_ready.reset());
    }
    program
}

struct Literal([Program<State, Oracle>; PARTIES]);

impl Protocol for Literal {
    type State = State;
    type Oracle = Oracle;
    const STUCK: Oracle = Oracle::Stuck;

    fn start(&self) -> State {
        State::default()
    }

    fn at(&self, state: &State, party: usize) -> (&Program<State, Oracle>, usize) {
        (&self.0[party], state.next[party].into())
    }

    fn set_next(&self, state: &mut State, party: usize, step: usize) {
        state.next[party] = step as u8;
    }

    fn broken(&self, state: &State) -> Vec<Oracle> {
        let flags = [
            ("looked up", state.looked_up),
            ("updated", state.updated),
            ("dense ready", state.dense_ready),
            ("sparse ready", state.sparse_ready),
        ];
        let lost = flags.into_iter().filter_map(|(name, flag)| flag.lost().then_some(Oracle::LostSignal(name)));
        let announced = state.dense_ready.given.min(state.sparse_ready.given);
        lost.chain(state.data.broken(announced)).collect()
    }

    /// It fails without.
    fn kills(&self, _: &State) -> Vec<(&'static str, State)> {
        Vec::new()
    }
}

#[test]
fn flags_of_0_and_1_get_stuck_lose_signals_and_tear_snapshots() {
    let report = explore(&Literal([learner(), table(), checkpointer()]), PARTIES);
    println!("{}", describe(&report));
    let broken: Vec<Oracle> = report.broken.keys().copied().collect();
    let expected = [
        Oracle::Stuck,
        // The two places: the table resets what the learner has raised for the next update, and the checkpointer what
        // the owners have raised for the next snapshot.
        Oracle::LostSignal("dense ready"),
        Oracle::LostSignal("sparse ready"),
        Oracle::LostSignal("updated"),
        Oracle::TornCopy,
        Oracle::MixedParts,
        Oracle::NoCompleteHalf,
        // Updates are safe for three iterations: two buffers suffice for what the flags let the learner run ahead.
    ];
    assert_eq!(broken, expected, "{}", describe(&report));
    for (oracle, trace) in &report.broken {
        if matches!(oracle, Oracle::LostSignal(_)) {
            assert!(trace.last().is_some_and(|step| step.contains("resets")), "{}", describe(&report));
        }
    }
}
