//! Errors of shared memory, with messages that say what to do next.

/// Error type of all of `shm`.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    #[error("shared memory `{name}`: cannot {what}: {source}")]
    Os { name: String, what: &'static str, source: std::io::Error },
    #[error("shared memory `{name}` exists already, and so did every other name that was tried; look into /dev/shm")]
    Exists { name: String },
    #[error("there is no shared memory `{name}`: the run that owned it has ended")]
    Missing { name: String },
    #[error("shared memory `{name}` is not one of ours: its magic number is {found:#018x}; remove /dev/shm/{name}")]
    Foreign { name: String, found: u64 },
    #[error("shared memory `{name}` is of kind {found}, not {expected}")]
    WrongKind { name: String, expected: u32, found: u32 },
    #[error(
        "shared memory `{name}` was laid out by another build ({what} {found:#x} instead of {expected:#x}): \
         use the binary that started the run"
    )]
    WrongLayout { name: String, what: &'static str, expected: u64, found: u64 },
    #[error("shared memory `{name}` is truncated: {found} bytes where {expected} are needed; remove /dev/shm/{name}")]
    Truncated { name: String, expected: u64, found: u64 },
    #[error(
        "not enough shared memory: {} needed, {} free in /dev/shm. Give it more room (in Docker: `docker run \
         --shm-size={}m ...`), or need less: for a policy a smaller `learner.pool`, fewer actors or a smaller `actors.write_every`, \
         for values a smaller `table.max_rows`; without snapshots (`checkpoint.every_s = 0`) it is much less",
        mebibytes(*needed), mebibytes(*free), needed.div_ceil(1 << 20) * 5 / 4 + 1
    )]
    NoSpace { needed: u64, free: u64 },
    #[error("`{text}` cannot be part of a segment's name: use letters, digits, `.` and `_`{also}")]
    BadName { text: String, also: &'static str },
    #[error("a ring needs 2 to {max} regions of at least one byte, not {regions} of {capacity}")]
    BadShape { regions: u64, capacity: u64, max: u64 },
    #[error("the {role} side of `{name}` is taken by process {pid}: if that one is dead, recover the ring first")]
    RoleTaken { name: String, role: &'static str, pid: u64 },
    #[error("block {seq} of actor {actor} is damaged ({what}); its {samples} samples are counted as lost")]
    Torn { actor: u64, seq: u64, samples: u64, what: &'static str },
    #[error("parameter versions only grow: {offered} offered after {published}")]
    StaleVersion { published: u64, offered: u64 },
    #[error("{words} parameter words do not fit into a cell of {capacity}")]
    TooLong { words: usize, capacity: usize },
    #[error("a part of a snapshot takes {needed} bytes, its half has room for {capacity}")]
    SnapshotTooLarge { needed: u64, capacity: u64 },
    #[error("snapshot {snapshot} in shared memory is damaged: {what}")]
    DamagedSnapshot { snapshot: u64, what: &'static str },
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
