//! Transfers numbers to a device and back.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

/// Uploads numbers as a flat tensor.
pub fn upload<B: Backend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}

/// Reads a tensor, row-major; waits for the device.
pub fn to_host<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().into_vec().expect("networks compute in f32")
}
