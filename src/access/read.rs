use std::{fmt, sync::OnceLock};

use burn_backend::{Bytes, DType, Shape, TensorData};
use burn_ir::TensorHandle;

use crate::{
    error::OffloadError,
    host::{HostBuffer, Op},
    target::{Access, Kind, Layout, OffloadTarget},
};

use super::Reading;

/// A tensor's bytes in host memory, and the ways to read them.
pub struct Hosted<B: OffloadTarget, K: Kind<B>> {
    buffer: HostBuffer,
    layout: Layout,
    /// The element type as the bytes have it; a quantized tensor's packing may differ on the device.
    stored: DType,
    device: B::Device,
    /// The tensor over the bytes in place, made at the first use, where one serves for all.
    alias: OnceLock<Option<K::Primitive>>,
}

impl<B: OffloadTarget, K: Kind<B>> Hosted<B, K> {
    /// Bytes of a tensor of the given layout, `stored` as element type.
    pub fn new(buffer: HostBuffer, layout: Layout, stored: DType, device: B::Device) -> Self {
        Self {
            buffer,
            layout,
            stored,
            device,
            alias: OnceLock::new(),
        }
    }

    /// The host memory.
    pub fn buffer(&self) -> &HostBuffer {
        &self.buffer
    }

    /// The host memory, without the tensor over it.
    pub fn into_buffer(self) -> HostBuffer {
        self.buffer
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.layout.shape.num_elements()
    }

    /// The tensor's data: shares the host memory where that has it in row-major order.
    pub fn data(&self) -> TensorData {
        let stored = self.stored_data();
        if !self.layout.transposed {
            return stored;
        }
        let bytes = transposed(&stored.bytes, &stored.shape, stored.dtype.size());
        TensorData {
            bytes: Bytes::from_bytes_vec(bytes),
            shape: self.layout.shape.clone(),
            ..stored
        }
    }

    /// The data as it lies in the host memory, which it shares.
    fn stored_data(&self) -> TensorData {
        TensorData {
            bytes: self.buffer.to_bytes(),
            shape: self.layout.stored_shape(),
            dtype: self.stored,
        }
    }

    /// The tensor for one operation: over the host memory in place, or a copy on the device.
    pub fn read(&self, reading: Reading) -> K::Primitive {
        let in_place = B::access(&self.buffer, reading) == Access::InPlace;
        if in_place && let Some(alias) = self.alias() {
            tracing::trace!("in place");
            return alias;
        }
        if let Some(handle) = B::stage(&self.buffer, &self.layout, &self.device) {
            tracing::trace!("a copy in the staging memory");
            return self.tensor(handle);
        }
        if let Some(alias) = self.alias() {
            tracing::trace!("in place, for want of staging memory");
            return alias;
        }
        tracing::trace!("a copy of its own");
        match B::upload(&self.buffer, &self.layout, &self.device) {
            Some(handle) => self.tensor(handle),
            None => K::from_stored(self.stored_data(), &self.layout, &self.device),
        }
    }

    fn alias(&self) -> Option<K::Primitive> {
        let make = || {
            let handle = B::alias(&self.buffer, &self.layout, &self.device)?;
            Some(self.tensor(handle))
        };
        if B::ALIAS_EVERY_USE {
            return make();
        }
        self.alias.get_or_init(make).clone()
    }

    /// A tensor of its own on the device, as a parameter that was never offloaded has it. It is there
    /// when this returns.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Read`] when the device has no room or fails.
    pub fn upload(&self) -> Result<K::Primitive, OffloadError> {
        let copy = || {
            let _op = Op::enter();
            if let Some(handle) = B::upload(&self.buffer, &self.layout, &self.device) {
                return self.tensor(handle);
            }
            // The data shares the host memory, and a backend on the CPU would keep it.
            let mut data = self.stored_data();
            data.bytes = Bytes::from_bytes_vec(data.bytes.to_vec());
            K::from_stored(data, &self.layout, &self.device)
        };
        let tensor = B::memory_persistent_allocations(&self.device, (), |()| copy());
        B::verify(K::erase(tensor.clone()), &self.device)?;
        Ok(tensor)
    }

    fn tensor(&self, handle: B::Handle) -> K::Primitive {
        K::from_handle(TensorHandle {
            handle,
            shape: self.layout.shape.clone(),
        })
    }
}

/// The matrices of the last two dimensions, transposed. Elements have `size` bytes.
fn transposed(bytes: &[u8], shape: &Shape, size: usize) -> Vec<u8> {
    /// Rows and columns at a time, so that both ends stay in the processor's cache.
    const TILE: usize = 32;
    let &[.., rows, columns] = shape.as_slice() else {
        return bytes.to_vec();
    };
    let mut out = vec![0; bytes.len()];
    let matrix = rows * columns * size;
    if matrix == 0 {
        return out;
    }
    for (from, to) in bytes.chunks_exact(matrix).zip(out.chunks_exact_mut(matrix)) {
        for first_row in (0..rows).step_by(TILE) {
            for first_column in (0..columns).step_by(TILE) {
                for row in first_row..rows.min(first_row + TILE) {
                    for column in first_column..columns.min(first_column + TILE) {
                        let (at, new) = (row * columns + column, column * rows + row);
                        to[new * size..][..size].copy_from_slice(&from[at * size..][..size]);
                    }
                }
            }
        }
    }
    out
}

impl<B: OffloadTarget, K: Kind<B>> fmt::Debug for Hosted<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted")
            .field("buffer", &self.buffer)
            .field("shape", &self.layout.shape)
            .field("dtype", &self.layout.dtype)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_matrix_is_transposed_and_twice_gives_it_back() {
        let shape = Shape::from([2, 70, 45]);
        let elements: Vec<u8> = (0..shape.num_elements())
            .flat_map(|at| (at as u16).to_le_bytes())
            .collect();
        let turned = transposed(&elements, &shape, 2);
        let at = |matrix: usize, row: usize, column: usize| {
            let at = (matrix * 45 * 70 + row * 70 + column) * 2;
            u16::from_le_bytes([turned[at], turned[at + 1]])
        };
        assert_eq!(at(0, 44, 69), 69 * 45 + 44);
        assert_eq!(at(1, 3, 50), 70 * 45 + 50 * 45 + 3);
        assert_eq!(transposed(&turned, &Shape::from([2, 45, 70]), 2), elements);
    }
}
