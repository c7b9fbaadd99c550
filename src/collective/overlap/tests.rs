use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::*;

const DIM: usize = 5;
const RATE: f32 = 0.05;

/// The gradient of a rank at some parameters: noise of its own, a curvature, and a coupling that no order of sums hides.
fn gradient(rank: usize, period: u64, iteration: u64, w: &[f32]) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(rank as u64 * 1_000_003 + period * 1009 + iteration);
    (0..DIM).map(|i| w[i] * (0.3 + 0.1 * i as f32) + 0.2 * w[(i + 1) % DIM] + rng.random_range(-1.0f32..1.0)).collect()
}

fn step(w: &mut [f32], direction: &[f32]) {
    w.iter_mut().zip(direction).for_each(|(w, d)| *w -= RATE * d);
}

/// What the ranks see of each other: after how many iterations of everybody a gradient arrives; `None` = never.
type Arrives<'a> = &'a dyn Fn(usize, usize, u64, u64) -> Option<u64>;

struct World {
    ranks: usize,
    iterations: u64,
    quorum: usize,
}

/// Everything that a run leaves: parameters after each iteration of each rank, and the trace.
#[derive(Debug, PartialEq)]
struct Outcome {
    parameters: Vec<Vec<Vec<f32>>>,
    trace: Vec<Vec<Used>>,
}

impl World {
    /// Runs ranks side by side; gradient (rank, iteration) reaches `reader` when it is `arrives` iterations further.
    fn run(&self, periods: u64, arrives: Arrives<'_>) -> Outcome {
        let mut states: Vec<Overlap> = (0..self.ranks).map(|rank| Overlap::new(rank, self.iterations)).collect();
        let mut w = vec![vec![0.5; DIM]; self.ranks];
        let mut outcome = Outcome { parameters: vec![vec![]; self.ranks], trace: vec![vec![]; self.ranks] };
        for period in 0..periods {
            let mut pushed: Vec<Vec<Vec<f32>>> = vec![vec![]; self.ranks];
            for iteration in 0..self.iterations {
                for rank in 0..self.ranks {
                    pushed[rank].push(gradient(rank, period, iteration, &w[rank]));
                }
                for reader in 0..self.ranks {
                    let seen = |writer: usize| -> std::ops::Range<u64> {
                        let there = |j: u64| {
                            writer == reader
                                || arrives(reader, writer, period, j).is_some_and(|delay| j + delay <= iteration)
                        };
                        let first = (0..=iteration).find(|j| there(*j)).unwrap_or(0);
                        first..(0..=iteration).rev().find(|j| there(*j)).map_or(first, |j| j + 1)
                    };
                    let given: Vec<_> = (0..self.ranks).map(seen).collect();
                    let state = &mut states[reader];
                    let chosen = choose(&given, (reader, self.quorum), |j| state.may_use(period, j));
                    let global = chosen.map(|(j, ranks)| self.global(period, j, ranks, &pushed));
                    let mut direction = pushed[reader][iteration as usize].clone();
                    outcome.trace[reader].push(state.direction(&mut direction, global.as_ref()).unwrap());
                    step(&mut w[reader], &direction);
                    outcome.parameters[reader].push(w[reader].clone());
                }
            }
            self.end(&mut states, &mut w);
        }
        outcome
    }

    fn global(&self, period: u64, iteration: u64, ranks: u64, pushed: &[Vec<Vec<f32>>]) -> Global {
        let members = (0..self.ranks).filter(|rank| ranks >> rank & 1 == 1);
        let mean = mean(members.map(|rank| &pushed[rank][iteration as usize][..]));
        Global { period, iteration, ranks, mean }
    }

    fn end(&self, states: &mut [Overlap], w: &mut [Vec<f32>]) {
        assert!(states.iter().all(Overlap::period_ended));
        let mean = mean(w.iter().map(|w| &w[..]));
        w.fill(mean);
        states.iter_mut().for_each(Overlap::next_period);
    }

