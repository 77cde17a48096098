//! Host memory as the bytes of a `TensorData`.

use std::mem::MaybeUninit;

use burn_std::{AllocationController, AllocationProperty, Bytes};

use super::{HostBuffer, MemoryKind};

/// The bytes of a buffer without a copy, until they are written: then a copy of their own, and the buffer
/// is let go. (Burn's own shared bytes keep what they were copied from, so that the result of an
/// operation that reuses its operand's memory would hold a parameter's host memory.)
enum SharedBytes {
    Shared(HostBuffer),
    /// Of an alignment that serves all element types.
    Copied(Vec<u128>),
}

const UNIT: usize = size_of::<u128>();

impl HostBuffer {
    /// A view of the bytes that Burn's `TensorData` takes without a copy, and copies when written.
    pub fn to_bytes(&self) -> Bytes {
        let len = self.as_ref().len();
        let controller = Box::new(SharedBytes::Shared(self.clone()));
        // SAFETY: all of a buffer's bytes are initialised.
        unsafe { Bytes::from_controller(controller, len) }
    }
}

impl AllocationController for SharedBytes {
    fn alloc_align(&self) -> usize {
        match self {
            Self::Shared(_) => 1,
            Self::Copied(_) => align_of::<u128>(),
        }
    }

    fn property(&self) -> AllocationProperty {
        match self {
            Self::Shared(buffer) => match buffer.kind() {
                MemoryKind::Pageable | MemoryKind::File => AllocationProperty::Other,
                MemoryKind::Pinned
                | MemoryKind::Mapped
                | MemoryKind::PinnedFile
                | MemoryKind::MappedFile => AllocationProperty::Pinned,
            },
            Self::Copied(_) => AllocationProperty::Native,
        }
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        if let Self::Shared(buffer) = self {
            let bytes = buffer.as_ref();
            let mut copy = vec![0u128; bytes.len().div_ceil(UNIT)];
            bytemuck::cast_slice_mut(&mut copy)[..bytes.len()].copy_from_slice(bytes);
            *self = Self::Copied(copy);
        }
        let Self::Copied(copy) = self else {
            unreachable!("it was copied just now")
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(copy);
        // SAFETY: the same memory, exclusively ours. The caller writes only initialised data, as this
        // method asks for, so that it stays initialised.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        let bytes: &[u8] = match self {
            Self::Shared(buffer) => buffer.as_ref(),
            Self::Copied(copy) => bytemuck::cast_slice(copy),
        };
        // SAFETY: the same memory, which may be read as what need not be initialised.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        match self {
            Self::Shared(buffer) => Some(Box::new(Self::Shared(buffer.clone()))),
            Self::Copied(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::{HostAllocator, Ledger, PageableAllocator};

    #[test]
    fn bytes_are_shared_until_they_are_written_and_the_buffer_is_let_go_then() {
        let charge = Arc::new(Ledger::default()).admit_state(20, u64::MAX).charge;
        let mut memory = PageableAllocator.allocate(20, charge).unwrap();
        memory.bytes_mut().fill(7);
        let buffer = HostBuffer::new(memory);
        let (mut bytes, address) = (buffer.to_bytes(), buffer.as_ref().as_ptr());
        let twin = bytes.clone();
        assert_eq!([bytes.as_ptr(), twin.as_ptr()], [address; 2]);
        let weak = buffer.downgrade();
        drop(buffer);
        bytes[3] = 1;
        assert_eq!(bytes[..5], [7, 7, 7, 1, 7]);
        assert_eq!(bytes.len(), 20);
        assert_eq!(twin[..], [7; 20]);
        assert!(weak.is_alive());
        drop(twin);
        assert!(!weak.is_alive());
        assert_eq!(bytes.clone()[..5], [7, 7, 7, 1, 7]);
        let vec = bytes.try_into_vec::<u8>();
        assert_eq!(vec.unwrap_or_else(|bytes| bytes.to_vec())[3], 1);
    }
}
