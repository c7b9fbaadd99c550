//! The two system calls under a [`Doorbell`](super::wait::Doorbell): sleep unless a word has changed, and wake all sleepers on
//! it.

use std::io;
use std::time::Duration;

use super::sync::AtomicU32;

/// Number of looks before sleeping where every process has a core: some tens of microseconds.
const LOOKS: u32 = 1 << 11;
/// Number of looks where processes share cores; the core is yielded each time.
const YIELDS: u32 = 1 << 6;

/// Bounded spinning for a process that expects a change within microseconds, which is less than falling asleep and being woken
/// takes. After that it uses the futex.
pub(super) struct Patience {
    left: u32,
    crowded: bool,
}

impl Patience {
    /// Returns whether this many busy processes have to share cores.
    pub(super) fn is_crowded(processes: usize) -> bool {
        // Cores of the machine, not of this process: each process may be bound to a core of its own. SAFETY: it takes a number
        // and returns one.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(cores).is_ok_and(|cores| processes > cores)
    }

    pub(super) fn new(crowded: bool) -> Self {
        Self { left: if crowded { YIELDS } else { LOOKS }, crowded }
    }

    /// Lets a moment pass; returns false when it is time to sleep.
    pub(super) fn look_again(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        if self.crowded {
            std::thread::yield_now()
        } else {
            std::hint::spin_loop()
        }
        true
    }
}

/// Sleeps on `word` while it equals `expected`, at most `timeout`. The kernel compares under its own lock, so that a change
/// followed by [`wake_all`] is not missed. May return early without a cause.
///
/// # Errors
/// If the word had changed already, the time was up or a signal was handled.
pub(super) fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(libc::time_t::MAX as u64) as libc::time_t,
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let timeout_ptr = timeout.as_ref().map_or(std::ptr::null(), |t| t as *const _);
    // SAFETY: the word outlives the call (it is borrowed) and is aligned; `timeout_ptr` is null or points to a local
    // that outlives the call. Not FUTEX_PRIVATE: the waker is another process.
    let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, timeout_ptr) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Wakes all sleepers on `word`.
pub(super) fn wake_all(word: &AtomicU32) {
    // SAFETY: the word outlives the call and is aligned; the kernel only uses its address.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, libc::c_int::MAX);
    }
}
