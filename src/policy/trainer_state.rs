//! State that training changes, as flat vectors on the host: kept by snapshots and restored by any trainer.

use serde::{Deserialize, Serialize};

/// Networks and optimisers, flat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    pub actor: Vec<f32>,
    pub averaged: Vec<f32>,
    pub critic: Vec<f32>,
    pub target: Vec<f32>,
    pub actor_adam: AdamState,
    pub critic_adam: AdamState,
}

/// Adam's moments and step count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AdamState {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
    pub steps: i32,
}
