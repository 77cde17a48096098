//! CUDA: page-locked host memory that an unmodified burn-cuda reads in place.
//!
//! - `driver`: is there a driver, what can the device do, can an alias be made;
//! - `memory`: page-locked memory, taken and given back;
//! - `device`: device memory and its address;
//! - `alias`: the handle through which CubeCL kernels get a host address;
//! - `retire`: when host memory may be given back;
//! - `ring`: the staging memory, copies ahead of their use;
//! - `tensor`, `fusion`: [`OffloadTarget`](super::OffloadTarget) for the two backends.

mod alias;
mod device;
mod driver;
mod file;
#[cfg(feature = "fusion")]
mod fusion;
mod memory;
mod retire;
mod ring;
mod tensor;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use burn_cuda::{Cuda, CudaDevice};
pub use memory::{PinnedAllocator, PinnedMemory};

/// What is behind a lock of this module is whole at any time, so a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CubeCL's server on the CUDA device, which runs what is submitted to it in order.
type Server = <cubecl::cuda::CudaRuntime as cubecl::Runtime>::Server;
