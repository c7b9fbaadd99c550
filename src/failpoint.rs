//! Points at which a test can make a process die, fail or wait.
//!
//! `ADMIX_FAILPOINT=NAME@COUNT=ACTION` takes effect when a process reaches the named point for the `COUNT`th time: `kill` ends the process
//! as SIGKILL does, `fail` makes the operation fail with an error, if it can, and `5ms` makes it wait for 5 ms, this time and every time
//! after. Several are separated by commas. If the variable is unset, a point costs one look at an empty list.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Fail,
    Wait(Duration),
}

#[derive(Debug)]
struct Failpoint {
    name: String,
    at: u64,
    action: Action,
    reached: AtomicU64,
}

fn points() -> &'static [Failpoint] {
    static POINTS: OnceLock<Vec<Failpoint>> = OnceLock::new();
    POINTS.get_or_init(|| {
        let text = std::env::var("ADMIX_FAILPOINT").unwrap_or_default();
        text.split(',').filter(|part| !part.is_empty()).map(parse).collect()
    })
}

/// Parses one failpoint.
///
/// # Panics
/// On anything but `NAME@COUNT=ACTION`: a test with a meaningless failpoint must not pass.
fn parse(text: &str) -> Failpoint {
    let parts = text.split_once('@').and_then(|(name, rest)| {
        let (at, action) = rest.split_once('=')?;
        let action = match action {
            "kill" => Action::Kill,
            "fail" => Action::Fail,
            _ => Action::Wait(Duration::from_millis(action.strip_suffix("ms")?.parse().ok()?)),
        };
        Some((name, at.parse().ok().filter(|at| *at > 0)?, action))
    });
    let (name, at, action) =
        parts.unwrap_or_else(|| panic!("ADMIX_FAILPOINT: `{text}` is not NAME@COUNT=kill|fail|..ms"));
    Failpoint { name: name.to_owned(), at, action, reached: AtomicU64::new(0) }
}

/// Returns whether the point `name` is to fail now. Does not return if the action is `kill`.
pub fn reached(name: &str) -> bool {
    let mut fails = false;
    for point in points().iter().filter(|point| point.name == name) {
        // Relaxed: an independent counter.
        let times = point.reached.fetch_add(1, Ordering::Relaxed) + 1;
        if times < point.at || times > point.at && !matches!(point.action, Action::Wait(_)) {
            continue;
        }
        match point.action {
            Action::Wait(time) => std::thread::sleep(time),
            Action::Kill => {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
            }
            Action::Fail => fails = true,
        }
    }
    fails
}

/// Returns how long the point `name` makes a process wait: for points at which nobody waits and something arrives that much later.
pub fn wait_at(name: &str) -> Option<Duration> {
    points().iter().find(|point| point.name == name).and_then(|point| match point.action {
        Action::Wait(time) => Some(time),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_failpoint_is_refused() {
        let point = parse("checkpoint.rename@3=kill");
        assert_eq!((point.name.as_str(), point.at, point.action), ("checkpoint.rename", 3, Action::Kill));
        assert_eq!(parse("exchange.latency@1=5ms").action, Action::Wait(Duration::from_millis(5)));
        for bad in ["x", "x@1", "x@0=kill", "x@1=panic", "@=kill", "x@1=5", "x@1=ms"] {
            assert!(std::panic::catch_unwind(|| parse(bad)).is_err(), "{bad}");
        }
    }
}
