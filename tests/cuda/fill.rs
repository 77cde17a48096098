//! Weights that are the same on every backend, made on the host.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Bytes, DType, Shape, Tensor, TensorData, backend::Backend, bf16},
};

/// Gives every float parameter values that depend on its place in the module only, in a parameter
/// scope, so that the device's policy places it.
pub fn fill<B: Backend, M: Module<B>>(module: M, dtype: DType) -> M {
    let pattern = pattern(dtype);
    module.map(&mut Fill {
        count: 0,
        dtype,
        pattern,
    })
}

/// `elements` values of about the size of weights, that depend on `seed` only.
pub fn values(seed: u64, shape: Shape, dtype: DType) -> TensorData {
    cut(&pattern(dtype), seed, shape, dtype)
}

/// A prime, so that rows of a matrix differ.
const PATTERN: usize = 1_000_003;

fn pattern(dtype: DType) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let values = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.1
    });
    let values = values.take(PATTERN);
    match dtype {
        DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        DType::BF16 => values
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        other => panic!("no weights are made of {other:?}"),
    }
}

/// The pattern, over and over, from a place that depends on `seed`.
fn cut(pattern: &[u8], seed: u64, shape: Shape, dtype: DType) -> TensorData {
    let size = dtype.size();
    let bytes = shape.num_elements() * size;
    let start = (seed as usize).wrapping_mul(7919) % PATTERN * size;
    let mut data = Vec::with_capacity(bytes);
    data.extend_from_slice(&pattern[start..][..(pattern.len() - start).min(bytes)]);
    while data.len() < bytes {
        data.extend_from_slice(&pattern[..pattern.len().min(bytes - data.len())]);
    }
    TensorData {
        bytes: Bytes::from_bytes_vec(data),
        shape,
        dtype,
    }
}

struct Fill {
    count: u64,
    dtype: DType,
    pattern: Vec<u8>,
}

impl<B: Backend> ModuleMapper<B> for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.count += 1;
        let (shape, device) = (param.lazy_shape(), param.lazy_device());
        let data = cut(&self.pattern, self.count, shape, self.dtype);
        let dtype = self.dtype;
        let tensor = B::memory_persistent_allocations(&device, data, |data| {
            Tensor::from_data(data, (&device, dtype))
        });
        // Where gradients are followed.
        Param::initialized(param.id, tensor.require_grad())
    }
}
