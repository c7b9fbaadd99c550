//! `actors.count = "auto"`: the number of actors that leaves enough cores to the learner.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Maximum number of actors of a run.
pub const MOST_ACTORS: usize = 64;

/// Returns the number of actors for a number of cores: five of eight, rounded up.
///
/// With the default recipe the actors need from 1.0 (days of 60,000 requests) to 3.6 times (10,000) the CPU time of the learner
/// for the samples of its updates (`admix bench e2e`). With this split all cores are busy, and the evaluator takes a little
/// from both.
pub fn actors_for(cores: usize) -> usize {
    (cores * 5).div_ceil(8).clamp(1, MOST_ACTORS)
}

/// Reads a number of actors, or `"auto"`, which is resolved immediately: the resolved configuration contains a number.
pub fn number_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    deserializer.deserialize_any(NumberOrAuto)
}

struct NumberOrAuto;

impl Visitor<'_> for NumberOrAuto {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number of actors or \"auto\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
        match text {
            "auto" => Ok(actors_for(std::thread::available_parallelism().map_or(1, usize::from))),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<usize, E> {
        usize::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<usize, E> {
        usize::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_cores_has_actors_and_leaves_the_learner_some() {
        let counts: Vec<usize> = (1..=200).map(actors_for).collect();
        assert!(counts.iter().all(|n| (1..=MOST_ACTORS).contains(n)));
        assert!(counts.is_sorted(), "more cores, no fewer actors");
        for (cores, &actors) in (1..).zip(&counts) {
            assert!(cores < 3 || actors < cores, "{actors} actors on {cores} cores");
        }
    }
}
