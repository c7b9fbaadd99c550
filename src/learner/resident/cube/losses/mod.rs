//! Computes the gradients by the networks' outputs: returns, the expected policy gradient, distributional losses.
//!
//! The mathematics is that of [`crate::learner::loss`], with one unit for each number or request.
//! Credit by total equals credit by contract with all contracts as members of one return.

mod actor;
mod arguments;
mod critic;

use burn_cubecl::CubeRuntime;

use super::networks::{ByOutputs, Passes};
use super::update::Update;
use crate::gpu::numbers::Numbers;

use actor::{actor_kernel, contests_kernel};
use arguments::{PlacesLaunch, SizesLaunch};
use critic::{critic_kernel, returns_kernel, values_kernel};

/// Returns the gradients by the outputs, and if requested the losses of critic and actor and the ratios, to be summed.
pub fn gradients<R: CubeRuntime>(update: &Update<R>, passes: &Passes<R>) -> (ByOutputs<R>, Option<[Numbers<R>; 3]>) {
    let (layout, losses, weights) = (update.layout, update.losses, update.weights);
    let d = layout.dims;
    let segments = update.segments();
    let all = segments * d.steps;
    let batch = update.batch;
    let sizes = || SizesLaunch::new(all, d.steps, d.contracts, d.eligible, layout.requests, d.auctions, d.outputs);
    let at = |field: &std::ops::Range<usize>| segments * field.start;
    let places = || {
        PlacesLaunch::new(
            at(&layout.potential),
            at(&layout.last_potential),
            at(&layout.inverse_scale),
            at(&layout.rewards),
            at(&layout.auction_rewards),
            at(&layout.ends),
            at(&layout.contract),
            at(&layout.shift),
            at(&layout.low),
            at(&layout.penalty),
            at(&layout.ahead),
            at(&layout.spring),
            at(&layout.unit),
            at(&layout.click),
            at(&layout.gain),
            at(&layout.boost),
            at(&layout.auction_worth),
            at(&layout.auction_gain),
            at(&layout.auction_boost),
            at(&layout.active),
            at(&layout.shown),
            at(&layout.inverse_behaviour),
        )
    };
    let total = layout.by_total;
    let critic_weight = if total { weights.critic * d.contracts as f32 } else { weights.critic };
    let support = &losses.support;
    let (critic, last, scores) = (&passes.critic.outputs, &passes.last.outputs, &passes.actor.outputs);
    let pairs = all * d.contracts;
    let bidders = all * d.eligible;
    let requests = all * layout.requests;
    let credited = if total { 1 } else { d.contracts };
    let values = batch.empty(pairs + bidders + segments * d.contracts);
    assert_eq!(critic.len, (pairs + bidders) * d.outputs, "outputs for every row");
    assert_eq!(last.len, segments * d.contracts * d.outputs, "outputs for every row");
    assert_eq!(scores.len, all * d.actor_rows(), "outputs for every row");
    let [tops, sums, means, actor_losses, ratios] = [(); 5].map(|()| batch.empty(requests));
    let by = ByOutputs { states: batch.empty(pairs * d.outputs), actor: batch.empty(scores.len) };
    let returns = batch.empty(all * credited);
    let critic_losses = batch.empty(if update.with_sums { all * credited * d.outputs } else { 1 });
    let client = &batch.client;
    // SAFETY: the batch is laid out as `places` describes, outputs have the asserted sizes, results have the sizes that they
    // were created with; units beyond them end.
    unsafe {
        let (count, dim) = batch.units(values.len);
        values_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            critic.arg(),
            last.arg(),
            batch.arg(),
            support.arg(),
            values.arg(),
            sizes(),
            places(),
            losses.critic.averages_outputs(),
        );
        let (count, dim) = batch.units(requests);
        contests_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            scores.arg(),
            values.arg(),
            tops.arg(),
            sums.arg(),
            means.arg(),
            actor_losses.arg(),
            ratios.arg(),
            sizes(),
            places(),
            losses.factors(),
            d.score_auctions,
        );
        let (count, dim) = batch.units(by.actor.len);
        actor_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            scores.arg(),
            values.arg(),
            tops.arg(),
            sums.arg(),
            means.arg(),
            by.actor.arg(),
            sizes(),
            places(),
            losses.factors(),
            weights.actor,
            d.score_auctions,
        );
        let (count, dim) = batch.units(segments * credited);
        returns_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            values.arg(),
            ratios.arg(),
            returns.arg(),
            sizes(),
            places(),
            losses.factors(),
            total,
        );
        let (count, dim) = batch.units(all * credited * d.outputs);
        critic_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            critic.arg(),
            last.arg(),
            values.arg(),
            returns.arg(),
            support.arg(),
            by.states.arg(),
            critic_losses.arg(),
            sizes(),
            places(),
            losses.factors(),
            losses.atoms(),
            critic_weight,
            losses.critic,
            total,
            update.with_sums,
        );
    }
    (by, update.with_sums.then_some([critic_losses, actor_losses, ratios]))
}
