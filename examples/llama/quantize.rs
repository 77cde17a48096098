//! The linear layers in fewer bits.

use burn::{
    module::{Module, ModuleMapper, Param, Quantizer},
    tensor::{
        Tensor,
        backend::Backend,
        ops::QuantizedTensor,
        quantization::{
            BlockSize, Calibration, QTensorPrimitive, QuantLevel, QuantScheme, QuantValue,
        },
    },
};

use super::{model::Llama, walk::Walk};

/// Weights that share a scale, along a row; a row that is no multiple of it has one scale for all.
const BLOCK: u8 = 32;

/// How many bits a weight has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Bits {
    /// 8 bits, and a scale for every 32 weights
    Q8,
    /// 4 bits, and a scale for every 32 weights
    Q4,
}

/// Quantizes the matrices of all linear layers, one by one; embeddings, norms and biases stay as they are.
/// A matrix is computed with in the float type that is its device's default.
pub fn quantize<B: Backend>(model: Llama<B>, bits: Bits) -> Llama<B> {
    model.map(&mut Matrices {
        walk: Walk::default(),
        bits,
    })
}

struct Matrices {
    walk: Walk,
    bits: Bits,
}

impl<B: Backend> ModuleMapper<B> for Matrices {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.walk.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.walk.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !self.walk.is_linear_weight(D) {
            return param;
        }
        let row = param.lazy_shape()[D - 1];
        let mut quantizer = Quantizer {
            calibration: Calibration::MinMax,
            scheme: scheme::<B>(self.bits, row),
        };
        quantizer.map_float(param)
    }
}

fn scheme<B: Backend>(bits: Bits, row: usize) -> QuantScheme {
    let level = if row.is_multiple_of(usize::from(BLOCK)) {
        QuantLevel::Block(BlockSize::new([BLOCK]))
    } else {
        QuantLevel::Tensor
    };
    <QuantizedTensor<B> as QTensorPrimitive>::default_scheme()
        .with_level(level)
        .with_value(match bits {
            Bits::Q8 => QuantValue::Q8S,
            Bits::Q4 => QuantValue::Q4S,
        })
}
