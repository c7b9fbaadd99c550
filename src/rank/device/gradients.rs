//! The gradients of a batch on a GPU, for whoever has rows and parameters on the host.
//!
//! Several ranks exchange gradients through the host, and each moves its own parameters there. So a rank's GPU gets parameters and rows with
//! every batch, and gives the gradients of both back. Parameters that are moved on the host stay equal on all ranks whatever their GPUs are.

use std::sync::Arc;

use burn_cubecl::CubeRuntime;

use crate::gpu::numbers::Numbers;
use crate::sparse::Lookup;
use crate::values::Block;
use crate::values::net::Losses;

use super::dense::Products;
use super::slots::Shared;

/// The network of the value model on a GPU, for one batch after another.
pub trait DeviceGradients: Send {
    /// Computes the layers below the products for a batch with these parameters, which needs no rows.
    fn begin(&mut self, parameters: &[f32], block: &Block);

    /// Computes the losses of the batch that has begun; `rows` are those of its unique ids, one after another. Replaces `by_rows` and
    /// `gradient` by the gradients of the rows and of the parameters. `None` if a loss or the gradient of a row is not finite.
    fn finish(
        &mut self,
        block: &Block,
        lookup: &Lookup,
        rows: &[f32],
        by_rows: &mut Vec<f32>,
        gradient: &mut Vec<f32>,
    ) -> Option<Losses>;
}

/// The one batch under way.
const SLOT: usize = 0;

/// The network with the parameters of the batch that has begun.
pub struct Gradients<R: CubeRuntime> {
    products: Products<R>,
    shared: Arc<Shared<R>>,
    dim: usize,
    parameters: Option<Numbers<R>>,
}

impl<R: CubeRuntime> Gradients<R> {
    /// Products that have what they `shared` with nobody else; rows have `dim` floats.
    pub fn new(products: Products<R>, shared: Arc<Shared<R>>, dim: usize) -> Self {
        Self { products, shared, dim, parameters: None }
    }
}

impl<R: CubeRuntime> DeviceGradients for Gradients<R>
where
    R::Device: Send,
{
    fn begin(&mut self, parameters: &[f32], block: &Block) {
        let parameters = self.products.beside.upload(bytemuck::cast_slice(parameters));
        self.products.begin(&parameters, block);
        self.parameters = Some(parameters);
    }

    fn finish(
        &mut self,
        block: &Block,
        lookup: &Lookup,
        rows: &[f32],
        by_rows: &mut Vec<f32>,
        gradient: &mut Vec<f32>,
    ) -> Option<Losses> {
        assert_eq!(rows.len(), lookup.unique.len() * self.dim, "a row for each id");
        let parameters = self.parameters.take().expect("the batch has begun");
        let upload = |words: &[u32]| self.products.beside.upload(words);
        // The places are those of rows in an arena, of which there is none.
        self.shared.slot(SLOT).gathered = Some((upload(bytemuck::cast_slice(rows)), upload(&[0])));
        self.products.interact(&parameters, SLOT, block, lookup);
        let of_rows = self.shared.slot(SLOT).gradients.take().expect("they were computed");
        // Rows go to the host while the rest is computed.
        let of_rows = self.products.reader.begin(&of_rows);
        let of_parameters = self.products.back(&parameters);
        let of_parameters = self.products.reader.begin(&of_parameters);
        let losses = self.products.losses(true);
        (*by_rows, *gradient) = (bytemuck::cast_vec(of_rows()), bytemuck::cast_vec(of_parameters()));
        losses
    }
}
