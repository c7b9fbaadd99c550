//! Comparison of a GPU's updates with the CPU's: made once for each program, driver and device, and stored beside the compiled
//! kernels.
//!
//! **Why.** A GPU that computes other results than the CPU trains a wrong policy without any sign. So a GPU is not used before a
//! few updates on fixed data have given the CPU's losses.

use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::kernels::kernel_folder;

/// Largest relative difference between two losses at which two devices agree: ten times the bound promised for a hundred
/// updates, and a tenth of the error of a product in a lower precision.
pub const TOLERANCE: f64 = 1e-3;

/// Two losses of one update: [`Subject::losses`] names them.
pub type Losses = [f64; 2];

/// A kind of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A policy. Each rank uses a GPU of its own, and each GPU is compared with the CPU separately.
    Policy { ranks: usize },
    /// With rows on so many GPUs.
    Values { devices: usize },
    /// A value model of several ranks, whose rows are on the host. Each rank uses a GPU of its own, as the ranks of a policy do.
    ValueRanks { ranks: usize },
}

impl Subject {
    /// Returns the names of its losses.
    pub fn losses(self) -> [&'static str; 2] {
        match self {
            Self::Policy { .. } => ["critic", "actor"],
            Self::Values { .. } | Self::ValueRanks { .. } => ["charge", "click"],
        }
    }

    /// Returns the number of GPUs that it needs.
    pub fn devices(self) -> usize {
        match self {
            Self::Policy { ranks: devices } | Self::ValueRanks { ranks: devices } | Self::Values { devices } => devices,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Policy { .. } => "policy".into(),
            Self::ValueRanks { .. } => "value-ranks".into(),
            Self::Values { devices: 1 } => "values".into(),
            Self::Values { devices } => format!("values-on-{devices}"),
        }
    }
}

/// Difference between a device's losses and the CPU's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Largest difference over all losses, relative to the mean size of the CPU's; `None` if a loss is not finite or missing.
    pub difference: Option<f64>,
    /// Update and loss with the largest difference, for messages.
    pub place: String,
}

impl Agreement {
    /// Compares losses of the same updates on the same data; `what` names the data.
    pub fn between(subject: Subject, cpu: &[Losses], gpu: &[Losses], what: &str) -> Self {
        let mut worst = Self { difference: Some(0.0), place: what.into() };
        if cpu.len() != gpu.len() || cpu.is_empty() {
            return Self { difference: None, place: format!("{what}: {} updates instead of {}", gpu.len(), cpu.len()) };
        }
        for (i, name) in subject.losses().into_iter().enumerate() {
            // A loss may cross zero, so differences are relative to the mean size.
            let size = cpu.iter().map(|l| l[i].abs()).sum::<f64>() / cpu.len() as f64;
            for (update, (a, b)) in cpu.iter().zip(gpu).enumerate() {
                let difference = (a[i] - b[i]).abs() / size.max(1e-12);
                let place =
                    || format!("{what}: loss of the {name} at update {}: {} instead of {}", update + 1, b[i], a[i]);
                if !difference.is_finite() {
                    return Self { difference: None, place: place() };
                }
                if worst.difference.is_some_and(|d| difference > d) {
                    worst = Self { difference: Some(difference), place: place() };
                }
            }
        }
        worst
    }

    /// Returns the worse of two.
    pub fn and(self, other: Self) -> Self {
        let size = |a: &Self| a.difference.unwrap_or(f64::INFINITY);
        if size(&other) > size(&self) { other } else { self }
    }

    /// Whether the difference is within [`TOLERANCE`].
    pub fn holds(&self) -> bool {
        self.difference.is_some_and(|d| d <= TOLERANCE)
    }
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.difference {
            Some(d) => {
                write!(f, "its losses differ from the CPU's by {d:.1e} ({TOLERANCE:.0e} is allowed; {})", self.place)
            }
            None => write!(f, "its losses are not the CPU's ({})", self.place),
        }
    }
}

/// Returns the file that stores the agreement of a GPU; `None` without a cache folder.
fn memory(subject: Subject, index: usize) -> Option<PathBuf> {
    let program = XxHash3_64::oneshot(&std::fs::read("/proc/self/exe").ok()?);
    Some(kernel_folder()?.join(format!("agreement-{}-cuda-{index}-{program:016x}.json", subject.name())))
}

/// Returns the stored agreement of this program, this driver and the GPU of this index, with those that the subject needs behind it; `None` if there is none or it cannot
/// be read.
pub fn remembered(subject: Subject, index: usize) -> Option<Agreement> {
    serde_json::from_slice(&std::fs::read(memory(subject, index)?).ok()?).ok()
}

/// Stores a GPU's agreement for later processes and starts.
///
/// # Errors
/// If there is no cache folder, or it cannot be written.
pub fn remember(subject: Subject, index: usize, agreement: &Agreement) -> anyhow::Result<()> {
    let path = memory(subject, index).context("there is no ~/.cache to remember it in")?;
    crate::files::replace(&path, &serde_json::to_vec(agreement)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Subject = Subject::Policy { ranks: 1 };

    #[test]
    fn each_number_of_devices_is_compared_for_itself() {
        let [one, two] = [1, 2].map(|devices| Subject::Values { devices });
        let ranks = [2, 3].map(|ranks| Subject::ValueRanks { ranks });
        let names = [POLICY, one, two, ranks[0], ranks[1]].map(Subject::name);
        assert_eq!(names, ["policy", "values", "values-on-2", "value-ranks", "value-ranks"]);
    }

    #[test]
    fn losses_agree_up_to_the_tolerance_and_never_with_nan() {
        let cpu = [[1.0, -0.5], [0.9, 0.5], [0.8, 1e-9]];
        let mut gpu = cpu;
        assert_eq!(Agreement::between(POLICY, &cpu, &gpu, "x").difference, Some(0.0));
        // The third loss of the actor is small beside the others: the difference is relative to their mean size.
        gpu[2][1] = 1e-5;
        assert!(Agreement::between(POLICY, &cpu, &gpu, "x").holds());
        gpu[1][0] *= 1.01;
        let off = Agreement::between(POLICY, &cpu, &gpu, "steps of 30");
        assert!(!off.holds());
        assert!(off.to_string().contains("steps of 30: loss of the critic at update 2"), "{off}");
        assert!(off.clone().and(Agreement::between(POLICY, &cpu, &cpu, "x")) == off);
        gpu[0][1] = f64::NAN;
        let nan = Agreement::between(POLICY, &cpu, &gpu, "x");
        assert!(!nan.holds() && off.and(nan.clone()) == nan);
        assert!(!Agreement::between(POLICY, &cpu, &cpu[..2], "x").holds());
        assert!(!Agreement::between(POLICY, &[], &[], "x").holds());
    }
}
