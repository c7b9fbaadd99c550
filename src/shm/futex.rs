//! The two system calls under a [`Doorbell`](super::wait::Doorbell): sleep unless a word has changed, and wake
//! whoever sleeps on it.

use std::io;
use std::time::Duration;

use super::sync::AtomicU32;

/// Sleeps on `word` as long as it is `expected`, at most `timeout`. The kernel compares under its own lock, so that a
/// change followed by [`wake_all`] is not missed. May return early without a cause.
///
/// # Errors
/// When the word had changed already, the time was up or a signal was handled.
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

/// Wakes everybody who sleeps on `word`.
pub(super) fn wake_all(word: &AtomicU32) {
    // SAFETY: the word outlives the call and is aligned; the kernel only uses its address.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, libc::c_int::MAX);
    }
}
