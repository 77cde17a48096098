use std::mem::MaybeUninit;

use burn_backend::{
    AllocationProperty, Bytes, DType, Shape, StreamId,
    quantization::{QParamTensor, QuantParam, QuantStore, QuantValue, params_shape},
    read_sync,
};
use burn_cubecl::{
    BoolElement, CubeBackend, FloatElement, IntElement,
    kernel::into_contiguous,
    tensor::{CubeTensor, QParams},
};
use burn_ir::{BackendIr, HandleKind};
use burn_std::{Metadata, tensor::contiguous_strides};
use cubecl::{
    Runtime,
    cuda::{CudaDevice, CudaRuntime},
    device::Device,
    server::{ComputeServer, CopyDescriptor, Handle},
};
use cubecl_common::{bytes::AllocationController, device_handle::DeviceHandle};
use cudarc::driver::sys;

use crate::{
    access::Reading,
    error::OffloadError,
    host::{HostBuffer, HostMemory, HostOptions, MemoryKind, Stats},
    target::{Access, HostAccess, Layout, OffloadTarget},
};

use super::{Server, device::resource, driver, memory::PinnedMemory, ring::Ring};

type Tensor = CubeTensor<CudaRuntime>;

impl<F, I, BT> OffloadTarget for CubeBackend<CudaRuntime, F, I, BT>
where
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
    Self: BackendIr<
            Device = CudaDevice,
            Handle: From<Tensor>,
            FloatTensorPrimitive = Tensor,
            IntTensorPrimitive = Tensor,
            BoolTensorPrimitive = Tensor,
            QuantizedTensorPrimitive = Tensor,
        >,
{
    fn open_host(device: &CudaDevice, options: HostOptions) -> Result<HostAccess, OffloadError> {
        driver::open(device, options)
    }

    fn alias(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        alias(buffer, layout, device).map(Into::into)
    }

    fn access(buffer: &HostBuffer, reading: Reading) -> Access {
        access(buffer, reading)
    }

    fn stage(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        stage(buffer, layout, device).map(Into::into)
    }

    fn end_of_step(device: &CudaDevice) -> Result<(), OffloadError> {
        end_of_step(device)
    }

    fn stats(device: &CudaDevice) -> Stats {
        Ring::get(device).map_or_else(Stats::default, |ring| ring.stats())
    }

    fn upload(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        upload(buffer, layout, device).map(Into::into)
    }

    fn release_uploads(device: &CudaDevice) {
        release_uploads(device);
    }

    fn verify(tensor: HandleKind<Self>, _device: &CudaDevice) -> Result<(), OffloadError> {
        verify(&any_kind(tensor))
    }

    fn download(tensor: HandleKind<Self>, out: &mut [u8]) -> Result<(), OffloadError> {
        download(any_kind(tensor), out)
    }
}

/// CubeCL has one tensor type for all kinds.
fn any_kind<B>(tensor: HandleKind<B>) -> Tensor
where
    B: BackendIr<
            FloatTensorPrimitive = Tensor,
            IntTensorPrimitive = Tensor,
            BoolTensorPrimitive = Tensor,
            QuantizedTensorPrimitive = Tensor,
        >,
{
    match tensor {
        HandleKind::Float(tensor)
        | HandleKind::Int(tensor)
        | HandleKind::Bool(tensor)
        | HandleKind::Quantized(tensor) => tensor,
    }
}

