//! Counts what a thread allocates: the test binary's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Gauge;

#[global_allocator]
static GAUGE: Gauge = Gauge;

fn count(bytes: isize) {
    // A thread that ends may still free.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Gauge {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while the bytes are copied.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(start, layout, size) }
    }
}

/// Runs `body`; the most bytes that it held at a time, beyond what this thread held before.
pub fn peak<R>(body: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = body();
    (result, (PEAK.get() - before) as usize)
}

#[test]
fn the_gauge_sees_what_is_held_at_a_time() {
    let (_, one) = peak(|| vec![0u8; 100_000]);
    assert!((100_000..110_000).contains(&one), "{one}");
    let (_, in_turn) = peak(|| (0..10).map(|_| vec![1u8; 100_000].len()).sum::<usize>());
    assert!((100_000..110_000).contains(&in_turn), "{in_turn}");
}