    /// Repeats a run from its trace alone, rank after rank.
    fn replay(&self, periods: u64, trace: &[Vec<Used>]) -> Outcome {
        let mut w = vec![vec![0.5; DIM]; self.ranks];
        let mut outcome = Outcome { parameters: vec![vec![]; self.ranks], trace: trace.to_vec() };
        for period in 0..periods {
            let mut pushed: Vec<Vec<Vec<f32>>> = vec![vec![]; self.ranks];
            // Gradients depend on what was used before, so iteration by iteration.
            for iteration in 0..self.iterations {
                for rank in 0..self.ranks {
                    pushed[rank].push(gradient(rank, period, iteration, &w[rank]));
                }
                for rank in 0..self.ranks {
                    let used = trace[rank][(period * self.iterations + iteration) as usize];
                    assert_eq!((used.period, used.iteration), (period, iteration));
                    let mut direction = pushed[rank][iteration as usize].clone();
                    if let Some((j, ranks)) = used.global {
                        let global = self.global(period, j, ranks, &pushed);
                        correct(&mut direction, &pushed[rank][j as usize], &global, rank);
                    }
                    step(&mut w[rank], &direction);
                    outcome.parameters[rank].push(w[rank].clone());
                }
            }
            let mean = mean(w.iter().map(|w| &w[..]));
            w.fill(mean);
        }
        outcome
    }
}

/// Returns the first error of a trace: a gradient used twice, an older one after a newer, one from the future or another period.
fn wrong(trace: &[Used]) -> Option<String> {
    let mut used: Option<(u64, u64)> = None;
    for record in trace {
        if let Some((j, _)) = record.global {
            if j > record.iteration {
                return Some(format!("{j} used early, in {}", record.iteration));
            }
            if used.is_some_and(|(period, before)| period == record.period && j <= before) {
                return Some(format!("{j} used again"));
            }
            used = Some((record.period, j));
        }
    }
    None
}

#[test]
fn one_rank_is_plain_sgd_at_any_delay() {
    for delay in 0..4 {
        let world = World { ranks: 1, iterations: 6, quorum: 1 };
        // The own gradient is always there, so its delay is what `choose` is offered.
        let mut state = Overlap::new(0, 6);
        let (mut w, mut plain) = (vec![0.5; DIM], vec![0.5; DIM]);
        let mut given = Vec::new();
        for iteration in 0..6u64 {
            let own = gradient(0, 0, iteration, &w);
            given.push(own.clone());
            let global = iteration.checked_sub(delay).map(|j| Global {
                period: 0,
                iteration: j,
                ranks: 1,
                mean: mean([&given[j as usize][..]]),
            });
            let mut direction = own;
            state.direction(&mut direction, global.as_ref()).unwrap();
            step(&mut w, &direction);
            let own = gradient(0, 0, iteration, &plain);
            step(&mut plain, &own);
            assert_eq!(w, plain, "delay {delay}, iteration {iteration}");
        }
        assert_eq!(world.run(2, &|_, _, _, _| Some(0)), world.run(2, &|_, _, _, _| None));
    }
}

#[test]
fn without_delay_every_step_is_along_the_mean() {
    let world = World { ranks: 4, iterations: 5, quorum: 4 };
    let outcome = world.run(2, &|_, _, _, _| Some(0));
    let mut w = vec![0.5f32; DIM];
    for i in 0..10u64 {
        let gradients: Vec<_> = (0..4).map(|rank| gradient(rank, i / 5, i % 5, &w)).collect();
        step(&mut w, &mean(gradients.iter().map(|g| &g[..])));
        for of_rank in &outcome.parameters {
            let found = &of_rank[i as usize];
            assert!(found.iter().zip(&w).all(|(a, b)| (a - b).abs() < 1e-5), "iteration {i}: {found:?} {w:?}");
        }
    }
}

#[test]
fn if_nothing_arrives_it_is_local_sgd_with_a_mean_at_the_end_of_each_period() {
    let world = World { ranks: 3, iterations: 4, quorum: 2 };
    let outcome = world.run(3, &|_, _, _, _| None);
    let mut w = vec![vec![0.5f32; DIM]; 3];
    for i in 0..12u64 {
        for (rank, w) in w.iter_mut().enumerate() {
            let own = gradient(rank, i / 4, i % 4, w);
            step(w, &own);
            assert_eq!(outcome.parameters[rank][i as usize], *w);
        }
        if i % 4 == 3 {
            let mean = mean(w.iter().map(|w| &w[..]));
            w.fill(mean);
        }
    }
    assert!(outcome.trace.iter().flatten().all(|used| used.global.is_none()));
}

