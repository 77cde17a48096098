use std::{
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use cubecl::cuda::CudaDevice;
use cudarc::driver::{DriverError, sys};

use crate::host::{Charge, HostAllocator, HostError, HostMemory, MemoryKind, announce_operations};

use super::{alias::Anchor, retire::RetireQueue, ring::Ring};

/// Makes page-locked memory of exactly the size asked for, for one device.
pub struct PinnedAllocator {
    queue: Arc<RetireQueue>,
    ring: Arc<Ring>,
    mapped: bool,
}

impl PinnedAllocator {
    pub(super) fn new(queue: Arc<RetireQueue>, ring: Arc<Ring>, mapped: bool) -> Self {
        announce_operations();
        Self {
            queue,
            ring,
            mapped,
        }
    }
}

impl HostAllocator for PinnedAllocator {
    fn kind(&self) -> MemoryKind {
        if self.mapped {
            MemoryKind::Mapped
        } else {
            MemoryKind::Pinned
        }
    }

    fn allocate(&self, bytes: usize, charge: Charge) -> Result<Box<dyn HostMemory>, HostError> {
        let error = |reason: String| HostError {
            bytes,
            kind: self.kind(),
            reason,
            advice: "lower the host budget, raise the limit of locked memory (`ulimit -l`, in a \
                     container `--ulimit memlock=-1`), or set `pin = false`",
        };
        let block = match Block::new(&self.queue, bytes, self.mapped) {
            Err(first) => {
                // Memory that is on its way back may be all that is missing.
                self.reclaim();
                Block::new(&self.queue, bytes, self.mapped).map_err(|_| error(first.to_string()))?
            }
            Ok(block) => block,
        };
        if self.mapped && !block.same_address_on_device() {
            self.queue.retire(block, charge);
            return Err(error(
                "the device maps it at another address than the host".into(),
            ));
        }
        self.ring.expect(bytes as u64);
        Ok(Box::new(PinnedMemory {
            block: Some(block),
            charge: Some(charge),
            queue: self.queue.clone(),
            ring: self.ring.clone(),
            mapped: self.mapped,
        }))
    }

    fn reclaim(&self) {
        self.queue.reclaim();
    }
}

/// Page-locked memory. Dropped, it is retired, and given back when nothing reads it any more.
pub struct PinnedMemory {
    /// Taken when the memory is retired.
    block: Option<Block>,
    charge: Option<Charge>,
    queue: Arc<RetireQueue>,
    ring: Arc<Ring>,
    mapped: bool,
}

impl PinnedMemory {
    /// The staging memory of its device.
    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("the block is there until drop")
    }

    /// The anchor through which kernels read this memory, made at the first call. `None` where the
    /// device does not read it in place, or has no room for an anchor.
    pub(super) fn anchor(&self) -> Option<&Anchor> {
        if !self.mapped {
            return None;
        }
        let device = self.queue.device();
        let anchor = self.block().anchor.get_or_init(|| Anchor::new(device));
        anchor.as_ref()
    }

    /// The device whose driver made the memory.
    pub(super) fn device(&self) -> &CudaDevice {
        self.queue.device()
    }

    /// The memory's address, on the host and (if mapped) on the device.
    pub(super) fn address(&self) -> u64 {
        self.block().memory.as_ptr() as u64
    }
}

impl HostMemory for PinnedMemory {
    fn bytes(&self) -> &[u8] {
        let block = self.block();
        // SAFETY: the block is `len` bytes of live memory, initialised in `Block::new`. Nobody
        // writes it while it is shared: `bytes_mut` needs it exclusively, and kernels only read.
        unsafe { std::slice::from_raw_parts(block.memory.as_ptr(), block.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let block = self.block();
        // SAFETY: as in `bytes`; `&mut self` says that nobody else reads or writes. No kernel does
        // either: an anchor is only made once the memory is in a `HostBuffer`.
        unsafe { std::slice::from_raw_parts_mut(block.memory.as_ptr(), block.len) }
    }

    fn kind(&self) -> MemoryKind {
        if self.mapped {
            MemoryKind::Mapped
        } else {
            MemoryKind::Pinned
        }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let (Some(block), Some(charge)) = (self.block.take(), self.charge.take()) {
            self.queue.retire(block, charge);
        }
    }
}

/// An allocation of page-locked memory. Dropping it leaks: only the retire queue frees it.
pub struct Block {
    memory: NonNull<u8>,
    len: usize,
    /// Made when kernels first read the block; `None` where the device had no room for it.
    pub anchor: OnceLock<Option<Anchor>>,
}

// SAFETY: the block owns its memory, which is as good on any thread.
unsafe impl Send for Block {}
// SAFETY: through a shared block the memory is only read.
unsafe impl Sync for Block {}

impl Block {
    fn new(queue: &RetireQueue, len: usize, mapped: bool) -> Result<Self, DriverError> {
        queue.context().bind_to_thread()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE
            | if mapped {
                sys::CU_MEMHOSTALLOC_DEVICEMAP
            } else {
                0
            };
        let mut memory = std::ptr::null_mut();
        // SAFETY: a context is current on this thread and `memory` is valid for a pointer.
        unsafe { sys::cuMemHostAlloc(&mut memory, len, flags) }.result()?;
        let memory = NonNull::new(memory.cast::<u8>())
            .ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        // The driver gives pages fresh from the system, which are zero, or pages it had before:
        // initialised either way.
        Ok(Self {
            memory,
            len,
            anchor: OnceLock::new(),
        })
    }

    fn same_address_on_device(&self) -> bool {
        let mut device = 0;
        // SAFETY: the memory is a live mapped host allocation, and `device` is valid for a pointer.
        let found = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut device, self.memory.as_ptr().cast(), 0)
        };
        found.result().is_ok() && device == self.memory.as_ptr() as u64
    }

    /// Gives the memory back.
    ///
    /// # Safety
    ///
    /// Nothing reads the memory any more: no handle on its anchor is left, and all work that was
    /// queued while there was one has finished. The context is current on this thread.
    pub unsafe fn free(self) {
        // SAFETY: the memory came from `cuMemHostAlloc` and is freed once, since `self` is consumed;
        // that nobody reads it is the caller's promise.
        let freed = unsafe { sys::cuMemFreeHost(self.memory.as_ptr().cast()) };
        if let Err(err) = freed.result() {
            tracing::error!(
                bytes = self.len,
                "the driver did not take back host memory: {err}"
            );
        }
    }

    /// Overwrites the memory, so that a test sees who reads it after it was given back.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    pub unsafe fn poison(&mut self, byte: u8) {
        // SAFETY: the block is `len` bytes of live memory that nobody reads, by the caller's promise.
        unsafe { self.memory.as_ptr().write_bytes(byte, self.len) }
    }
}
