//! What the trainer asks of a backend, in the plain form of tensor operations.

use burn::backend::Flex;
use burn::tensor::{Int, Tensor, TensorData};

use super::super::networks::{Networks, upload};
use super::super::optimiser::Optimise;
use super::layout::Layout;
use super::loss::{OutputGradients, Outputs, TensorLosses, Weights};
use super::record::Record;

/// What gradients are worked out from.
#[derive(Clone, Copy)]
pub struct Update<'a, B: Resident> {
    pub layout: &'a Layout,
    pub losses: &'a TensorLosses<B>,
    pub networks: &'a Networks<B>,
    /// As [`Resident::gather`] gives it.
    pub batch: &'a Tensor<B, 1>,
    pub weights: Weights,
    pub train_actor: bool,
    pub with_sums: bool,
}

/// Gradients by the parameters, and the sums of [`OutputGradients`].
pub struct Gradients<B: Resident> {
    pub critic: Tensor<B, 1>,
    pub actor: Option<Tensor<B, 1>>,
    pub sums: Option<[Tensor<B, 1>; 3]>,
}

/// A backend that a replay pool can live on.
///
/// What is written here is what each function does; a GPU does the same with kernels of its own (`cube`).
pub trait Resident: Optimise {
    /// Expands records into rows at their places in the pool, which are all different.
    fn write(
        mut pool: Tensor<Self, 1>,
        records: Vec<f32>,
        places: &[usize],
        (record, layout): (&Record, &Layout),
    ) -> Tensor<Self, 1> {
        for (from, place) in records.chunks_exact(record.width).zip(places) {
            let mut row = vec![0.0; layout.width];
            record.expand(from, layout, &mut row);
            let row = upload::<Self>(row, &pool.device());
            pool = pool.slice_assign(place * layout.width..(place + 1) * layout.width, row);
        }
        pool
    }

    /// The rows at `places` as a batch, laid out by [`Layout::sources`].
    fn gather(
        pool: &Tensor<Self, 1>,
        places: &[usize],
        sources: &Tensor<Self, 1, Int>,
        width: usize,
    ) -> Tensor<Self, 1> {
        let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
        let len = places.len();
        let places: Tensor<Self, 1, Int> = Tensor::from_data(TensorData::new(places, [len]), &pool.device());
        let width = width as i32;
        let rows = places.select(0, sources.clone().div_scalar(width)).mul_scalar(width);
        pool.clone().select(0, rows + sources.clone().remainder_scalar(width))
    }

    /// Infers a batch, works out its losses and goes back through the networks.
    fn gradients(update: Update<Self>) -> Gradients<Self> {
        let Update { layout, losses, networks, batch, weights, train_actor, with_sums } = update;
        let fields = layout.cut(batch);
        let Networks { actor_flat, critic_flat, actor, critic } = networks;
        let critic_net = critic_flat.cut(&critic.at.params);
        let actor_net = actor_flat.cut(&actor.at.params);
        let (states, scores) = (critic_net.pass(&fields.states), actor_net.pass(&fields.actor));
        let outputs = Outputs {
            states: states.outputs.clone(),
            actor: scores.outputs.clone(),
            after: critic_net.forward(&fields.after),
            last: critic_flat.cut(&critic.at.follower).forward(&fields.last),
        };
        let OutputGradients { states: by_states, actor: by_scores, sums } =
            losses.batch(&fields, &outputs, weights, with_sums);
        Gradients {
            critic: critic_flat.join(critic_net.gradients(states, by_states)),
            actor: train_actor.then(|| actor_flat.join(actor_net.gradients(scores, by_scores))),
            sums,
        }
    }
}

impl Resident for Flex {}
