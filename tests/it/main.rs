//! One integration binary; a module per topic.

mod ablations;
mod baselines;
mod bound;
mod compiled;
mod crash;
mod decisions;
mod determinism;
mod inputs;
mod invariance;
mod leak;
mod logged;
mod logs;
mod lottery;
mod measure;
mod plan;
mod quickstart;
mod replay;
mod stress;
mod study;
mod support;
mod train;
mod worlds;
