//! Selects the device of a training. A GPU is used only after its updates were found to agree with the CPU's.

use crate::bench;
use crate::collective::nccl;
use crate::gpu::Device;
use crate::gpu::agreement::{self, Agreement, Subject};
use crate::gpu::device::compared;
use crate::rank::device::subject as values_subject;
use crate::settings::{Collective, Settings, ValueSettings};

use super::exit::UsageError;

/// A device, and the reason why it is the CPU where a GPU might be expected.
#[derive(Debug)]
pub struct ChosenDevice {
    pub device: Device,
    pub why: Option<String>,
}

/// Resolves `run.device` of a policy's training. A GPU that this program has not used before is first compared with the CPU, which
/// takes seconds.
///
/// # Errors
/// [`UsageError`] for an unknown name, for `cuda` without its requirements, and for a GPU with settings that only the CPU supports;
/// for `cuda` also if the GPU does not agree with the CPU.
pub fn choose(settings: &Settings) -> anyhow::Result<ChosenDevice> {
    let choice = choose_for(Device::subject(settings), &settings.run.device, Device::cpu_only(settings))?;
    if settings.learner.collective == Collective::Nccl {
        let why = match choice.device {
            Device::Cpu => Some("each rank needs a GPU, and this run is on the CPU"),
            Device::Cuda(_) => nccl::missing(),
        };
        if let Some(why) = why {
            return Err(UsageError(format!("learner.collective = \"nccl\": {why}; \"memory\" works")).into());
        }
    }
    Ok(choice)
}

/// Resolves `run.device` of a value model's training, as [`choose`] does.
///
/// # Errors
/// As [`choose`].
pub fn choose_for_values(settings: &ValueSettings) -> anyhow::Result<ChosenDevice> {
    choose_for(values_subject(settings), &settings.run.device, None)
}

/// Returns the names of the devices that the ranks of a training use, given the first one.
pub fn names(first: Device, subject: Subject) -> String {
    let Device::Cuda(first) = first else { return first.to_string() };
    let names = compared(subject, first).into_iter().map(|index| Device::Cuda(index).to_string());
    names.collect::<Vec<_>>().join(", ")
}

fn choose_for(subject: Subject, name: &str, only: Option<&'static str>) -> anyhow::Result<ChosenDevice> {
    let device = match only {
        Some(_) => Device::resolve_with(name, subject, only),
        None => Device::untried(name, subject.devices()),
    };
    let gpu = device.map_err(|e| UsageError(e.to_string()))?;
    let Device::Cuda(first) = gpu else {
        let why = (name == "auto").then(|| match (only, Device::idle_gpu(subject.devices())) {
            (Some(what), _) => format!("{what} is learned there"),
            (None, Some(missing)) => format!("though there is a GPU: {missing}"),
            (None, None) => "no CUDA driver found".into(),
        });
        return Ok(ChosenDevice { device: gpu, why });
    };
    let auto = name == "auto";
    for index in compared(subject, first) {
        let choice = decide(auto, Device::Cuda(index), compare(subject, index, auto))?;
        if choice.why.is_some() {
            return Ok(choice);
        }
    }
    Ok(ChosenDevice { device: gpu, why: None })
}

/// Returns the agreement of a GPU with the CPU, which is determined now if it is not known yet.
fn compare(subject: Subject, index: usize, auto: bool) -> anyhow::Result<Agreement> {
    if let Some(known) = agreement::remembered(subject, index) {
        return Ok(known);
    }
    let gpu = Device::Cuda(index);
    let others = match subject {
        Subject::Values { devices: devices @ 2.. } => format!(", with rows on {devices} GPUs,"),
        _ => String::new(),
    };
    say!("comparing a few updates on {gpu}{others} with the CPU's, once for this program, driver and device ..");
    let found = bench::agreement::compare(subject, gpu)?;
    match agreement::remember(subject, index, &found) {
        Err(e) if auto => Err(e.context("agrees with the CPU, which other processes cannot know")),
        _ => Ok(found),
    }
}

fn decide(auto: bool, gpu: Device, found: anyhow::Result<Agreement>) -> anyhow::Result<ChosenDevice> {
    let why = match found {
        Ok(found) if found.holds() => return Ok(ChosenDevice { device: gpu, why: None }),
        Ok(found) => found.to_string(),
        Err(e) => format!("{e:#}"),
    };
    if auto {
        return Ok(ChosenDevice { device: Device::Cpu, why: Some(format!("{gpu} is not used: {why}")) });
    }
    anyhow::bail!("{gpu} cannot be trusted: {why}; --device cpu works, scripts/gpu-check says more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_of_a_value_model_has_a_gpu_of_its_own() {
        let mut settings = ValueSettings::default();
        settings.table.devices = 3;
        assert_eq!(values_subject(&settings), Subject::Values { devices: 3 });
        (settings.table.devices, settings.values.ranks, settings.ranks.tables) = (1, 2, 2);
        assert_eq!(values_subject(&settings), Subject::ValueRanks { ranks: 4 });
        assert_eq!(names(Device::Cpu, values_subject(&settings)), "cpu");
    }

    #[test]
    fn several_ranks_of_a_policy_may_learn_on_gpus() {
        let mut settings = Settings::default();
        assert_eq!(names(Device::Cpu, Device::subject(&settings)), "cpu");
        assert_eq!(names(Device::Cuda(1), Device::subject(&settings)), "cuda:1");
        settings.learner.ranks = 2;
        assert_eq!(Device::cpu_only(&settings), None);
    }

    fn found(difference: Option<f64>) -> anyhow::Result<Agreement> {
        Ok(Agreement { difference, place: "steps of 1".into() })
    }

    /// Test machines have no GPU: this tests the consequences of a comparison; the comparison itself is tested with the CPU in place of
    /// the GPU.
    #[test]
    fn auto_takes_the_cpu_and_cuda_fails_where_a_gpu_computes_something_else() {
        let gpu = Device::Cuda(0);
        assert_eq!(decide(true, gpu, found(Some(1e-6))).unwrap().device, gpu);
        assert_eq!(decide(false, gpu, found(Some(1e-6))).unwrap().device, gpu);
        for wrong in [found(Some(0.02)), found(None), Err(anyhow::anyhow!("the driver crashed"))] {
            let text = match &wrong {
                Ok(found) => found.to_string(),
                Err(e) => e.to_string(),
            };
            let again = match &wrong {
                Ok(found) => Ok(found.clone()),
                Err(e) => Err(anyhow::anyhow!("{e}")),
            };
            let choice = decide(true, gpu, wrong).unwrap();
            assert_eq!(choice.device, Device::Cpu);
            assert!(choice.why.unwrap().contains(&text));
            assert!(decide(false, gpu, again).unwrap_err().to_string().contains(&text));
        }
    }
}
