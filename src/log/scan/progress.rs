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
        let left = if self.read > 0 && self.read < self.whole {
            let share = self.read as f64 / self.whole as f64;
            format!(", {:.0} % read, about {:.0} s left", 100.0 * share, seconds * (1.0 - share) / share)
        } else {
            String::new()
        };
        tracing::info!("{}: {}{left}", self.what, amount(self.rows, seconds));
    }
}

/// Formats a number of rows and their rate. Short passes show plain numbers, because 0.0 M says nothing.
fn amount(rows: u64, seconds: f64) -> String {
    let rate = rows as f64 / seconds;
    let rows = if rows < 1_000_000 { rows.to_string() } else { format!("{:.1} M", rows as f64 / 1e6) };
    let rate = if rate < 1e3 { format!("{rate:.0}") } else { format!("{:.0} k", rate / 1e3) };
    format!("{rows} rows, {rate} rows/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pass_does_not_show_zero_million_rows() {
        assert_eq!(amount(16_500, 8.0), "16500 rows, 2 k rows/s");
        assert_eq!(amount(900, 6.0), "900 rows, 150 rows/s");
        assert_eq!(amount(999_999, 10.0), "999999 rows, 100 k rows/s");
        assert_eq!(amount(1_250_000, 10.0), "1.2 M rows, 125 k rows/s");
    }
}
