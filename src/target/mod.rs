//! What a wrapped backend offers for hosting tensors: [`OffloadTarget`].
//!
//! The default methods are the portable way: bytes in pageable host memory, handed to the backend
//! as `TensorData` whenever an operation needs them. A backend with its own memory says more; see
//! the `cuda` module here.

mod kind;
mod portable;

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod cuda;

use std::sync::Arc;

use burn_backend::{
    BackendTypes, DType, Shape,
    quantization::{QuantParam, QuantStore, params_shape},
    read_sync,
};
use burn_ir::{BackendIr, HandleKind};

pub use kind::{Bool, Float, Int, Kind, Quantized, View};

use crate::{
    access::Reading,
    error::OffloadError,
    host::{HostAllocator, HostBuffer, HostOptions, MemoryKind, PageableAllocator, Stats},
};

/// How kernels get at offloaded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Kernels read the host memory where it is.
    InPlace,
    /// The bytes are copied to the device when an operation needs them, and dropped after it.
    Staged,
}

/// One device's host memory: who makes it and how it is read.
#[derive(Clone)]
pub struct HostAccess {
    /// Makes the host memory.
    pub allocator: Arc<dyn HostAllocator>,
    /// How kernels read it.
    pub access: Access,
    /// Why it is not read in place, where that could be expected.
    pub fallback: Option<String>,
}

impl HostAccess {
    /// Pageable memory, copied when needed: what every backend can do.
    pub fn portable() -> Self {
        Self {
            allocator: Arc::new(PageableAllocator),
            access: Access::Staged,
            fallback: None,
        }
    }

    /// The kind of memory new parameters get.
    pub fn memory(&self) -> MemoryKind {
        self.allocator.kind()
    }
}

/// The shape and element type of hosted bytes. The elements are dense; for a quantized tensor the packed
/// values come first and the scales after them, as in `TensorData`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The shape, in elements.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// Whether the matrices of the last two dimensions lie column by column, as a checkpoint has them
    /// that keeps weights the other way round; row by row where not.
    pub transposed: bool,
}

impl Layout {
    /// Elements in row-major order.
    pub fn dense(shape: Shape, dtype: DType) -> Self {
        Self {
            shape,
            dtype,
            transposed: false,
        }
    }

    /// The shape that has the elements in row-major order.
    pub fn stored_shape(&self) -> Shape {
        let transposed = self.transposed.then(|| View::Transpose.shape(&self.shape));
        transposed.flatten().unwrap_or_else(|| self.shape.clone())
    }

    /// The bytes of a dense tensor of this layout; for a quantized one, of its packed values and its
    /// scales. A backend may keep quantized values less densely.
    pub fn bytes(&self) -> u64 {
        let elements = self.shape.num_elements() as u64;
        let DType::QFloat(scheme) = self.dtype else {
            return elements * self.dtype.size() as u64;
        };
        let scales = params_shape(&self.shape, scheme.level).num_elements() as u64;
        let scale = match scheme.param {
            QuantParam::F32 => 4,
            QuantParam::F16 | QuantParam::BF16 => 2,
            QuantParam::UE8M0 | QuantParam::UE4M3 => 1,
        };
        let values = match scheme.store {
            QuantStore::PackedU32(_) => elements.div_ceil(scheme.num_quants() as u64) * 4,
            QuantStore::Native | QuantStore::PackedNative(_) => {
                (elements * scheme.size_bits_value() as u64).div_ceil(8)
            }
        };
        values + scales * scale
    }
}

/// A backend whose tensors can be kept in host memory.
///
/// Every backend that implements Burn's [`BackendIr`] can be one with an empty `impl`:
///
/// ```ignore
/// impl OffloadTarget for MyBackend {}
/// ```
pub trait OffloadTarget: BackendIr {
    /// Opens the host memory of `device`, the best that `options` and the machine allow.
    ///
    /// # Errors
    ///
    /// [`OffloadError`] when the device cannot be used at all.
    fn open_host(
        device: &<Self as BackendTypes>::Device,
        options: HostOptions,
    ) -> Result<HostAccess, OffloadError> {
        let _ = (device, options);
        Ok(HostAccess::portable())
    }

