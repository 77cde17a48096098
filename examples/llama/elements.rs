//! Numbers as a checkpoint has them.

use burn::tensor::{TensorData, bf16};

/// The bytes of a tensor's numbers as bf16.
pub fn encode(data: TensorData) -> Vec<u8> {
    data.iter::<bf16>().flat_map(bf16::to_le_bytes).collect()
}
