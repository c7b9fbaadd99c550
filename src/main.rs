//! The `admix` program; see the library's documentation.

// burn-flex allocates every intermediate tensor: this allocator nearly doubles its update rate.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    admix::cli::main()
}
