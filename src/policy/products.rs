//! Matrix products in single precision, on every device.
//!
//! Left to itself burn picks the fastest product, and on a GPU with tensor cores that is one which rounds its factors to eleven bits
//! (TF32): the losses of a hundred updates are then off by up to 1.5e-3, where the CPU's are repeated within 1e-4. So a GPU is
//! told which kernel to take. These networks are small: what an update waits for there is not arithmetic.

use burn::backend::Flex;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, FloatTensorOps as _};
use burn::tensor::{Shape, Tensor, TensorPrimitive};
use burn_cubecl::kernel::matmul::init_matmul_output;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput as _, TensorIr};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::{Strategy, launch_ref};
use cubek::matmul::routines::BlueprintStrategy;
use cubek::std::InputBinding;

/// Rows that a part of a sum over rows has at least.
const PART: usize = 128;

/// A backend that multiplies matrices in single precision.
pub trait Products: Backend {
    /// Whether a product is one kernel, in which only its results are worked out side by side: a sum over many rows then has to be
    /// cut into parts, or most of the device waits.
    const SIDE_BY_SIDE: bool;

    /// The product of `[.., m, k]` and `[.., k, n]`.
    fn single_precision(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The product of `[.., m, k]` and `[.., k, n]`.
pub fn product<B: Products, const D: usize>(lhs: Tensor<B, D>, rhs: Tensor<B, D>) -> Tensor<B, D> {
    let primitive = |t: Tensor<B, D>| t.into_primitive().tensor();
    Tensor::from_primitive(TensorPrimitive::Float(B::single_precision(primitive(lhs), primitive(rhs))))
}

/// The product of `lhs` transposed and `rhs`, a sum over their rows.
///
/// # Shapes
/// - lhs: `[rows, m]`, rhs: `[rows, n]`, result: `[m, n]`
pub fn product_over_rows<B: Products>(lhs: Tensor<B, 2>, rhs: Tensor<B, 2>) -> Tensor<B, 2> {
    let ([rows, m], [_, n]) = (lhs.dims(), rhs.dims());
    let parts = if B::SIDE_BY_SIDE { parts(rows) } else { 1 };
    if parts == 1 {
        return product(lhs.transpose(), rhs);
    }
    let by_part = product(lhs.reshape([parts, rows / parts, m]).swap_dims(1, 2), rhs.reshape([parts, rows / parts, n]));
    by_part.sum_dim(0).reshape([m, n])
}

/// Equal parts that so many rows are cut into: as many as there can be of at least [`PART`] rows.
fn parts(rows: usize) -> usize {
    (1..=(rows / PART).max(1)).rev().find(|parts| rows.is_multiple_of(*parts)).unwrap_or(1)
}

impl Products for Flex {
    const SIDE_BY_SIDE: bool = false;

    fn single_precision(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, B: BoolElement> Products for CubeBackend<R, F, I, B> {
    const SIDE_BY_SIDE: bool = true;

    fn single_precision(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let out = init_matmul_output(&lhs, &rhs, lhs.dtype);
        let launch = |strategy: Strategy| {
            let (lhs, rhs) = (lhs.clone(), rhs.clone());
            let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
                lhs: lhs.dtype.into(),
                rhs: rhs.dtype.into(),
                out: out.dtype.into(),
            });
            let binding = |t: burn_cubecl::tensor::CubeTensor<R>| {
                let dtype = t.dtype;
                InputBinding::new(t.binding(), dtype.into())
            };
            launch_ref(&strategy, &out.client, binding(lhs), binding(rhs), out.clone().binding(), &mut types)
        };
        // Tiles in registers; where a shape has none that fit, a plain loop for each result, which always works.
        launch(Strategy::SimpleUnit(BlueprintStrategy::Inferred(Default::default())))
            .or_else(|_| launch(Strategy::Naive))
            .expect("a plain matrix product can be launched");
        out
    }
}

/// A product that waits in a stream of operations for its turn.
#[derive(Debug)]
struct Queued<B> {
    description: CustomOpIr,
    backend: std::marker::PhantomData<fn() -> B>,
}

impl<B: FusionBackend + Products> Operation<B::FusionRuntime> for Queued<B> {
    fn execute(&self, handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>) {
        let ([lhs, rhs], [out]) = self.description.as_fixed();
        let (lhs, rhs) = (handles.get_float_tensor::<B>(lhs), handles.get_float_tensor::<B>(rhs));
        handles.register_float_tensor::<B>(&out.id, B::single_precision(lhs, rhs));
    }
}

impl<B: FusionBackend + Products> Products for Fusion<B> {
    const SIDE_BY_SIDE: bool = B::SIDE_BY_SIDE;

    fn single_precision(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let client = lhs.client.clone();
        let streams = OperationStreams::with_inputs([&lhs, &rhs]);
        let mut shape: Vec<usize> = lhs.shape.to_vec();
        let last = shape.len() - 1;
        shape[last] = rhs.shape[last];
        let out = TensorIr::uninit(client.create_empty_handle(), Shape::from(shape), lhs.dtype);
        let description = CustomOpIr::new("product", &[lhs.into_ir(), rhs.into_ir()], &[out]);
        let operation = Queued::<B> { description: description.clone(), backend: std::marker::PhantomData };
        client.register(streams, OperationIr::Custom(description), operation).output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_equal_parts() {
        for (rows, expected) in [(1, 1), (127, 1), (128, 1), (256, 2), (15_360, 120), (4096, 32), (509, 1), (510, 3)] {
            assert_eq!(parts(rows), expected, "{rows} rows");
        }
    }
}
