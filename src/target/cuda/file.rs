//! Parts of files whose pages are locked and known to the driver.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use cudarc::driver::{DriverError, sys};

use crate::host::{FileSlice, memory_limit};

use super::retire::RetireQueue;

/// Bytes of files that are registered, by all devices.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// The most that may be: locked pages are not given to anybody else.
static MOST: LazyLock<u64> = LazyLock::new(|| memory_limit().map_or(u64::MAX, |m| m / 4 * 3));

/// Whether so many more bytes may be locked.
pub fn has_room(bytes: usize) -> bool {
    let registered = REGISTERED.load(Ordering::Relaxed);
    bytes > 0 && registered.saturating_add(bytes as u64) <= *MOST
}

/// A registered part of a file. Dropping it unmaps pages that the driver still knows: it is unregistered
/// first, by the retire queue.
pub struct Registered {
    slice: FileSlice,
}

impl Registered {
    /// Registers a part of a file, read-only. Each is a mapping of its own, so no two share a page.
    pub fn new(
        queue: &RetireQueue,
        slice: FileSlice,
        mapped: bool,
    ) -> Result<Self, (FileSlice, DriverError)> {
        if let Err(err) = queue.context().bind_to_thread() {
            return Err((slice, err));
        }
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE
            | sys::CU_MEMHOSTREGISTER_READ_ONLY
            | if mapped {
                sys::CU_MEMHOSTREGISTER_DEVICEMAP
            } else {
                0
            };
        let bytes = slice.bytes();
        // SAFETY: a context is current on this thread. The range is live, mapped memory, and stays so
        // until it is unregistered. The driver only reads it: it is told that the range is read-only.
        let registered = unsafe {
            sys::cuMemHostRegister_v2(bytes.as_ptr().cast_mut().cast(), bytes.len(), flags)
        };
        match registered.result() {
            Ok(()) => {
                REGISTERED.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(Self { slice })
            }
            Err(err) => Err((slice, err)),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.slice.bytes()
    }

    /// Has the driver let go of the pages. Nothing must read them any more on the device, and the context
    /// must be current on this thread.
    pub fn unregister(self) -> FileSlice {
        let bytes = self.slice.bytes();
        // SAFETY: the range was registered in `new`, and is unregistered once, since `self` is consumed.
        let done = unsafe { sys::cuMemHostUnregister(bytes.as_ptr().cast_mut().cast()) };
        if let Err(err) = done.result() {
            tracing::error!(
                bytes = bytes.len(),
                "the driver did not let go of a part of a file: {err}"
            );
        }
        REGISTERED.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        self.slice
    }
}
