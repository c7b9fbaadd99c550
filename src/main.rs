//! The `admix` program; see the library's documentation.

// burn-flex allocates every intermediate tensor: this allocator nearly doubles its update rate. A sanitizer has to see the system's.
#[cfg(not(admix_system_allocator))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    admix::cli::main()
}
