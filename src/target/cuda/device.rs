use cubecl::{
    cuda::CudaDevice,
    device::Device,
    server::{ComputeServer, Handle},
    stream_id::StreamId,
};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};

use cudarc::driver::{CudaContext, sys};

use crate::error::OffloadError;

use super::Server;

/// Device memory with its address, kept alive.
pub type Resource =
    ManagedResource<<<Server as ComputeServer>::Storage as ComputeStorage>::Resource>;

/// The device memory of a handle. The current stream waits for the one on which it was filled.
///
/// # Errors
///
/// [`OffloadError::Read`] when there is none. Where the device has no room CubeCL's thread panics at
/// the allocation, by itself, and goes on; the one who asks for the address learns of it.
pub fn resource(handle: &Handle, device: &CudaDevice) -> Result<Resource, OffloadError> {
    let failed = |reason: String| OffloadError::Read { reason };
    let (binding, stream) = (handle.clone().binding(), StreamId::current());
    DeviceHandle::<Server>::new(device.to_id())
        .submit_blocking(move |server| server.get_resource(binding, stream))
        .map_err(|_| failed("it has no memory there; the device may be full".into()))?
        .map_err(|err| failed(err.to_string()))
}

/// Waits until CubeCL's thread has run what was in its queue, and the context has finished all work on
/// all streams.
pub fn finish_queued_work(
    server: &DeviceHandle<Server>,
    context: &CudaContext,
) -> Result<(), String> {
    server
        .submit_blocking(|_| ())
        .map_err(|err| format!("{err:?}"))?;
    context.bind_to_thread().map_err(|err| err.to_string())?;
    // SAFETY: a context is current on this thread.
    let synced = unsafe { sys::cuCtxSynchronize() };
    synced.result().map_err(|err| err.to_string())
}
