use std::{fmt, sync::OnceLock};

use burn_backend::{DType, TensorData};
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

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.layout.shape.num_elements()
    }

    /// The tensor's data, sharing the host memory.
    pub fn data(&self) -> TensorData {
        TensorData {
            bytes: self.buffer.to_bytes(),
            shape: self.layout.shape.clone(),
            dtype: self.stored,
        }
    }

    /// The tensor for one operation: over the host memory in place, or a copy on the device.
    pub fn read(&self, reading: Reading) -> K::Primitive {
        let in_place = B::access(&self.buffer, reading) == Access::InPlace;
        if in_place && let Some(alias) = self.alias() {
            return alias;
        }
        if let Some(handle) = B::stage(&self.buffer, &self.layout, &self.device) {
            return self.tensor(handle);
        }
        if let Some(alias) = self.alias() {
            return alias;
        }
        match B::upload(&self.buffer, &self.layout, &self.device) {
            Some(handle) => self.tensor(handle),
            None => K::from_data(self.data(), &self.device),
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
            let mut data = self.data();
            data.bytes = burn_backend::Bytes::from_bytes_vec(data.bytes.to_vec());
            K::from_data(data, &self.device)
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

impl<B: OffloadTarget, K: Kind<B>> fmt::Debug for Hosted<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted")
            .field("buffer", &self.buffer)
            .field("shape", &self.layout.shape)
            .field("dtype", &self.layout.dtype)
            .finish()
    }
}
