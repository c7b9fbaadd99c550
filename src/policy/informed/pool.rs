//! Typical requests of the world; each future holds a part of them.
//!
//! An even sample would contain only a handful of requests of a narrow contract, and its price would depend on chance. So
//! requests of narrow contracts are held more often and weigh less.

use std::collections::HashMap;
use std::fmt;

use anyhow::Result;

use crate::env::KnownDay;
use crate::log::draw;
use crate::synth::{Truth, Typical};

/// Number of requests drawn from the world.
const DRAWN: usize = 24_000;
/// Expected number that a future holds of all requests, and of each contract's at least.
const EVENLY: f64 = 5000.0;
const OF_EACH: f64 = 250.0;
/// Differs from any seed in use for a world.
const SEED: u64 = 0x1F0A_3ED0_0000_0001;

/// A world as the reference knows it, built once for all of its days.
pub struct Known {
    pub truth: Truth,
    typical: Vec<Typical>,
    /// Mean price residual by number of auction ads; the last entry also stands for higher numbers.
    base: Vec<f64>,
    /// Variance of one request's residual.
    pub noise: f64,
    /// Expected requests of a mean day by half hour.
    pub by_bin: [f64; 48],
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("world", self.truth.settings()).finish_non_exhaustive()
    }
}

impl Known {
    /// # Errors
    /// If the world is degenerate.
    pub fn of(truth: Truth) -> Result<Self> {
        let typical = truth.typical(DRAWN, SEED)?;
        let most = typical.iter().map(|t| t.auctions).max().unwrap_or(0);
        let (mut sums, mut counts) = (vec![0.0; most + 1], vec![0.0; most + 1]);
        for t in typical.iter().filter(|t| t.best > 0.0) {
            sums[t.auctions] += t.best.ln() - t.usual;
            counts[t.auctions] += 1.0;
        }
        let base: Vec<f64> = sums.iter().zip(&counts).map(|(s, n): (&f64, &f64)| s / n.max(1.0)).collect();
        let (mut squares, mut n) = (0.0, 0.0);
        for t in typical.iter().filter(|t| t.best > 0.0) {
            squares += (t.best.ln() - t.usual - base[t.auctions]).powi(2);
            n += 1.0;
        }
        let expected = truth.expected();
        let by_bin = std::array::from_fn(|bin| expected.iter().map(|region| region[bin]).sum());
        Ok(Self { truth, typical, base, noise: squares / f64::max(n, 1.0), by_bin })
    }

    /// Returns the log of a request's best auction worth over its usual value; `None` if the request has none.
    pub fn residual(&self, kind: (u32, u32, u8, u8), ms: u64, best: f64, auctions: usize) -> Option<f64> {
        let usual = self.truth.usual(kind, ms).filter(|_| best > 0.0)?;
        Some(best.ln() - usual - self.base[auctions.min(self.base.len() - 1)])
    }
}

/// A typical request with the day's contracts.
pub struct Row {
    pub ms: u64,
    /// From 0.
    pub region: usize,
    pub best: f64,
    /// Range within [`Pool::entries`].
    pub entries: std::ops::Range<usize>,
    /// Probability that a future holds it.
    held: f64,
    /// Number of a mean day's requests that it stands for in a future that holds it.
    pub weight: f64,
}

/// The world's typical requests with the contracts of one day, in time order.
#[derive(Default)]
pub struct Pool {
    pub rows: Vec<Row>,
    /// Contract, and worth of the predicted click.
    pub entries: Vec<(u32, f64)>,
}

impl Pool {
    pub fn of(known: &Known, day: &KnownDay) -> Self {
        let index: HashMap<u64, u32> = day.contracts.iter().zip(0..).map(|(c, j)| (c.ad_id, j)).collect();
        let mut pool = Self::default();
        let mut present = vec![0.0; day.contracts.len()];
        for (i, t) in (0u64..).zip(&known.typical) {
            let from = pool.entries.len();
            for (id, pctr) in &t.contracts {
                let Some(&j) = index.get(id) else { continue };
                let c = &day.contracts[j as usize];
                if (c.start..c.end).contains(&t.ms) && draw::passes(SEED, i, *id, c.rate) {
                    pool.entries.push((j, c.click_value * pctr));
                    present[j as usize] += 1.0;
                }
            }
            let entries = from..pool.entries.len();
            let region = t.region as usize - 1;
            pool.rows.push(Row { ms: t.ms, region, best: t.best, entries, held: 1.0, weight: 1.0 });
        }
        let drawn = pool.rows.len() as f64;
        let each = f64::from(known.truth.settings().requests) / drawn;
        for row in &mut pool.rows {
            let wanted = pool.entries[row.entries.clone()].iter().map(|&(j, _)| OF_EACH / present[j as usize]);
            row.held = (EVENLY / drawn + wanted.fold(0.0, f64::max)).min(1.0);
            row.weight = each / row.held;
        }
        pool
    }

    /// Returns the rows that future `k` holds.
    pub fn held(&self, k: u64) -> Vec<u32> {
        let rows = (0u32..).zip(&self.rows);
        rows.filter(|(i, row)| draw::passes(SEED ^ k, u64::from(*i), k, row.held)).map(|(i, _)| i).collect()
    }
}
