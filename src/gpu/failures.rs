//! The end of a process whose GPU fails behind its back.
//!
//! cubecl runs the tasks of a device on a thread of its own. If a task fails there, most often because memory is short, cubecl logs a warning
//! and runs the next task. The array that the task should have computed keeps its old numbers. No later result shows that: training would
//! continue with rows that never move.

use std::panic;
use std::sync::Once;
use std::thread;

/// Exit code of such a process: that of a panic.
const EXIT: i32 = 101;

/// Ends this process as soon as a task of a device fails. Main replaces it, and training continues from the newest snapshot.
pub fn end_the_process() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |failure| {
            tell(failure);
            if works_for_a_device(thread::current().name()) {
                eprintln!(
                    "the GPU has failed, and what it computes from now on is not what was asked for: this process ends"
                );
                // SAFETY: it ends the process without a destructor; what other processes see of it is as after a kill.
                unsafe { libc::_exit(EXIT) }
            }
        }));
    });
}

/// Whether cubecl gave a thread its name.
fn works_for_a_device(name: Option<&str>) -> bool {
    name.is_some_and(|name| name.starts_with("DSU-") || name.starts_with("DSD-"))
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "ADMIX_TEST_GPU_FAILURES";

    /// A task that failed on the device's thread was a warning, and the trainer went on with rows that did not move.
    #[test]
    fn a_task_that_fails_behind_its_back_ends_a_process() {
        let thread_of = |name: &str| thread::Builder::new().name(name.into());
        let fails = || assert!(catch_unwind(|| panic!("no memory")).is_err());
        if std::env::var_os(CHILD).is_some() {
            end_the_process();
            end_the_process();
            thread_of("another").spawn(fails).unwrap().join().unwrap();
            println!("goes on");
            thread_of("DSD-0-1").spawn(fails).unwrap().join().unwrap();
            println!("goes on with the wrong numbers");
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "--nocapture",
            "gpu::failures::tests::a_task_that_fails_behind_its_back_ends_a_process",
        ]);
        let ended = child.env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(EXIT), "{said}");
        assert!(said.contains("goes on") && !said.contains("wrong numbers"), "{said}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("the GPU has failed"));
    }
}