    /// A tensor whose memory *is* `buffer`, where kernels can read that in place.
    ///
    /// The buffer lives at least as long as any tensor made from the handle, its views and the work
    /// queued on them; it is the buffer's own allocator that sees to this.
    fn alias(
        buffer: &HostBuffer,
        layout: &Layout,
        device: &<Self as BackendTypes>::Device,
    ) -> Option<Self::Handle> {
        let _ = (buffer, layout, device);
        None
    }

    /// Whether `alias` is to be asked at every use. Where it is not, its first answer serves for the
    /// buffer's life, on every thread.
    const ALIAS_EVERY_USE: bool = false;

    /// How one operation is to read `buffer`: in place, if `alias` can, or a copy.
    fn access(buffer: &HostBuffer, reading: Reading) -> Access {
        let _ = (buffer, reading);
        Access::InPlace
    }

    /// A copy of `buffer` on the device, for one operation of the calling thread, in memory that the
    /// backend keeps for such copies. `None` where it has none, or no room in it.
    fn stage(
        buffer: &HostBuffer,
        layout: &Layout,
        device: &<Self as BackendTypes>::Device,
    ) -> Option<Self::Handle> {
        let _ = (buffer, layout, device);
        None
    }

    /// Called when a thread has waited for the device, as a model's step does at its end: the time to
    /// copy ahead what the next step begins with.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Read`] when copying to the device failed since, and results may be wrong.
    fn end_of_step(device: &<Self as BackendTypes>::Device) -> Result<(), OffloadError> {
        let _ = device;
        Ok(())
    }

    /// What the device did to read offloaded tensors.
    fn stats(device: &<Self as BackendTypes>::Device) -> Stats {
        let _ = device;
        Stats::default()
    }

    /// A new tensor on the device, filled from `buffer` by the backend's own means. `None` leaves
    /// it to the portable way, through `TensorData`.
    fn upload(
        buffer: &HostBuffer,
        layout: &Layout,
        device: &<Self as BackendTypes>::Device,
    ) -> Option<Self::Handle> {
        let _ = (buffer, layout, device);
        None
    }

    /// Has the backend let go of its own host copies of data it was given, once they are on the
    /// device. Called now and then while resident parameters are made.
    fn release_uploads(device: &<Self as BackendTypes>::Device) {
        let _ = device;
    }

    /// Returns when the tensor's memory is known to exist and to be filled. Backends that only queue
    /// work report a failed allocation late.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Read`] when the device has no room for it, or fails.
    fn verify(
        tensor: HandleKind<Self>,
        device: &<Self as BackendTypes>::Device,
    ) -> Result<(), OffloadError> {
        drop(tensor);
        Self::sync(device).map_err(|err| OffloadError::Read {
            reason: err.to_string(),
        })
    }

    /// Copies a tensor's elements into `out`, dense and in row-major order, and returns when they
    /// are there. `out` has the tensor's size exactly.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Read`] when the device fails.
    fn download(tensor: HandleKind<Self>, out: &mut [u8]) -> Result<(), OffloadError> {
        let data = match tensor {
            HandleKind::Float(t) => read_sync(Self::float_into_data(t)),
            HandleKind::Int(t) => read_sync(Self::int_into_data(t)),
            HandleKind::Bool(t) => read_sync(Self::bool_into_data(t)),
            HandleKind::Quantized(t) => read_sync(Self::q_into_data(t)),
        }
        .map_err(|err| OffloadError::Read {
            reason: err.to_string(),
        })?;
        let data: &[u8] = &data.bytes;
        if data.len() != out.len() {
            return Err(OffloadError::Read {
                reason: format!(
                    "the backend gave {} bytes for a tensor of {}",
                    data.len(),
                    out.len()
                ),
            });
        }
        out.copy_from_slice(data);
        Ok(())
    }
}