/// The tensor over the buffer in place. `None` where the buffer is not mapped, or its layout is not
/// one that kernels can be told of.
pub fn alias(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Tensor> {
    let memory = buffer.downcast::<PinnedMemory>()?;
    if memory.device() != device || !fits(buffer, layout) {
        return None;
    }
    let len = buffer.as_ref().len() as u64;
    let handle = memory.anchor()?.alias(memory.address(), len)?;
    tensor(handle, layout, device)
}

/// Whether the buffer has the bytes that kernels will read by this layout.
fn fits(buffer: &HostBuffer, layout: &Layout) -> bool {
    buffer.as_ref().len() as u64 == layout.bytes()
}

/// How one operation is to read the buffer.
pub fn access(buffer: &HostBuffer, reading: Reading) -> Access {
    let Some(memory) = buffer.downcast::<PinnedMemory>() else {
        return Access::Staged;
    };
    let mapped = matches!(memory.kind(), MemoryKind::Mapped | MemoryKind::MappedFile);
    if mapped && memory.ring().reads_in_place(buffer, reading) {
        Access::InPlace
    } else {
        Access::Staged
    }
}

/// A copy of the buffer in the staging memory. `None` where there is no room, and for pageable memory,
/// which the copy engine cannot read by itself.
pub fn stage(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Tensor> {
    let memory = buffer.downcast::<PinnedMemory>()?;
    if memory.device() != device || !fits(buffer, layout) {
        return None;
    }
    let handle = memory.ring().stage(buffer)?;
    tensor(handle, layout, device)
}

/// Copies ahead, and says whether staging works.
pub fn end_of_step(device: &CudaDevice) -> Result<(), OffloadError> {
    let Some(ring) = Ring::get(device) else {
        return Ok(());
    };
    ring.pump();
    ring.check()
}

/// A copy of the buffer in device memory of its own, on the current stream.
///
/// The bytes go to the copy engine straight from the buffer: `ComputeClient::create` would copy them
/// into pageable memory first.
pub fn upload(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Tensor> {
    if !fits(buffer, layout) {
        return None;
    }
    let len = buffer.as_ref().len();
    let stream = StreamId::current();
    let handle = Handle::new(stream, len as u64);
    let staged = tensor(handle.clone(), layout, device)?;
    let memory = handle.memory.clone();
    let copy = CopyDescriptor::new(handle.binding(), [len].into(), [1].into(), 1);
    let buffer = buffer.clone();
    DeviceHandle::<Server>::new(device.to_id()).submit(move |server| {
        server.initialize_memory(memory, len as u64, stream);
        // SAFETY: `buffer` lives until after `write`, which hands the bytes to the driver. Of pageable
        // memory the driver has its own copy when it returns; pinned memory that is let go while the
        // copy engine reads it is retired, and given back only when the context has finished its work.
        let bytes = unsafe { borrowed_bytes(buffer.as_ref()) };
        server.write(vec![(copy, bytes)], stream);
        drop(buffer);
    });
    Some(staged)
}

/// Has CubeCL drop what it keeps of the data it has uploaded on the current stream. It does so by
/// itself only when kernels run and more is uploaded, and then one batch late.
pub fn release_uploads(device: &CudaDevice) {
    let client = CudaRuntime::client(device);
    for _batch in ["the last one", "the one before"] {
        if let Err(err) = client.flush() {
            tracing::error!("the device failed while parameters were uploaded: {err}");
        }
    }
}

/// `Bytes` that read memory they do not own. The server keeps what it has copied from for longer than
/// it reads it, so they must not keep the buffer alive.
///
/// # Safety
///
/// Nobody reads the result once `bytes` is gone.
pub unsafe fn borrowed_bytes(bytes: &[u8]) -> Bytes {
    struct Borrowed(*const u8, usize);
    // SAFETY: the memory is only read, and is as good on any thread.
    unsafe impl Send for Borrowed {}
    // SAFETY: as above.
    unsafe impl Sync for Borrowed {}

    impl AllocationController for Borrowed {
        fn alloc_align(&self) -> usize {
            1
        }
        fn property(&self) -> AllocationProperty {
            AllocationProperty::Pinned
        }
        unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
            unreachable!("bytes on their way to the device are not written")
        }
        fn memory(&self) -> &[MaybeUninit<u8>] {
            // SAFETY: the caller of `borrowed_bytes` promised that the memory is there.
            unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
        }
    }

    let controller = Box::new(Borrowed(bytes.as_ptr(), bytes.len()));
    // SAFETY: all of the slice is initialised.
    unsafe { Bytes::from_controller(controller, bytes.len()) }
}

fn failed(reason: impl ToString) -> OffloadError {
    OffloadError::Read {
        reason: reason.to_string(),
    }
}

/// Waits until the tensor's memory is there and filled.
pub fn verify(tensor: &Tensor) -> Result<(), OffloadError> {
    // Makes the current stream wait for the one the tensor was made on.
    resource(&tensor.handle, &tensor.device)?;
    read_sync(tensor.client.sync()).map_err(failed)
}

/// Copies a tensor's elements to `out` and waits for it, through no other memory.
pub fn download(tensor: Tensor, out: &mut [u8]) -> Result<(), OffloadError> {
    let tensor = into_contiguous(tensor);
    verify(&tensor)?;
    let resource = resource(&tensor.handle, &tensor.device)?;
    let size = resource.resource().size;
    if size < out.len() as u64 {
        return Err(failed(format!(
            "its buffer has {size} bytes where {} are expected",
            out.len()
        )));
    }
    let context = driver::context(&tensor.device)?;
    context.bind_to_thread().map_err(failed)?;
    // SAFETY: the context is current on this thread. `resource` points to at least `out.len()` bytes
    // that `tensor` keeps alive, written by work that has finished; `out` is exclusively ours.
    let copied = unsafe {
        sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), resource.resource().ptr, out.len())
    };
    copied.result().map_err(failed)
}

