//! Stands in for `src/shm/sync.rs`: loom's atomics, each asking [`plant`] whether it is to be wrong.

use std::panic::Location;
use std::thread::panicking;

pub use loom::sync::atomic::Ordering;

use super::plant;

#[track_caller]
pub fn fence(order: Ordering) {
    match plant::order(Location::caller(), order) {
        // No fence at all.
        Ordering::Relaxed => {}
        order => loom::sync::atomic::fence(order),
    }
}

macro_rules! planted {
    ($name:ident, $value:ty) => {
        /// While a failed model unwinds, nothing is stored: loom would be asked for a choice that it cannot make.
        #[derive(Default)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                if panicking() { 0 } else { self.0.load(plant::order(Location::caller(), order)) }
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                if panicking() {
                    return;
                }
                let site = Location::caller();
                let order = plant::order(site, order);
                let this: *const Self = self;
                // SAFETY: the segment outlives the moves of its users, and a store is late only within one of them.
                plant::store(site, move || unsafe { (*this).0.store(value, order) });
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let site = Location::caller();
                if panicking() || plant::skipped(site) {
                    return Ok(from);
                }
                self.0.compare_exchange(from, to, plant::order(site, success), failure)
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                if panicking() { 0 } else { self.0.fetch_max(value, plant::order(Location::caller(), order)) }
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if panicking() { 0 } else { self.0.fetch_add(value, plant::order(Location::caller(), order)) }
            }
        }
    };
}

planted!(AtomicU32, u32);
planted!(AtomicU64, u64);
