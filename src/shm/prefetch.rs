//! Hints to the processor about memory that is needed soon.
//!
//! A load whose page is not in the TLB keeps everything behind it waiting until the page is found, which takes 100 ns and more in a virtual
//! machine. Only loads within some hundred instructions of each other wait together. So what is needed soon is loaded in short runs, one
//! place right after another ([`ahead`]), rather than one place with each piece of work.

use std::ops::Range;

/// Places of a run. Runs of 16 and 32 are as fast in tables much larger than the processor's cache and slower in smaller ones: a core has no
/// room for so many loads at once.
const RUN: usize = 8;

/// Places from the work to the run that is loaded: a line that another core has changed, or that lies in memory, takes longer to come than the
/// work on one run.
const LEAD: usize = 3 * RUN;

/// Starts to load the cache line that holds `place`, without waiting for it.
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Starts to load the cache line that holds `place` for a write: a core that has it gives it up. After a plain [`prefetch`] of a line that another
/// core has too, the write would still have to wait for that.
fn prefetch_to_write<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`, on pages that may not be written, too. Processors for 64 bits ignore this instruction where they lack it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) std::ptr::from_ref(place), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    prefetch(place);
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Starts to load all cache lines of a slice.
pub fn prefetch_lines<T>(places: &[T]) {
    lines(places.as_ptr() as usize, size_of::<T>(), places.len()).for_each(|place| prefetch(&places[place]));
}

/// Starts to load all cache lines of a slice that is about to be written, and that another core may have.
pub fn prefetch_lines_to_write<T>(places: &[T]) {
    lines(places.as_ptr() as usize, size_of::<T>(), places.len()).for_each(|place| prefetch_to_write(&places[place]));
}

/// The places of a slice that stand first on each of its cache lines; it begins at an address, and has so many places of `size` bytes, a
/// power of two.
fn lines(address: usize, size: usize, len: usize) -> impl Iterator<Item = usize> {
    let of_line = (LINE / size).max(1);
    let behind = address / size % of_line;
    (len > 0).then_some(0).into_iter().chain((of_line - behind..len).step_by(of_line))
}

/// Returns the places to load before the work on place `i` of `len`: a run of later places if `i` is the first of a run, none otherwise. The
/// work begins with place 0.
pub fn ahead(i: usize, len: usize) -> Range<usize> {
    if !i.is_multiple_of(RUN) {
        return 0..0;
    }
    let first = if i == 0 { 0 } else { i.saturating_add(LEAD) };
    first.min(len)..i.saturating_add(LEAD + RUN).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the ends of records were loaded; those of three lines waited for the one between.
    #[test]
    fn every_line_of_a_slice_is_loaded_once() {
        for (address, len) in (0..40).flat_map(|words| (0..70).map(move |len| (4 * words, len))) {
            let of = |place: usize| (address + 4 * place) / LINE;
            let found: Vec<usize> = lines(address, 4, len).map(of).collect();
            let mut expected: Vec<usize> = (0..len).map(of).collect();
            expected.dedup();
            assert_eq!(found, expected, "{len} words at {address}");
        }
        assert_eq!(lines(128, 128, 3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn every_place_is_loaded_once_and_not_behind_its_turn() {
        for len in [0, 1, RUN - 1, RUN, RUN + 1, LEAD, LEAD + RUN, 7 * RUN + 3] {
            let mut loaded = 0;
            for i in 0..len {
                let places = ahead(i, len);
                if !places.is_empty() {
                    assert_eq!(places.start, loaded);
                    loaded = places.end;
                }
                assert!(loaded > i && loaded <= i + LEAD + RUN, "{i} of {len}");
            }
            assert_eq!(loaded, len);
        }
    }
}