/// With integer data and no curvature a gradient that counted twice, or not at all, would show in the sum.
#[test]
fn after_everything_has_arrived_every_gradient_counts_once() {
    let own = |rank: usize, i: u64| vec![((rank as i32 * 7 + i as i32 * 3) % 11 - 5) as f32 * 16.0; DIM];
    let (ranks, iterations) = (4usize, 6u64);
    for rank in 0..ranks {
        let mut state = Overlap::new(rank, iterations + 1);
        let mut sum = vec![0.0f32; DIM];
        for i in 0..=iterations {
            let mut direction = if i < iterations { own(rank, i) } else { vec![0.0; DIM] };
            let all: Vec<_> = (0..ranks).map(|rank| own(rank, i.saturating_sub(1))).collect();
            let global = i.checked_sub(1).map(|j| Global {
                period: 0,
                iteration: j,
                ranks: 0b1111,
                mean: mean(all.iter().map(|g| &g[..])),
            });
            state.direction(&mut direction, global.as_ref()).unwrap();
            sum.iter_mut().zip(&direction).for_each(|(sum, d)| *sum += d);
        }
        let expected: f32 = (0..iterations).map(|i| (0..ranks).map(|rank| own(rank, i)[0]).sum::<f32>() / 4.0).sum();
        assert_eq!(sum, vec![expected; DIM]);
    }
}

/// The own gradient alone was a quorum of one in every iteration, and what came later from slower ranks was never used.
#[test]
fn with_a_quorum_of_one_each_gradient_of_a_slow_rank_is_used_once() {
    let world = World { ranks: 2, iterations: 8, quorum: 1 };
    // What the second rank gives comes three iterations late; what the first one gives is there at once.
    let outcome = world.run(2, &|reader, _, _, _| Some(if reader == 0 { 3 } else { 0 }));
    for (trace, late) in outcome.trace.iter().zip([3, 0]) {
        let used: Vec<_> = trace.iter().map(|used| used.global).collect();
        let expected: Vec<_> = (0..16u64).map(|i| (i % 8).checked_sub(late).map(|j| (j, 0b11))).collect();
        assert_eq!(used, expected);
    }
    assert_eq!(world.replay(2, &outcome.trace), outcome);
}

#[test]
fn a_mean_without_the_own_gradient_is_taken_with_it() {
    let mut state = Overlap::new(2, 3);
    let mut direction = vec![6.0; DIM];
    let global = Global { period: 0, iteration: 0, ranks: 0b011, mean: vec![3.0; DIM] };
    state.direction(&mut direction, Some(&global)).unwrap();
    // (3 + 3 + 6) / 3.
    assert_eq!(direction, vec![4.0; DIM]);
}

#[test]
fn what_may_not_be_used_is_refused_and_changes_nothing() {
    let global = |period, iteration| Global { period, iteration, ranks: 1, mean: vec![1.0; DIM] };
    let mut state = Overlap::new(0, 3);
    let try_it = |state: &mut Overlap, g: Option<&Global>| state.direction(&mut [2.0; DIM], g);
    assert_eq!(try_it(&mut state, Some(&global(0, 1))), Err(Misuse::Future { iteration: 1, now: 0 }));
    try_it(&mut state, Some(&global(0, 0))).unwrap();
    assert_eq!(try_it(&mut state, Some(&global(0, 0))), Err(Misuse::UsedBefore { iteration: 0, used: 0 }));
    try_it(&mut state, None).unwrap();
    try_it(&mut state, Some(&global(0, 2))).unwrap();
    assert_eq!(try_it(&mut state, None), Err(Misuse::PeriodEnded { iterations: 3 }));
    state.next_period();
    assert_eq!(try_it(&mut state, Some(&global(0, 0))), Err(Misuse::OtherPeriod { period: 0, now: 1 }));
    assert_eq!(state.position(), (1, 0));
}

