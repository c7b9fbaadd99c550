//! Every interleaving of a few parties' steps, breadth first.
//!
//! A party is a list of steps, each of them atomic; memory is sequentially consistent. States are kept in the order in
//! which they are found, so the first one that breaks an oracle ends a shortest trace to it, and two runs find the same.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// What a step does to the party that takes it.
pub enum Move<O> {
    /// It goes on to its next step.
    Next,
    /// It cannot yet, and has changed nothing.
    Wait,
    /// It goes so many steps back, to look again.
    Back(usize),
    /// It goes on, but has just broken an oracle.
    Broken(O),
}

type Act<S, O> = Box<dyn Fn(&mut S) -> Move<O>>;

pub struct Step<S, O> {
    name: String,
    act: Act<S, O>,
}

/// The steps of one party, being written down.
pub struct Program<S, O>(Vec<Step<S, O>>);

impl<S, O> Program<S, O> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn step(&mut self, name: impl Into<String>, act: impl Fn(&mut S) -> Move<O> + 'static) {
        self.0.push(Step { name: name.into(), act: Box::new(act) });
    }

    /// A step that never waits.
    pub fn act(&mut self, name: impl Into<String>, act: impl Fn(&mut S) + 'static) {
        self.step(name, move |state| {
            act(state);
            Move::Next
        });
    }

    /// Waits until `ready`.
    pub fn wait(&mut self, name: impl Into<String>, ready: impl Fn(&S) -> bool + 'static) {
        self.step(name, move |state| if ready(state) { Move::Next } else { Move::Wait });
    }
}

/// Parties over a shared state `S`, and what may never happen to it.
pub trait Protocol {
    type State: Clone + Eq + Hash;
    type Oracle: Copy + Ord;

    fn start(&self) -> Self::State;

    /// The program that party `party` follows in a state, and which step of it comes next.
    fn at(&self, state: &Self::State, party: usize) -> (&Program<Self::State, Self::Oracle>, usize);

    fn set_next(&self, state: &mut Self::State, party: usize, step: usize);

    /// What the state itself breaks.
    fn broken(&self, state: &Self::State) -> Vec<Self::Oracle>;

    /// Broken by a state in which some party has steps left and none can take one.
    const STUCK: Self::Oracle;

    /// What may happen to the parties from outside: a name for it and the state after it.
    fn kills(&self, state: &Self::State) -> Vec<(&'static str, Self::State)>;
}

/// What was found.
pub struct Report<O> {
    pub states: usize,
    /// A shortest trace to each oracle that is broken somewhere.
    pub broken: BTreeMap<O, Vec<String>>,
}

/// Visits every state that `parties` parties can reach.
pub fn explore<P: Protocol>(protocol: &P, parties: usize) -> Report<P::Oracle> {
    // Each state with the one that it was found from and what happened in between.
    let mut states: Vec<(P::State, usize, String)> = vec![(protocol.start(), 0, String::new())];
    let mut known: HashMap<P::State, usize> = HashMap::from([(protocol.start(), 0)]);
    let mut broken: BTreeMap<P::Oracle, (usize, String)> = BTreeMap::new();
    let mut next = 0;
    while next < states.len() {
        let state = states[next].0.clone();
        for oracle in protocol.broken(&state) {
            broken.entry(oracle).or_insert((next, String::new()));
        }
        let (mut moves, mut left) = (Vec::new(), false);
        for party in 0..parties {
            let (program, at) = protocol.at(&state, party);
            let Some(step) = program.0.get(at) else { continue };
            left = true;
            let mut after = state.clone();
            let to = match (step.act)(&mut after) {
                Move::Wait => continue,
                Move::Next => at + 1,
                Move::Back(steps) => at - steps,
                Move::Broken(oracle) => {
                    broken.entry(oracle).or_insert((next, step.name.clone()));
                    at + 1
                }
            };
            protocol.set_next(&mut after, party, to);
            moves.push((after, step.name.clone()));
        }
        if left && moves.is_empty() {
            broken.entry(P::STUCK).or_insert((next, String::new()));
        }
        moves.extend(protocol.kills(&state).into_iter().map(|(name, after)| (after, name.into())));
        for (after, name) in moves {
            if !known.contains_key(&after) {
                known.insert(after.clone(), states.len());
                states.push((after, next, name));
            }
        }
        next += 1;
    }
    let trace = |(mut at, last): (usize, String)| {
        let mut steps: Vec<String> = Some(last).filter(|last| !last.is_empty()).into_iter().collect();
        while at > 0 {
            steps.push(states[at].2.clone());
            at = states[at].1;
        }
        steps.reverse();
        steps
    };
    let broken = broken.into_iter().map(|(oracle, found)| (oracle, trace(found))).collect();
    Report { states: states.len(), broken }
}
