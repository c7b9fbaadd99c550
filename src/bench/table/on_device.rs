//! Updates with network and rows on GPUs: with all rows there, with a cache of them, and each with nothing fetched ahead.

use std::fmt;
use std::sync::Arc;

use crate::gpu;
use crate::rank::device::{self, DeviceShape, Opened, TooManyRows};
use crate::rank::store::Store;
use crate::settings::ValueSettings;
use crate::sparse::{Counters, HostTable, TableShape};
use crate::values::Block;

use super::shape::{TableBench, device_shape, table_shape};
use super::speed::{Speed, Spread, Warm, on_row_thread};

/// Speeds with network and rows on GPUs.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OnDevice {
    /// The GPUs hold all rows; `None` where a cache is asked for and all rows do not fit.
    pub all_rows: Option<Forms>,
    /// They hold `cache_rows` of them.
    pub cached: Option<Forms>,
    /// The step with the cache over the step with all rows, in the same round.
    pub cached_over_all: Option<Spread>,
    /// Share of the transfers' time that fetching ahead hides: 1 - A / B. A is what a cache adds to a step with all rows if both fetch
    /// ahead, B what it adds if neither does.
    pub hidden: Option<Spread>,
    /// Of the form that was measured last, its first updates included.
    pub counters: Option<Counters>,
}

/// The same rows on the GPUs, used in two ways.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Forms {
    pub ahead: Speed,
    /// With nothing fetched ahead; measured where there is a cache.
    pub nothing_ahead: Option<Speed>,
}

impl fmt::Display for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, forms) in [("all rows", self.all_rows), ("a cache", self.cached)] {
            let Some(forms) = forms else { continue };
            for (how, speed) in [("", Some(forms.ahead)), (", nothing fetched ahead", forms.nothing_ahead)] {
                let Some(speed) = speed else { continue };
                write!(
                    f,
                    "\non the GPU, {name}{how}: {:.2} ms a step, {:.0} samples/s; waits for rows {:.3} of the time",
                    speed.step_ms, speed.samples_per_s, speed.waited
                )?;
            }
        }
        if let Some(Spread { least, median, most }) = self.cached_over_all {
            write!(
                f,
                "\na step with the cache over one with all rows on the GPU: {median:.3} ({least:.3}..{most:.3})"
            )?;
        }
        if let Some(Spread { least, median, most }) = self.hidden {
            write!(f, "\nof what transfers add to a step, fetching ahead hides {median:.3} ({least:.3}..{most:.3})")?;
        }
        if let Some(counters) = self.counters {
            let Counters { hits, misses, bytes_up, bytes_down, .. } = counters;
            let [up, down] = [bytes_up, bytes_down].map(|bytes| bytes as f64 * 1e-9);
            write!(f, "\nrows on the GPU already: {hits}; fetched: {misses}; {up:.2} GB up, {down:.2} GB down")?;
        }
        Ok(())
    }
}

/// Measures updates on the GPUs from number `first` on. Every batch comes once before the clock starts, so that the GPUs have then what
/// they can hold of the rows.
///
/// # Errors
/// A GPU that does not work, or a cache smaller than a batch; all rows that do not fit, where no cache is asked for.
pub fn measure(
    bench: &TableBench,
    first: usize,
    mut table: HostTable,
    blocks: &[Arc<Block>],
) -> anyhow::Result<OnDevice> {
    let indices = gpu::device::from(first, bench.devices);
    let open = |rows: usize| -> anyhow::Result<Opened> {
        device::open_cuda(&indices, &DeviceShape { rows, ..device_shape(bench, table_shape(bench)) })
    };
    let (mut all, mut cached, mut counters) = (Rounds::default(), Rounds::default(), None);
    let has_cache = bench.cache_rows > 0;
    let rounds = if has_cache { bench.rounds } else { 1 };
    for _ in 0..rounds {
        for (rows, is_cache, of) in [(bench.rows, false, &mut all), (bench.cache_rows, true, &mut cached)] {
            if rows == 0 {
                continue;
            }
            for nothing_ahead in [false, true] {
                if nothing_ahead && !has_cache {
                    continue;
                }
                let opened = match open(rows) {
                    Ok(opened) => opened,
                    Err(e) if has_cache && !is_cache && e.is::<TooManyRows>() => {
                        tracing::warn!("not measured with all rows on the GPU: {e}");
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                let (ahead, speeds) = match nothing_ahead {
                    true => (0, &mut of.nothing_ahead),
                    false => (bench.prefetch, &mut of.ahead),
                };
                let speed;
                (speed, counters, table) = one(bench, table_shape(bench), table, opened, blocks, ahead)?;
                speeds.push(speed);
            }
        }
    }
    let step = |speed: &Speed| speed.step_ms;
    let ratio = |ahead: &[Speed], beside: &[Speed]| {
        let ratios: Vec<f64> = ahead.iter().map(step).zip(beside.iter().map(step)).map(|(a, b)| a / b).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios))
    };
    let hidden = cached.added(&all, |of| &of.ahead).zip(cached.added(&all, |of| &of.nothing_ahead));
    let hidden: Vec<f64> = hidden.map(|(with, without)| 1.0 - with / without).collect();
    Ok(OnDevice {
        cached_over_all: ratio(&cached.ahead, &all.ahead),
        hidden: (!hidden.is_empty()).then(|| Spread::of(hidden)),
        all_rows: all.forms(),
        cached: cached.forms(),
        counters,
    })
}

/// The speeds of all rounds.
#[derive(Default)]
struct Rounds {
    ahead: Vec<Speed>,
    nothing_ahead: Vec<Speed>,
}

impl Rounds {
    fn forms(self) -> Option<Forms> {
        let median = |rounds: Vec<Speed>| (!rounds.is_empty()).then(|| Speed::median(rounds));
        Some(Forms { ahead: median(self.ahead)?, nothing_ahead: median(self.nothing_ahead) })
    }

    /// By how much a step is longer than with all rows on the GPU, round by round.
    fn added<'a>(&'a self, all: &'a Self, which: impl Fn(&'a Self) -> &'a Vec<Speed>) -> impl Iterator<Item = f64> {
        let steps = which(self).iter().zip(which(all));
        steps.map(|(cached, all)| cached.step_ms - all.step_ms)
    }
}

/// As training does it on a GPU.
fn one(
    bench: &TableBench,
    shape: TableShape,
    table: HostTable,
    (memory, dense): Opened,
    blocks: &[Arc<Block>],
    ahead: usize,
) -> anyhow::Result<(Speed, Option<Counters>, HostTable)> {
    let store = Store::on_device(table, &ValueSettings::default(), memory);
    let (speed, store) = on_row_thread(bench, shape, (store, Some(dense)), blocks, (ahead, Warm::EveryBatch))?;
    // What only the GPU has changed is dropped: the next form does not need it.
    Ok((speed, store.counters(), store.into_table()))
}
