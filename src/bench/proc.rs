//! What the kernel says of a process and of the machine.

use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Clock ticks of `/proc` in a second: a constant of the kernel's interface.
const TICKS: f64 = 100.0;

/// Returns the CPU time of this thread so far, which other work on the machine does not lengthen.
pub fn thread_cpu_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// A process at some moment.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    /// User and system time since its start.
    pub cpu_s: f64,
    /// Resident memory, mapped files and shared memory included.
    pub resident_mb: f64,
    /// Of that, memory of its own.
    pub own_mb: f64,
    pub open_files: usize,
}

/// Reads a process; `None` when it is gone.
pub fn usage(pid: u32) -> Option<Usage> {
    let folder = PathBuf::from("/proc").join(pid.to_string());
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // The name in parentheses may contain anything; field 3 follows its last `)`. utime and stime are fields 14 and 15.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let cpu_s = (ticks()? + ticks()?) / TICKS;
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_ascii_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Usage {
        cpu_s,
        resident_mb: kilobytes("VmRSS")? / 1024.0,
        own_mb: kilobytes("RssAnon")? / 1024.0,
        open_files: std::fs::read_dir(folder.join("fd")).ok()?.count(),
    })
}

/// Seconds that the machine's cores were idle, all of them together, since it was started.
pub fn idle_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let mut fields = stat.lines().next()?.split_ascii_whitespace().skip(4);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_at_work() {
        let me = std::process::id();
        let before = usage(me).unwrap();
        assert!(before.resident_mb >= before.own_mb && before.own_mb > 0.0 && before.open_files >= 3);
        let files: Vec<_> = (0..5).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let mut x = 1u64;
        let after = loop {
            for _ in 0..10_000_000 {
                x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9).rotate_left(7));
            }
            let now = usage(me).unwrap();
            if now.cpu_s > before.cpu_s {
                break now;
            }
        };
        // Other tests run in this process and open files too.
        assert!(after.open_files >= files.len());
        assert!(usage(u32::MAX).is_none());
        assert!(idle_s().unwrap() > 0.0);
    }
}
