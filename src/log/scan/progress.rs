//! Logs the progress of a long pass: rows, rate, time left.

use std::time::{Duration, Instant};

/// Shorter passes log nothing.
const QUIET: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(10);

pub struct Progress {
    what: String,
    /// Amount to be read, and amount read so far, in bytes or rows.
    whole: u64,
    read: u64,
    rows: u64,
    began: Instant,
    told: Option<Instant>,
}

impl Progress {
    /// Begins a pass over `whole` bytes or rows; `what` begins each message.
    pub fn new(what: String, whole: u64) -> Self {
        Self { what, whole, read: 0, rows: 0, began: Instant::now(), told: None }
    }

    pub fn add(&mut self, rows: u64, read: u64) {
        self.rows += rows;
        self.read += read;
        let now = Instant::now();
        let (since, least) = self.told.map_or((self.began, QUIET), |told| (told, EVERY));
        if now - since < least {
            return;
        }
        self.told = Some(now);
        let seconds = (now - self.began).as_secs_f64();
        let rate = self.rows as f64 / seconds;
        let left = if self.read > 0 && self.read < self.whole {
            let share = self.read as f64 / self.whole as f64;
            format!(", {:.0} % read, about {:.0} s left", 100.0 * share, seconds * (1.0 - share) / share)
        } else {
            String::new()
        };
        tracing::info!("{}: {:.1} M rows, {:.0} k rows/s{left}", self.what, self.rows as f64 / 1e6, rate / 1e3);
    }
}
