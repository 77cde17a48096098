//! Weights that are the same on every backend, made on the host.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Shape, Tensor, TensorData, backend::Backend},
};

/// Gives every float parameter values that depend on its place in the module only, in a parameter
/// scope, so that the device's policy places it.
pub fn fill<B: Backend, M: Module<B>>(module: M, dtype: DType) -> M {
    module.map(&mut Fill { count: 0, dtype })
}

/// `elements` values of about the size of weights, from a counter.
pub fn values(seed: u64, shape: Shape) -> TensorData {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.1
    };
    let values: Vec<f32> = std::iter::repeat_with(next)
        .take(shape.num_elements())
        .collect();
    TensorData::new(values, shape)
}

struct Fill {
    count: u64,
    dtype: DType,
}

impl<B: Backend> ModuleMapper<B> for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.count += 1;
        let (shape, device) = (param.lazy_shape(), param.lazy_device());
        let data = values(self.count, shape);
        let dtype = self.dtype;
        let tensor = B::memory_persistent_allocations(&device, data, |data| {
            Tensor::from_data(data, (&device, dtype))
        });
        Param::initialized(param.id, tensor)
    }
}
