use std::sync::Arc;

use cubecl::cuda::CudaDevice;
use cudarc::driver::{CudaContext, sys::CUdevice_attribute as Attribute};

use crate::{
    error::OffloadError,
    host::HostOptions,
    target::{Access, HostAccess},
};

use super::{memory::PinnedAllocator, retire::RetireQueue, ring::Ring};

/// Opens the device's host memory: mapped and read in place if it can be, else pinned, else
/// pageable.
pub fn open(device: &CudaDevice, options: HostOptions) -> Result<HostAccess, OffloadError> {
    let context = context(device)?;
    let obstacle = match (options.uva, options.pin) {
        (false, _) => Some("reading in place is switched off".to_string()),
        (_, false) => Some("pinning is switched off, and reading in place needs it".to_string()),
        (true, true) => obstacle(&context),
    };
    if !options.pin {
        return Ok(HostAccess {
            fallback: obstacle,
            ..HostAccess::portable()
        });
    }
    let queue = RetireQueue::of(device, context.clone());
    let ring = Ring::of(device, context);
    ring.configure(options.staging);
    Ok(HostAccess {
        allocator: Arc::new(PinnedAllocator::new(queue, ring, obstacle.is_none())),
        access: match obstacle {
            None => Access::InPlace,
            Some(_) => Access::Staged,
        },
        fallback: obstacle,
    })
}

/// The device's primary context, which is the one CubeCL uses.
pub fn context(device: &CudaDevice) -> Result<Arc<CudaContext>, OffloadError> {
    const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];
    // cudarc and cubecl panic where the driver's library is missing, so look first.
    //
    // SAFETY: loading the driver runs its initialisers, as cudarc is about to do anyway.
    let present = NAMES
        .iter()
        .any(|name| unsafe { libloading::Library::new(name) }.is_ok());
    if !present {
        return Err(OffloadError::NoDriver {
            reason: format!("none of {} can be loaded", NAMES.join(", ")),
        });
    }
    CudaContext::new(device.index).map_err(|err| OffloadError::NoDevice {
        device: format!("{device:?}"),
        reason: err.to_string(),
    })
}

/// The device's queue of host memory to be given back.
#[cfg(feature = "fusion")]
pub fn queue(device: &CudaDevice) -> Result<Arc<RetireQueue>, OffloadError> {
    Ok(RetireQueue::of(device, context(device)?))
}

/// What keeps this device from reading host memory in place.
fn obstacle(context: &CudaContext) -> Option<String> {
    for (attribute, what) in [
        (
            Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            "the device has no unified addressing",
        ),
        (
            Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            "the device cannot map host memory",
        ),
    ] {
        match context.attribute(attribute) {
            Ok(0) => return Some(what.to_string()),
            Ok(_) => {}
            Err(err) => return Some(format!("{what}, or does not say: {err}")),
        }
    }
    overflow_checks().then(|| {
        "cubecl-runtime is built with overflow checks; put `overflow-checks = false` under \
         `[profile.dev.package.cubecl-runtime]` in your Cargo.toml"
            .to_string()
    })
}

/// Whether cubecl-runtime panics where an address wraps around. An alias needs it to wrap.
fn overflow_checks() -> bool {
    use cubecl_runtime::storage::{StorageHandle, StorageId, StorageUtilization};

    if cfg!(panic = "abort") {
        // A probe would end the process. Checks are on in the dev profile and off in the others
        // unless somebody asked for them.
        return cfg!(debug_assertions);
    }
    without_panic_message(|| {
        let empty = StorageUtilization { offset: 0, size: 0 };
        StorageHandle::new(StorageId::new(), empty).offset_start(1);
    })
    .is_err()
}

/// Runs `probe` and tells whether it panicked, without a word on the terminal. Other threads'
/// panics are reported as ever.
fn without_panic_message(probe: impl FnOnce() + std::panic::UnwindSafe) -> std::thread::Result<()> {
    let me = std::thread::current().id();
    let before = Arc::new(std::panic::take_hook());
    let others = before.clone();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != me {
            others(info);
        }
    }));
    let result = std::panic::catch_unwind(probe);
    drop(std::panic::take_hook());
    if let Ok(before) = Arc::try_unwrap(before) {
        std::panic::set_hook(before);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_a_typed_error() {
        let found = context(&CudaDevice::new(0));
        match found {
            Ok(_) => {}
            Err(OffloadError::NoDriver { .. } | OffloadError::NoDevice { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_test_profile_of_this_crate_lets_addresses_wrap() {
        assert!(!overflow_checks());
    }

    #[test]
    fn a_probe_that_panics_is_told_from_one_that_does_not() {
        assert!(without_panic_message(|| panic!("not to be seen")).is_err());
        assert!(without_panic_message(|| {}).is_ok());
    }
}