#[test]
fn planted_bugs_are_found() {
    let world = World { ranks: 3, iterations: 6, quorum: 2 };
    let good = world.run(2, &|reader, writer, _, _| Some(1 + (reader + writer) as u64 % 3));
    assert!(good.trace.iter().all(|trace| wrong(trace).is_none()));
    assert_eq!(world.replay(2, &good.trace), good);
    let at = good.trace[1].iter().rposition(|used| used.global.is_some()).unwrap();
    let before = good.trace[1][..at].iter().rposition(|used| used.global.is_some()).unwrap();
    let mut again = good.trace.clone();
    again[1][at].global = again[1][before].global;
    assert!(wrong(&again[1]).is_some(), "reuse of a gradient");
    assert_ne!(world.replay(2, &again).parameters, good.parameters);
    let mut early = good.trace.clone();
    early[1][at].global = Some((early[1][at].iteration + 1, 0b111));
    assert!(wrong(&early[1]).is_some(), "an early read");
    // A rank that was not among those averaged: the divisor is wrong.
    let mut fewer = good.trace.clone();
    let (j, ranks) = fewer[1][at].global.unwrap();
    fewer[1][at].global = Some((j, ranks ^ (1 << 2)));
    assert_ne!(world.replay(2, &fewer).parameters, good.parameters);
    // A run whose mean at the end of the period is left out.
    let endless = World { iterations: 12, ..world };
    assert_ne!(endless.replay(1, &good.trace.iter().map(|trace| renumbered(trace)).collect::<Vec<_>>()), good);
}

/// The trace of two periods as if they were one.
fn renumbered(trace: &[Used]) -> Vec<Used> {
    trace
        .iter()
        .map(|used| Used {
            period: 0,
            iteration: used.period * 6 + used.iteration,
            global: used.global.map(|(j, ranks)| (used.period * 6 + j, ranks)),
        })
        .collect()
}

proptest! {
    /// Any delays, any quorum: each gradient is used at most once, the newest first, and the trace replays to the same bits.
    #[test]
    fn a_serial_replay_of_the_trace_is_bit_identical(
        ranks in 1usize..6, iterations in 1u64..9, quorum in 1usize..6, seed in any::<u64>(),
    ) {
        let world = World { ranks, iterations, quorum: quorum.min(ranks) };
        let delay = |reader: usize, writer: usize, period: u64, iteration: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(
                seed ^ (reader as u64) << 48 ^ (writer as u64) << 40 ^ period << 20 ^ iteration);
            (rng.random_range(0..8u32) > 0).then(|| rng.random_range(0..6u64))
        };
        let outcome = world.run(3, &delay);
        for (rank, trace) in outcome.trace.iter().enumerate() {
            prop_assert_eq!(wrong(trace), None);
            let is_alone = |used: &Used| used.global.is_some_and(|(_, members)| members == 1 << rank);
            prop_assert!(ranks == 1 || !trace.iter().any(is_alone));
        }
        prop_assert_eq!(world.replay(3, &outcome.trace), outcome);
    }

    #[test]
    fn the_newest_with_a_quorum_is_chosen(
        given in prop::collection::vec((0u64..5, 0u64..6), 1..6), quorum in 1usize..5, after in 0u64..4,
        own in 0usize..6,
    ) {
        let given: Vec<_> = given.into_iter().map(|(first, len)| first..first + len).collect();
        let own = own % given.len();
        let holders = |j: u64| (0..given.len()).filter(|rank| given[*rank].contains(&j)).collect::<Vec<_>>();
        let is_enough = |held: &[usize]| held.len() >= quorum && (given.len() == 1 || held != [own]);
        let expected = (after..20).rev().find(|j| is_enough(&holders(*j)));
        let chosen = choose(&given, (own, quorum), |j| j >= after);
        prop_assert_eq!(chosen.map(|(j, _)| j), expected);
        if let Some((j, ranks)) = chosen {
            prop_assert!(given.iter().enumerate().all(|(rank, range)| range.contains(&j) == (ranks >> rank & 1 == 1)));
        }
    }
}
