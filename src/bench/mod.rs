//! Benchmarks: each measures one stage with the code that training runs, as a figure for people and as JSON.

pub mod actor;
pub mod agreement;
pub mod collectives;
pub mod e2e;
pub mod env;
pub mod evaluate;
pub mod ingest;
pub mod learner;
pub mod params;
pub mod plan;
pub mod proc;
pub mod ring;
pub mod score;
pub mod serve;
pub mod speedup;
pub mod start;
pub mod table;
pub mod watched;
pub mod world;
