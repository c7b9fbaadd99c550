//! One integration binary; a module per topic.

mod baselines;
mod ablations;
mod bound;
mod compiled;
mod crash;
mod decisions;
mod determinism;
mod inputs;
mod logged;
mod invariance;
mod leak;
mod logs;
mod lottery;
mod plan;
mod quickstart;
mod replay;
mod support;
mod train;
mod worlds;
