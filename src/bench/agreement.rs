//! A few updates on fixed data on a device and on the CPU.
//!
//! Each device computes in a process of its own, so that a driver that crashes or hangs takes nothing with it.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::gpu::Device;
use crate::gpu::agreement::{Agreement, Losses, Subject};

/// Updates that are compared.
const UPDATES: usize = 8;

/// Returns the comparisons of a subject: their names, and arguments of `admix bench`.
fn cases(subject: Subject) -> Vec<(String, Vec<String>)> {
    let cases: &[(&str, &[&str])] = match subject {
        // The two ways in which a batch is made.
        Subject::Policy { .. } => &[
            ("steps of 1", &["learner", "--threads", "0", "--requests-per-step", "1"]),
            ("steps of 30", &["learner", "--threads", "0", "--requests-per-step", "30"]),
        ],
        // All rows resident, and rows that leave and come back.
        Subject::Values { .. } => &[
            ("all rows", &["table", "--rows", "5000", "--batch", "512"]),
            ("a cache", &["table", "--rows", "20000", "--batch", "512", "--cache-rows", "4096"]),
        ],
        Subject::ValueRanks { .. } => {
            &[("rows of the host", &["table", "--rows", "5000", "--batch", "512", "--host-rows"])]
        }
    };
    let devices = match subject {
        Subject::Values { devices } => devices,
        Subject::Policy { .. } | Subject::ValueRanks { .. } => 1,
    };
    let case = |(name, arguments): &(&str, &[&str])| {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        match devices {
            1 => ((*name).to_owned(), arguments.collect()),
            // Only rows can lie on several.
            _ => {
                let arenas = ["--devices".to_owned(), devices.to_string()];
                (format!("{name} on {devices} devices"), arguments.chain(arenas).collect())
            }
        }
    };
    cases.iter().map(case).collect()
}

/// Limit on the time of one process. Compiling the kernels takes seconds, so a process beyond this hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Compares a device with the CPU. Both run this program.
///
/// # Errors
/// A process that fails or does not end.
pub fn compare(subject: Subject, device: Device) -> anyhow::Result<Agreement> {
    let mut worst: Option<Agreement> = None;
    for (name, arguments) in cases(subject) {
        let [cpu, other] = [Device::Cpu, device].map(|device| losses(device, &arguments));
        let found = Agreement::between(subject, &cpu?, &other?, &name);
        worst = Some(match worst {
            Some(worst) => worst.and(found),
            None => found,
        });
    }
    worst.context("nothing was compared")
}

fn losses(device: Device, arguments: &[String]) -> anyhow::Result<Vec<Losses>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (out, log) = (folder.path().join("losses.json"), folder.path().join("log"));
    let mut child = Command::new("/proc/self/exe")
        .arg("bench")
        .args(arguments)
        .args(["--json", "--device", &device.to_string(), "--losses", &UPDATES.to_string()])
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&log)?)
        .spawn()
        .context("cannot start a process on the device")?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("{UPDATES} updates on {device} did not end within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        anyhow::bail!("{UPDATES} updates on {device} failed ({status}): {last}");
    }
    #[derive(serde::Deserialize)]
    struct Report {
        losses: Vec<Losses>,
    }
    let report: Report =
        serde_json::from_slice(&std::fs::read(&out)?).context("cannot read the losses of a process")?;
    Ok(report.losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_devices_are_compared_with_rows_on_all_of_them() {
        let one = cases(Subject::Values { devices: 1 });
        let three = cases(Subject::Values { devices: 3 });
        assert_eq!(one.len(), three.len());
        for ((name, arguments), (name_of_three, of_three)) in one.iter().zip(&three) {
            assert_eq!(of_three.strip_prefix(&arguments[..]), Some(&["--devices".to_owned(), "3".to_owned()][..]));
            assert!(name_of_three.starts_with(name.as_str()) && name_of_three.contains('3'), "{name_of_three}");
        }
        for subject in [Subject::Policy { ranks: 2 }, Subject::ValueRanks { ranks: 2 }] {
            assert!(cases(subject).iter().all(|(_, arguments)| !arguments.contains(&"--devices".to_owned())));
        }
    }
}
