//! Progress of a run: a line that is redrawn on a terminal, occasional plain lines elsewhere.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::nodes::Node;
use crate::run::Segments;
use crate::settings::Settings;

/// Status of a run at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Status {
    pub updates: u64,
    pub samples: u64,
    /// Staleness of blocks in updates: mean and 95 % quantile.
    pub lag: f64,
    pub lag_p95: u64,
    /// J of the last and the best evaluation, minor units; NaN before the first one.
    pub last_j: f64,
    pub best_j: f64,
    pub last_share: f64,
    pub best_share: f64,
    pub evaluations: u64,
}

impl Status {
    /// Returns the status of the run that has these segments.
    pub fn of(segments: &Segments) -> Self {
        let (l, e) = (&segments.control.learner, &segments.control.evaluator);
        let lag = l.lag.read();
        Self {
            updates: l.updates.get(),
            samples: l.samples_consumed.get(),
            lag: lag.mean,
            lag_p95: lag.p95,
            last_j: e.last_benefit.get(),
            best_j: e.best_benefit.get(),
            last_share: e.last_share.get(),
            best_share: e.best_share.get(),
            evaluations: e.evaluations.get(),
        }
    }
}

/// Displays [`Status`]; on nodes other than the first it only computes rates.
pub struct Progress {
    shown: bool,
    bar: Option<ProgressBar>,
    started: Instant,
    last: (Instant, Status),
    next_line: Instant,
    batch: usize,
    max_updates: u64,
}

const LINE_EVERY: Duration = Duration::from_secs(10);
const COUNT_EVERY: Duration = Duration::from_millis(50);

impl Progress {
    /// Begins the display of a run that has reached `status`.
    pub fn new(settings: &Settings, node: Node, status: Status) -> Self {
        let now = Instant::now();
        let shown = node.is_first();
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = match settings.budget.max_updates {
                0 => ProgressBar::new_spinner(),
                n => ProgressBar::new(n),
            };
            bar.set_style(
                ProgressStyle::with_template("{elapsed_precise} {bar:24} {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self {
            shown,
            bar,
            started: now,
            last: (now, status),
            next_line: now + LINE_EVERY,
            batch: settings.learner.batch,
            max_updates: settings.budget.max_updates,
        }
    }

    /// Shows a newer status; returns samples/s and updates/s since the last one.
    pub fn show(&mut self, status: Status) -> (f64, f64) {
        let now = Instant::now();
        let (then, before) = self.last;
        let seconds = (now - then).as_secs_f64().max(1e-9);
        let samples = status.samples.saturating_sub(before.samples) as f64 / seconds;
        let updates = status.updates.saturating_sub(before.updates) as f64 / seconds;
        self.last = (now, status);
        let replay_ratio = status.updates as f64 * self.batch as f64 / (status.samples as f64).max(1.0);
        let mut line = format!("updates {}", status.updates);
        if self.max_updates > 0 {
            line += &format!("/{}", self.max_updates);
        }
        line += &format!(
            " ({updates:.0}/s)  samples {} ({:.0}k/s)  replay ratio {replay_ratio:.2}  lag {:.1} p95 {}",
            status.samples,
            samples / 1000.0,
            status.lag,
            status.lag_p95
        );
        if status.evaluations > 0 {
            line += &format!(
                "  J {:.0} best {:.0}  share {:.2} best {:.2}",
                status.last_j,
                status.best_j,
                100.0 * status.last_share,
                100.0 * status.best_share
            );
        }
        if let Some(bar) = &self.bar {
            bar.set_position(status.updates);
            bar.set_message(line);
        } else if self.shown && now >= self.next_line {
            self.next_line = now + LINE_EVERY;
            say!("{:>5.0}s  {line}", self.started.elapsed().as_secs_f64());
        }
        (samples, updates)
    }

    /// Clears the line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Runs `work` and meanwhile shows `count` out of at most `most`: a bar on a terminal, occasional lines elsewhere.
pub fn while_counting<T>(title: &str, unit: &str, count: &AtomicUsize, most: usize, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let show = || {
        let started = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(most as u64);
            let style = ProgressStyle::with_template("{elapsed_precise} {bar:24} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let mut next_line = started + LINE_EVERY;
        // Relaxed: the numbers are for display only; the result of `work` is synchronised by the end of the scope.
        while !over.load(Ordering::Relaxed) {
            let done = count.load(Ordering::Relaxed);
            let line = format!("{title}: {done} of at most {most} {unit}");
            if let Some(bar) = &bar {
                bar.set_position(done as u64);
                bar.set_message(line);
            } else if Instant::now() >= next_line {
                next_line += LINE_EVERY;
                say!("{:>5.0}s  {line}", started.elapsed().as_secs_f64());
            }
            std::thread::sleep(COUNT_EVERY);
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(show);
        let end = Ended(&over);
        let result = work();
        drop(end);
        result
    })
}

/// Ends the display when `work` has ended, even by a panic, because the scope waits for it.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first record of a run that was resumed had the rates of all samples ever, read within one second.
    #[test]
    fn rates_of_a_resumed_run_do_not_count_what_was_done_before() {
        let status = Status { updates: 5000, samples: 1 << 40, ..Status::default() };
        let mut progress = Progress::new(&Settings::default(), Node::default(), status);
        assert_eq!(progress.show(status), (0.0, 0.0));
        let (samples, updates) = progress.show(Status { updates: 5001, samples: (1 << 40) + 2, ..status });
        assert!(samples > 0.0 && (samples - 2.0 * updates).abs() < 1e-6 * samples, "{samples} {updates}");
        progress.finish();
    }
}
