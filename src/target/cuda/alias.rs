//! The alias handle: how a CubeCL kernel comes to read host memory.
//!
//! CubeCL resolves a kernel argument as `page address + offset`, in 64-bit arithmetic that wraps,
//! and under unified addressing host and device addresses are one space. So a small buffer of
//! CubeCL's own, the *anchor*, is asked for its address once, and a handle on the anchor's memory
//! with the offset `host address - anchor address` resolves to the host address.
//!
//! Invariants:
//! - the offset and the size are computed modulo 2^64, and nobody reads `size` of an alias but
//!   through `size_in_used`, which undoes the wrap;
//! - an anchor belongs to one block of host memory, so that the count of handles on it is the count
//!   of handles on the block;
//! - the block keeps a handle on its anchor, and CubeCL's memory pool another, so an alias is never
//!   the only one: `can_mut` is false and no operation writes a weight in place.

use cubecl::{
    Runtime,
    cuda::{CudaDevice, CudaRuntime},
    server::Handle,
};

use super::device::resource;

/// The least that CubeCL allocates.
const ANCHOR_BYTES: usize = 512;

/// A buffer on the device whose address is known.
pub struct Anchor {
    handle: Handle,
    address: u64,
}

impl Anchor {
    /// Reserves an anchor on `device`. `None` where the device has no room for it, or has failed.
    pub fn new(device: &CudaDevice) -> Option<Self> {
        let handle = CudaRuntime::client(device).empty(ANCHOR_BYTES);
        match resource(&handle, device) {
            Ok(resource) => Some(Self {
                handle,
                address: resource.resource().ptr,
            }),
            Err(err) => {
                tracing::warn!(
                    "host memory is copied, not read in place, there is no anchor: {err}"
                );
                None
            }
        }
    }

    /// A handle that resolves to `len` bytes at `address`. `None` where that needs an addition in
    /// cubecl-cuda to wrap around, and that crate may have been built to refuse it.
    pub fn alias(&self, address: u64, len: u64) -> Option<Handle> {
        if cfg!(debug_assertions) && address < self.address {
            return None;
        }
        let (offset, size) = displacement(self.address, address, len);
        let mut handle = Handle::from_memory(self.handle.memory.clone(), self.handle.stream, size);
        handle.offset_start = Some(offset);
        Some(handle)
    }

    /// Whether any alias is left, besides what the block and the memory pool hold.
    pub fn has_aliases(&self) -> bool {
        !self.handle.can_mut()
    }
}

/// The offset and the size of a handle on memory at `anchor` that stands for `len` bytes at `address`.
fn displacement(anchor: u64, address: u64, len: u64) -> (u64, u64) {
    let offset = address.wrapping_sub(anchor);
    (offset, offset.wrapping_add(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl::stream_id::StreamId;
    use cubecl_runtime::memory_management::ManagedMemoryHandle;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_alias_resolves_to_the_address_and_the_length(
            anchor: u64,
            address: u64,
            len in 0u64..1 << 48,
        ) {
            let (offset, size) = displacement(anchor, address, len);
            prop_assert_eq!(anchor.wrapping_add(offset), address);
            prop_assert_eq!(size.wrapping_sub(offset), len);
        }
    }

    #[test]
    fn cubecl_computes_with_an_alias_as_expected() {
        // Host memory above the device's, and below it, where the offset wraps.
        for (anchor, address) in [(0x7f00_0000_0000, 0x7fff_0000_0000), (0x7fff_0000, 0x1000)] {
            let (offset, size) = displacement(anchor, address, 4096);
            let memory = ManagedMemoryHandle::new();
            let mut handle = Handle::from_memory(memory, StreamId::current(), size);
            handle.offset_start = Some(offset);
            assert_eq!(handle.size_in_used(), 4096);
            assert_eq!(handle.clone().binding().size_in_used(), 4096);
        }
    }
}