/// The tensor of a layout over a handle that covers the bytes as a [`HostBuffer`] has them.
fn tensor(handle: Handle, layout: &Layout, device: &CudaDevice) -> Option<Tensor> {
    let client = CudaRuntime::client(device);
    let shape = layout.shape.clone();
    let DType::QFloat(scheme) = layout.dtype else {
        let mut strides = contiguous_strides(&layout.stored_shape());
        let rank = shape.rank();
        if layout.transposed && rank >= 2 {
            strides.swap(rank - 2, rank - 1);
        }
        return Some(CubeTensor::new(
            client,
            handle,
            Metadata::new(shape, strides),
            device.clone(),
            layout.dtype,
        ));
    };
    if layout.transposed {
        return None;
    }
    // The values as CubeCL packs them on upload, then the scales.
    let mut packed = shape.to_vec();
    let unit = match (scheme.store, scheme.value) {
        (QuantStore::PackedU32(0), _) => {
            let last = packed.last_mut()?;
            *last = last.div_ceil(scheme.num_quants());
            size_of::<u32>()
        }
        (QuantStore::Native, QuantValue::Q8F | QuantValue::Q8S) => size_of::<i8>(),
        _ => return None,
    };
    let packed = Shape::from(packed);
    let values = packed.num_elements() * unit;
    let scale_dtype = match scheme.param {
        QuantParam::F32 => DType::F32,
        QuantParam::F16 => DType::F16,
        QuantParam::BF16 => DType::BF16,
        QuantParam::UE8M0 | QuantParam::UE4M3 => DType::U8,
    };
    if !values.is_multiple_of(SCALES_ALIGNMENT) {
        return None;
    }
    let scales_shape = params_shape(&shape, scheme.level);
    let start = handle.offset_start.unwrap_or(0);
    let end = handle.offset_end.unwrap_or(0);
    let scales = QParamTensor {
        offset_start: start.wrapping_add(values as u64) as usize,
        offset_end: end as usize,
        metadata: Metadata::new(scales_shape.clone(), contiguous_strides(&scales_shape)),
        dtype: scale_dtype,
    };
    // Without the scales, as CubeCL's own handle on the values.
    let mut values_handle = handle.clone();
    values_handle.offset_end = Some(end.wrapping_add(handle.size() - values as u64));
    Some(CubeTensor::new_quantized(
        client,
        values_handle,
        shape,
        device.clone(),
        contiguous_strides(&packed),
        layout.dtype,
        QParams { scales },
    ))
}

/// Kernels load up to 16 bytes at once.
const SCALES_ALIGNMENT: usize = 16;
