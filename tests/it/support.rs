//! Shared by the modules: the program under test, and where real logs are.

use std::path::PathBuf;

/// The program under test.
pub fn admix() -> assert_cmd::Command {
    assert_cmd::Command::cargo_bin("admix").expect("the program is built")
}

/// The folder of real sample logs; `None` (said on stderr) where `ADMIX_SHARED_DATA` is not set.
pub fn real_logs(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ADMIX_SHARED_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("{test}: skipped, ADMIX_SHARED_DATA is not set");
    }
    folder
}
