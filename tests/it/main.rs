//! One integration binary; a module per topic.

mod bound;
mod compiled;
mod crash;
mod decisions;
mod determinism;
mod inputs;
mod measure;
mod quickstart;
mod replay;
mod stress;
mod study;
mod support;
mod train;
mod worlds;
