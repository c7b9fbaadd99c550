//! Benchmarks: each measures one stage with the code that training runs, as a figure for people and as JSON.

pub mod actor;
pub mod env;
pub mod learner;
pub mod params;
pub mod plan;
pub mod ring;
pub mod speedup;
pub mod world;
