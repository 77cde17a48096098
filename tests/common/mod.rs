//! What several tests use.

use burn::{
    module::Quantizer,
    tensor::quantization::{Calibration, QuantLevel, QuantScheme, QuantValue},
};

/// Quantizes whole tensors, by their least and greatest element.
pub fn quantizer(value: QuantValue) -> Quantizer {
    Quantizer {
        calibration: Calibration::MinMax,
        scheme: QuantScheme::default()
            .with_value(value)
            .with_level(QuantLevel::Tensor),
    }
}
