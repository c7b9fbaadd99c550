//! Shared by the modules: the program under test, and where real logs are.

use std::path::PathBuf;
use std::process::Command;

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

/// A Python that can import these packages; `None` (said on stderr) where there is none.
pub fn python(test: &str, packages: &str) -> Option<String> {
    let python = std::env::var("ADMIX_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", &format!("import {packages}")]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("{test}: skipped in part, {python} has not all of {packages} (ADMIX_PYTHON)");
    None
}
