//! Forward and backward passes of both networks.

use std::ops::Range;

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;

use crate::env::FEATURES;
use crate::gpu::layers::{Layer, Parts};
use crate::gpu::numbers::{Cube, Numbers};
use crate::learner::networks::Flat;

use super::super::super::networks::Networks;
use super::super::layout::Layout;
use super::embeddings;
use super::update::Update;

/// Returns the three layers of a network.
fn layers(flat: &Flat) -> [Layer; 3] {
    let layers = &flat.parts[flat.shape.tables.len()..];
    let layer = |i: usize| {
        let (weights, bias) = (&layers[2 * i], &layers[2 * i + 1]);
        assert_eq!(weights.range().end, bias.at, "the bias lies behind the weights");
        Layer { inputs: weights.rows, outputs: weights.columns, at: weights.at }
    };
    [layer(0), layer(1), layer(2)]
}

/// Positions of rows in a segment: their features, and their ids.
struct RowFields {
    features: Range<usize>,
    ids: Range<usize>,
}

impl RowFields {
    fn states(layout: &Layout) -> Self {
        Self { features: layout.states.clone(), ids: layout.state_ids.clone() }
    }

    fn after(layout: &Layout) -> Self {
        Self { features: layout.after.clone(), ids: layout.after_ids.clone() }
    }

    fn last(layout: &Layout) -> Self {
        Self { features: layout.last.clone(), ids: layout.last_ids.clone() }
    }

    fn actor(layout: &Layout) -> Self {
        Self { features: layout.actor.clone(), ids: layout.actor_ids.clone() }
    }
}

/// Rows to infer, in an array.
struct Inputs<R: CubeRuntime> {
    numbers: Numbers<R>,
    at: usize,
    rows: usize,
}

/// Activations of rows in a network.
pub struct Pass<R: CubeRuntime> {
    inputs: Inputs<R>,
    first: Numbers<R>,
    second: Numbers<R>,
    pub outputs: Numbers<R>,
}

fn pass<R: CubeRuntime>(flat: &Flat, params: &Numbers<R>, inputs: Inputs<R>) -> Pass<R> {
    let rows = inputs.rows;
    let [l1, l2, l3] = layers(flat);
    let first = l1.forward(params, (&inputs.numbers, inputs.at), rows, true);
    let second = l2.forward(params, (&first, 0), rows, true);
    let outputs = l3.forward(params, (&second, 0), rows, false);
    Pass { inputs, first, second, outputs }
}

/// Outputs of the networks for a batch.
pub struct Passes<R: CubeRuntime> {
    /// The critic before each step, then after each display.
    pub critic: Pass<R>,
    /// The target critic after each segment.
    pub last: Pass<R>,
    pub actor: Pass<R>,
}

/// Gradients by the networks' outputs.
pub struct ByOutputs<R: CubeRuntime> {
    /// Gradients by the critic's outputs before each step.
    pub states: Numbers<R>,
    pub actor: Numbers<R>,
}

/// Returns the input rows of a network from a range of features.
fn inputs<R: CubeRuntime>(update: &Update<R>, (flat, params): (&Flat, &Numbers<R>), fields: RowFields) -> Inputs<R> {
    let segments = update.segments();
    let rows = segments * fields.features.len() / FEATURES;
    let batch = update.batch;
    let at = segments * fields.features.start;
    if flat.shape.tables.is_empty() {
        return Inputs { numbers: batch.clone(), at, rows };
    }
    Inputs { numbers: embeddings::rows(flat, params, batch, (at, segments * fields.ids.start), rows), at: 0, rows }
}

/// Infers a batch.
pub fn infer<R: CubeRuntime>(update: &Update<R>) -> Passes<R> {
    let layout = update.layout;
    let Networks { actor_flat, critic_flat, actor, critic } = update.networks;
    let through = |flat: &Flat, params: &Tensor<Cube<R>, 1>, fields: RowFields| {
        let params = Numbers::of(params);
        pass(flat, &params, inputs(update, (flat, &params), fields))
    };
    // The rows before each step and after each display are adjacent.
    let (states, after) = (RowFields::states(layout), RowFields::after(layout));
    let both = RowFields { features: states.features.start..after.features.end, ids: states.ids.start..after.ids.end };
    Passes {
        critic: through(critic_flat, &critic.at.params, both),
        last: through(critic_flat, &critic.at.follower, RowFields::last(layout)),
        actor: through(actor_flat, &actor.at.params, RowFields::actor(layout)),
    }
}

/// A gradient by the parameters of a network.
type Gradient<R> = Tensor<Cube<R>, 1>;

/// Returns the gradients by the parameters of a network; `by` are those by the outputs of the first rows of a pass, whose ids
/// begin at `ids_at` in the batch.
fn gradients<R: CubeRuntime>(
    (flat, params): (&Flat, &Tensor<Cube<R>, 1>),
    pass: &Pass<R>,
    by: &Numbers<R>,
    (batch, ids_at): (&Numbers<R>, usize),
) -> Gradient<R> {
    let net = Numbers::of(params);
    let [l1, l2, l3] = layers(flat);
    let rows = by.len / flat.shape.outputs;
    let by_second = l3.back(&net, by, rows, Some(&pass.second));
    let by_first = l2.back(&net, &by_second, rows, Some(&pass.first));
    let parts = Parts::new(by, rows, flat.shape.len());
    parts.add(l1, (&pass.inputs.numbers, pass.inputs.at), &by_first, rows);
    parts.add(l2, (&pass.first, 0), &by_second, rows);
    parts.add(l3, (&pass.second, 0), by, rows);
    if !flat.shape.tables.is_empty() {
        let embedded = Layer { inputs: l1.inputs - FEATURES, outputs: l1.outputs, at: l1.at + FEATURES * l1.outputs };
        let by_embedded = embedded.back(&net, &by_first, rows, None);
        embeddings::gradients(flat, (batch, ids_at), &by_embedded, (&parts.numbers, parts.rows), rows);
    }
    parts.sum().flat()
}

/// Returns the gradients by the parameters of the critic, and of the actor if it learns.
pub fn back<R: CubeRuntime>(
    update: &Update<R>,
    passes: &Passes<R>,
    by: &ByOutputs<R>,
) -> (Gradient<R>, Option<Gradient<R>>) {
    let (layout, batch) = (update.layout, update.batch);
    let segments = update.segments();
    let Networks { actor_flat, critic_flat, actor, critic } = update.networks;
    let ids = |fields: RowFields| (batch, segments * fields.ids.start);
    let critic =
        gradients((critic_flat, &critic.at.params), &passes.critic, &by.states, ids(RowFields::states(layout)));
    let actor = update
        .train_actor
        .then(|| gradients((actor_flat, &actor.at.params), &passes.actor, &by.actor, ids(RowFields::actor(layout))));
    (critic, actor)
}
