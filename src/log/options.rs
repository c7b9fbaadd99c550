//! Options of a compilation.

/// Options that change the meaning of a compiled log, and limits for making one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompileOptions {
    /// Whether contracts that are eligible but missing from a queue are added to it, with `control.pctr`.
    pub complete_queues: bool,
    /// Share of bad track rows above which the log is refused.
    pub max_bad_share: f64,
    /// Memory limit of the compilation, bytes, approximate.
    pub memory: usize,
    /// Whether inputs with a known hash are read again, and all blocks of a compiled log checked.
    pub verify: bool,
}

/// Default memory limit of the compilation, bytes.
pub const MEMORY: usize = 1 << 30;

impl Default for CompileOptions {
    fn default() -> Self {
        Self { complete_queues: false, max_bad_share: 0.01, memory: MEMORY, verify: false }
    }
}
