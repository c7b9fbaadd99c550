//! Initial parameters: the shipped start, which learned bids once from the hindsight prices of many synthetic
//! worlds, or random weights.
//!
//! `scripts/pretrain` makes the former. A policy of another feature version cannot be read, so a change of the features comes
//! with a new one.

use std::sync::OnceLock;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::file::PolicyFile;
use super::spec::PolicySpec;

const BYTES: &[u8] = include_bytes!("../../configs/start.safetensors");

/// Returns the policy that ships with the program.
///
/// # Errors
/// If it has another feature version.
pub fn shipped() -> anyhow::Result<&'static PolicyFile> {
    static SHIPPED: OnceLock<PolicyFile> = OnceLock::new();
    if let Some(file) = SHIPPED.get() {
        return Ok(file);
    }
    let file = PolicyFile::decode(BYTES)?;
    Ok(SHIPPED.get_or_init(|| file))
}

/// Returns the shipped parameters for `spec`; `None` if its settings do not want them or its network differs.
pub fn for_spec(spec: &PolicySpec) -> Option<Vec<f32>> {
    let p = &spec.policy;
    if !(p.shipped_start && p.outlook && p.replans()) || p.pacing {
        return None;
    }
    let shipped = shipped().ok()?;
    (shipped.spec.actor_shape() == spec.actor_shape()).then(|| shipped.actor.clone())
}

/// Returns the actor before training: [`for_spec`]'s, or one whose output is about zero, so that bids start at `initial_bid` or
/// at the warm start.
pub fn initial_actor(spec: &PolicySpec, seed: u64) -> Vec<f32> {
    if let Some(start) = for_spec(spec) {
        return start;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(0xAC70);
    spec.actor_shape().initial(&mut rng, 0.02, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Policy;

    #[test]
    fn the_start_is_of_this_version_and_used_where_it_fits() {
        let shipped = shipped().expect("scripts/pretrain makes a start of this version");
        let mut spec = (*shipped.spec).clone();
        spec.policy.shipped_start = true;
        assert_eq!(for_spec(&spec).as_ref(), Some(&shipped.actor));
        assert_eq!(initial_actor(&spec, 1), shipped.actor);
        let changes: [fn(&mut Policy); 5] = [
            |p| p.shipped_start = false,
            |p| p.hidden = 32,
            |p| p.outlook = false,
            |p| p.pacing = true,
            |p| p.replan = false,
        ];
        for change in changes {
            let mut other = spec.clone();
            change(&mut other.policy);
            assert_eq!(for_spec(&other), None);
        }
        assert!(BYTES.len() < 5 << 20);
    }
}
