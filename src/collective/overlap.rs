//! The overlapped mode: ranks that never wait for each other within a period.
//!
//! In iteration i of a period a rank computes its gradient g(i) at its own parameters and moves along
//!
//! ```text
//! d(i) = g(i) + n / (n + 1 - c) (G(j) - g(j))
//! ```
//!
//! where G(j) is the newest global gradient that has arrived and was not used before: the mean of the gradients of iteration j of n
//! ranks; c is 1 where this rank's own gradient g(j) is among them, else 0. The rank had moved along g(j) in iteration j; the second
//! term takes that back and moves along the mean over those n ranks and itself, so that no gradient counts twice and its own is never
//! lost. Without a global gradient d(i) = g(i). Where there are several ranks, this one's gradient alone is no global one: it would correct
//! nothing, and late gradients of the others could not be used after it.
//!
//! What this comes to with plain SGD: with one rank G(j) = g(j), and every step is a step of SGD, at any delay. Without delay, j = i
//! and n = R, and every step is along the mean. If nothing ever arrives it is local SGD. After iteration K of a period nothing is
//! computed: the mean of all ranks' parameters begins the next one, in which no older global gradient is used.
//!
//! The state machine is pure: who pushes and pulls, and when, is its caller's business, so that a trace of what was used can be
//! replayed.

use std::collections::VecDeque;

/// A global gradient: the mean of the gradients of one iteration over some ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Global {
    /// Period and iteration within it, both from 0.
    pub period: u64,
    pub iteration: u64,
    /// Bit r is set where rank r's gradient is in it.
    pub ranks: u64,
    pub mean: Vec<f32>,
}

/// What a rank used in an iteration; a record of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Used {
    pub period: u64,
    pub iteration: u64,
    /// Iteration and ranks of the global gradient.
    pub global: Option<(u64, u64)>,
}

/// A global gradient that may not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    #[error("a global gradient of period {period} in period {now}")]
    OtherPeriod { period: u64, now: u64 },
    #[error("the global gradient of iteration {iteration} is not newer than that of {used}, which was used")]
    UsedBefore { iteration: u64, used: u64 },
    #[error("a global gradient of iteration {iteration} in iteration {now}")]
    Future { iteration: u64, now: u64 },
    #[error("a global gradient of iteration {iteration}, where own ones are kept from {oldest} on")]
    TooLate { iteration: u64, oldest: u64 },
    #[error("the period has ended after {iterations} iterations")]
    PeriodEnded { iterations: u64 },
}

/// Own gradients that wait for a global one, at most: older global gradients come too late.
const WAITING: usize = 64;

/// Where a rank stands in its period.
#[derive(Debug, Clone)]
pub struct Overlap {
    rank: usize,
    iterations: u64,
    period: u64,
    /// The iteration that comes next.
    next: u64,
    /// The newest iteration of this period whose global gradient was used.
    used: Option<u64>,
    /// Own gradients of this period that a global gradient may still come for, oldest first.
    own: VecDeque<(u64, Vec<f32>)>,
}

impl Overlap {
    /// A rank at the beginning of the first period of `iterations` iterations.
    ///
    /// # Panics
    /// Without iterations.
    pub fn new(rank: usize, iterations: u64) -> Self {
        assert!(iterations > 0);
        Self { rank, iterations, period: 0, next: 0, used: None, own: VecDeque::new() }
    }

    /// Period and iteration that come next.
    pub fn position(&self) -> (u64, u64) {
        (self.period, self.next)
    }

    /// Whether nothing more is computed in this period.
    pub fn period_ended(&self) -> bool {
        self.next == self.iterations
    }

    /// Whether a global gradient of this period and iteration may be used in the iteration that comes next, or in the one whose own
    /// gradient is at hand.
    pub fn may_use(&self, period: u64, iteration: u64) -> bool {
        period == self.period
            && (self.oldest()..=self.next).contains(&iteration)
            && self.used.is_none_or(|used| iteration > used)
    }

    /// The oldest iteration whose own gradient is there, or comes next.
    fn oldest(&self) -> u64 {
        self.own.front().map_or(self.next, |(iteration, _)| *iteration)
    }

