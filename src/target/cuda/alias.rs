//! The alias handle: how a CubeCL kernel comes to read host memory.
//!
//! CubeCL resolves a kernel argument as `page address + offset`, in 64-bit arithmetic that wraps,
//! and under unified addressing host and device addresses are one space. So a small buffer of
//! CubeCL's own, the *anchor*, is asked for its address once, and a handle on the anchor's memory
//! with the offset `host address - anchor address` resolves to the host address.
//!
//! Invariants:
//! - the handle's size is that of the bytes it stands for, since kernels are chosen by it: the width of
//!   their indices, and whether a tensor fills its buffer. The offset at the start, which alone would
//!   leave less than that, is taken back by one at the end, modulo 2^64;
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
        let memory = self.handle.memory.clone();
        Some(displaced(
            Handle::from_memory(memory, self.handle.stream, len),
            address.wrapping_sub(self.address),
        ))
    }

    /// Whether any alias is left, besides what the block and the memory pool hold.
    pub fn has_aliases(&self) -> bool {
        !self.handle.can_mut()
    }
}

/// The handle, `offset` bytes further on in memory and as long as before.
fn displaced(mut handle: Handle, offset: u64) -> Handle {
    handle.offset_start = Some(offset);
    handle.offset_end = Some(offset.wrapping_neg());
    handle
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl::stream_id::StreamId;
    use cubecl_runtime::memory_management::ManagedMemoryHandle;
    use proptest::prelude::*;

    fn alias(anchor: u64, address: u64, len: u64) -> Handle {
        let handle = Handle::from_memory(ManagedMemoryHandle::new(), StreamId::current(), len);
        displaced(handle, address.wrapping_sub(anchor))
    }

    proptest! {
        #[test]
        fn an_alias_resolves_to_the_address_and_the_length(
            anchor: u64,
            address: u64,
            len in 0u64..1 << 48,
        ) {
            let handle = alias(anchor, address, len);
            prop_assert_eq!(anchor.wrapping_add(handle.offset_start.unwrap()), address);
            prop_assert_eq!(handle.size(), len);
            prop_assert_eq!(handle.size_in_used(), len);
            prop_assert_eq!(handle.binding().size_in_used(), len);
        }

        #[test]
        fn a_part_of_an_alias_is_as_long_as_it_should_be(
            anchor: u64,
            address: u64,
            len in 64u64..1 << 48,
        ) {
            let part = alias(anchor, address, len).offset_start(16).offset_end(8);
            prop_assert_eq!(anchor.wrapping_add(part.offset_start.unwrap()), address.wrapping_add(16));
            prop_assert_eq!(part.size_in_used(), len - 24);
        }
    }
}
