//! What stands beside training.
//!
//! May import: everything but `cli`.

pub mod bench;
pub mod inspect;
pub mod soak;
pub mod study;