    /// Ends iteration i: takes its own gradient, and turns it into the direction to move along, using `global` if there is one.
    ///
    /// # Errors
    /// [`Misuse`]; nothing has changed then.
    ///
    /// # Panics
    /// When the gradients differ in length.
    pub fn direction(&mut self, gradient: &mut [f32], global: Option<&Global>) -> Result<Used, Misuse> {
        let now = self.next;
        if self.period_ended() {
            return Err(Misuse::PeriodEnded { iterations: self.iterations });
        }
        if let Some(global) = global {
            self.check(global)?;
        }
        if self.own.len() == WAITING && global.is_none() {
            self.own.pop_front();
        }
        self.own.push_back((now, gradient.to_vec()));
        if let Some(global) = global {
            while self.own.front().is_some_and(|(iteration, _)| *iteration < global.iteration) {
                self.own.pop_front();
            }
            let (_, own) = self.own.pop_front().expect("own gradients since the last that was used");
            correct(gradient, &own, global, self.rank);
            self.used = Some(global.iteration);
        }
        self.next += 1;
        Ok(Used { period: self.period, iteration: now, global: global.map(|g| (g.iteration, g.ranks)) })
    }

    fn check(&self, global: &Global) -> Result<(), Misuse> {
        let &Global { period, iteration, .. } = global;
        if period != self.period {
            return Err(Misuse::OtherPeriod { period, now: self.period });
        }
        if iteration > self.next {
            return Err(Misuse::Future { iteration, now: self.next });
        }
        match self.used {
            Some(used) if iteration <= used => Err(Misuse::UsedBefore { iteration, used }),
            _ if iteration < self.oldest() => Err(Misuse::TooLate { iteration, oldest: self.oldest() }),
            _ => Ok(()),
        }
    }

    /// Begins the next period; own and global gradients of this one are forgotten.
    pub fn next_period(&mut self) {
        self.period += 1;
        self.next = 0;
        self.used = None;
        self.own.clear();
    }
}

/// Adds to `gradient` what makes the step along `own` a step along the mean.
fn correct(gradient: &mut [f32], own: &[f32], global: &Global, rank: usize) {
    assert!(gradient.len() == own.len() && own.len() == global.mean.len());
    let n = global.ranks.count_ones() as f32;
    let among = if global.ranks >> rank & 1 == 1 { 1.0 } else { 0.0 };
    let share = n / (n + 1.0 - among);
    for ((g, own), mean) in gradient.iter_mut().zip(own).zip(&global.mean) {
        let correction = mean - own;
        // Nothing to correct: the same bits as without.
        if correction != 0.0 {
            *g += share * correction;
        }
    }
}

/// The mean of the gradients of `ranks`, in their order.
pub fn mean<'a>(gradients: impl IntoIterator<Item = &'a [f32]>) -> Vec<f32> {
    let mut gradients = gradients.into_iter();
    let mut sum = gradients.next().map(<[f32]>::to_vec).unwrap_or_default();
    let mut count = 1.0f32;
    for gradient in gradients {
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        count += 1.0;
    }
    if count > 1.0 {
        sum.iter_mut().for_each(|sum| *sum /= count);
    }
    sum
}

/// The newest iteration of which at least `quorum` ranks have given their gradient, and these ranks; `given` tells of each rank which
/// iterations of the period are there, as a range. Where there are several ranks, one of them is another than `rank`.
pub fn choose(
    given: &[std::ops::Range<u64>],
    (rank, quorum): (usize, usize),
    allowed: impl Fn(u64) -> bool,
) -> Option<(u64, u64)> {
    let alone = if given.len() > 1 { 1u64 << rank } else { 0 };
    let newest = given.iter().map(|range| range.end).max()?;
    let oldest = given.iter().map(|range| range.start).min()?;
    (oldest..newest).rev().find_map(|iteration| {
        let holders = given.iter().enumerate().filter(|(_, range)| range.contains(&iteration));
        let ranks = holders.fold(0u64, |ranks, (rank, _)| ranks | 1 << rank);
        let enough = ranks.count_ones() as usize >= quorum.max(1) && ranks != alone;
        (enough && allowed(iteration)).then_some((iteration, ranks))
    })
}

#[cfg(test)]
mod tests;
