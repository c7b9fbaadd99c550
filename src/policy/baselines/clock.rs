//! Step times of a controller: at the first request, then once per interval of log time.

pub struct Clock {
    interval_ms: u64,
    next: u64,
}

impl Clock {
    pub fn new(interval_s: f64) -> Self {
        Self { interval_ms: (interval_s * 1000.0).max(1.0) as u64, next: 0 }
    }

    /// Returns the log time of the next step, milliseconds from midnight.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn resume(&mut self, next: u64) {
        self.next = next;
    }

    pub fn restart(&mut self) {
        self.next = 0;
    }

    /// Whether a step is due at this time; if so, schedules the next one.
    pub fn due(&mut self, offset: u64) -> bool {
        let due = offset >= self.next;
        if due {
            self.next = offset.saturating_add(self.interval_ms);
        }
        due
    }
}
