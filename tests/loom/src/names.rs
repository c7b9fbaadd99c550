//! Stands in for `src/shm/names.rs`: a process that does not tell when it started is never taken for dead.

pub(super) fn start_time(_: u32) -> Option<u64> {
    None
}
