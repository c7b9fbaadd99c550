//! Stands in for `src/shm/futex.rs`: who sleeps on a word, sleeps until it is woken. The mutex is the kernel's lock.

use std::collections::BTreeMap;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

use super::sync::{AtomicU32, Ordering};

/// None: a look without a wake-up is an interleaving that the models have anyway.
pub(super) struct Patience;

impl Patience {
    pub(super) fn is_crowded(_: usize) -> bool {
        false
    }

    pub(super) fn new(_: bool) -> Self {
        Self
    }

    pub(super) fn look_again(&mut self) -> bool {
        false
    }
}

loom::lazy_static! {
    /// By the addresses of their words.
    static ref SLEEPERS: Mutex<BTreeMap<usize, Arc<Condvar>>> = Mutex::new(BTreeMap::new());
}

pub(super) fn sleep(word: &AtomicU32, expected: u32, _: Option<Duration>) -> io::Result<()> {
    let mut sleepers = SLEEPERS.lock().unwrap();
    if word.load(Ordering::Relaxed) != expected {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let bed = sleepers.entry(ptr::from_ref(word).addr()).or_insert_with(|| Arc::new(Condvar::new())).clone();
    drop(bed.wait(sleepers).unwrap());
    Ok(())
}

pub(super) fn wake_all(word: &AtomicU32) {
    if let Some(bed) = SLEEPERS.lock().unwrap().get(&ptr::from_ref(word).addr()) {
        bed.notify_all();
    }
}
