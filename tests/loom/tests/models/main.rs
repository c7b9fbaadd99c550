//! Models of what the processes of a run do to each other in shared memory; see the package's documentation.

mod cell;
mod doorbell;
mod exchange;
mod halves;
mod ring;
mod support;
mod turns;
