use std::{
    mem::ManuallyDrop,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use cubecl::cuda::CudaDevice;
use cudarc::driver::{DriverError, sys};

use crate::host::{
    BufferId, Charge, FileMemory, FileSlice, HostAllocator, HostBuffer, HostError, HostMemory,
    MemoryKind, announce_operations,
};

use super::{
    alias::Anchor,
    file::{self, Registered},
    retire::RetireQueue,
    ring::{PROBE_BYTES, Ring},
};

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

    fn adopt(&self, slice: FileSlice, charge: Charge) -> HostBuffer {
        let len = slice.bytes().len();
        // Locked pages cannot be let go of: what memory has no room for stays in the file.
        if !file::has_room(len) {
            return HostBuffer::new(Box::new(FileMemory::new(slice, charge)));
        }
        let slice = match Block::register(&self.queue, slice, self.mapped) {
            Ok(block) if !self.mapped || block.same_address_on_device() => {
                self.ring.expect(len as u64);
                return HostBuffer::new(Box::new(PinnedMemory {
                    block: Some(block),
                    charge: Some(charge),
                    queue: self.queue.clone(),
                    ring: self.ring.clone(),
                    mapped: self.mapped,
                }));
            }
            Ok(block) => block.unregister(),
            Err((slice, err)) => {
                tracing::debug!(
                    bytes = len,
                    "the driver does not register a part of a file: {err}"
                );
                slice
            }
        };
        let memory = Block::new(&self.queue, len, self.mapped).map(|block| PinnedMemory {
            block: Some(block),
            charge: None,
            queue: self.queue.clone(),
            ring: self.ring.clone(),
            mapped: self.mapped,
        });
        match memory {
            Ok(mut memory) if !self.mapped || memory.block().same_address_on_device() => {
                self.ring.expect(len as u64);
                memory.charge = Some(charge);
                memory.bytes_mut().copy_from_slice(slice.bytes());
                HostBuffer::new(Box::new(memory))
            }
            // Nothing has read a copy that is not used, and there is nobody to charge for it.
            Ok(mut memory) => {
                if let Some(block) = memory.block.take() {
                    // SAFETY: no anchor was made, so no kernel has read the block, and no copy was
                    // queued. The context is current since `Block::new`.
                    unsafe { block.free() };
                }
                HostBuffer::new(Box::new(FileMemory::new(slice, charge)))
            }
            Err(err) => {
                tracing::debug!(
                    bytes = len,
                    "no page-locked memory for a copy, staged: {err}"
                );
                HostBuffer::new(Box::new(FileMemory::new(slice, charge)))
            }
        }
    }

    fn reclaim(&self) {
        self.queue.reclaim();
    }

    fn link_bytes_per_second(&self) -> Option<u64> {
        let probe = || ProbeMemory::new(&self.queue);
        self.ring.link_speed(probe).map(|link| link.copy as u64)
    }
}

/// Page-locked memory to measure the link with. Nothing but the one who measures reads it.
pub struct ProbeMemory(Option<Block>);

impl ProbeMemory {
    fn new(queue: &RetireQueue) -> Option<Self> {
        Block::new(queue, PROBE_BYTES, false)
            .ok()
            .map(|block| Self(Some(block)))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Block::bytes)
    }
}

impl Drop for ProbeMemory {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            // SAFETY: it has no anchor, and who measures waits for each copy. The context is current since
            // `Block::new`.
            unsafe { block.free() };
        }
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
        // Kernels load up to 16 bytes at once, and a tensor may lie anywhere in a file.
        if !self.mapped || !self.address().is_multiple_of(ALIGNMENT) {
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
        self.block().bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let block = self.block();
        assert!(block.file.is_none(), "a part of a file is not written");
        // SAFETY: as in `bytes`; `&mut self` says that nobody else reads or writes. No kernel does
        // either: an anchor is only made once the memory is in a `HostBuffer`.
        unsafe { std::slice::from_raw_parts_mut(block.memory.as_ptr(), block.len) }
    }

    fn kind(&self) -> MemoryKind {
        match (self.mapped, self.block().file.is_some()) {
            (true, false) => MemoryKind::Mapped,
            (true, true) => MemoryKind::MappedFile,
            (false, false) => MemoryKind::Pinned,
            // Registered only for the copy engine.
            (false, true) => MemoryKind::PinnedFile,
        }
    }

    fn unread(&self, id: BufferId) -> bool {
        let block = self.block();
        if block.file.is_some() {
            return false;
        }
        let forget = || self.ring.forget(id);
        self.queue.unread(block, forget)
    }

    fn rewritten(&self, buffer: &HostBuffer) {
        self.ring.remember(buffer);
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let (Some(block), Some(charge)) = (self.block.take(), self.charge.take()) {
            self.queue.retire(block, charge);
        }
    }
}

/// What kernels may load at once, in bytes.
const ALIGNMENT: u64 = 16;

/// Page-locked memory: an allocation, or a registered part of a file. Dropping it leaks: only the
/// retire queue frees it.
pub struct Block {
    memory: NonNull<u8>,
    len: usize,
    /// Made when kernels first read the block; `None` where the device had no room for it.
    pub anchor: OnceLock<Option<Anchor>>,
    /// The part of a file whose bytes these are, if the driver did not allocate them. Never dropped while
    /// it is registered.
    file: Option<ManuallyDrop<Registered>>,
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
            file: None,
        })
    }

    /// Locks the pages of a part of a file. Gives it back where the driver refuses.
    fn register(
        queue: &RetireQueue,
        slice: FileSlice,
        mapped: bool,
    ) -> Result<Self, (FileSlice, DriverError)> {
        let registered = Registered::new(queue, slice, mapped)?;
        let bytes = registered.bytes();
        Ok(Self {
            memory: NonNull::from(bytes).cast(),
            len: bytes.len(),
            anchor: OnceLock::new(),
            file: Some(ManuallyDrop::new(registered)),
        })
    }

    /// Gives back the part of a file that was just registered, and that nothing has read.
    fn unregister(self) -> FileSlice {
        let registered = self.file.expect("the block is a part of a file");
        ManuallyDrop::into_inner(registered).unregister()
    }

    fn same_address_on_device(&self) -> bool {
        let mut device = 0;
        // SAFETY: the memory is a live mapped host allocation, and `device` is valid for a pointer.
        let found = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut device, self.memory.as_ptr().cast(), 0)
        };
        found.result().is_ok() && device == self.memory.as_ptr() as u64
    }

    /// The bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block is `len` bytes of live memory, initialised in `Block::new`. Nobody
        // writes it while it is shared: `bytes_mut` needs it exclusively, and kernels only read.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }

    /// Whether tensors over the block are left.
    pub fn has_aliases(&self) -> bool {
        let anchor = self.anchor.get().and_then(Option::as_ref);
        anchor.is_some_and(Anchor::has_aliases)
    }

    /// Gives the memory back.
    ///
    /// # Safety
    ///
    /// Nothing reads the memory any more: no handle on its anchor is left, and all work that was
    /// queued while there was one has finished. The context is current on this thread.
    pub unsafe fn free(self) {
        if let Some(registered) = self.file {
            drop(ManuallyDrop::into_inner(registered).unregister());
            return;
        }
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

    /// Overwrites the memory (not that of a file, which is read-only), so that a test sees who reads it
    /// after it was given back.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    pub unsafe fn poison(&mut self, byte: u8) {
        if self.file.is_some() {
            return;
        }
        // SAFETY: the block is `len` bytes of live memory that nobody reads, by the caller's promise.
        unsafe { self.memory.as_ptr().write_bytes(byte, self.len) }
    }
}
