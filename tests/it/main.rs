//! One integration binary; a module per topic.

mod bound;
mod compiled;
mod crash;
mod decisions;
mod determinism;
mod inputs;
mod lottery;
mod plan;
mod quickstart;
mod replay;
mod support;
mod train;
mod worlds;
