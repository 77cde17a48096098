use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Charge, FileSlice, file::FileMemory};

/// What kind of host memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Ordinary memory, which the system may page out.
    Pageable,
    /// Page-locked memory, which the copy engine reads at full speed.
    Pinned,
    /// Page-locked memory that device kernels also read in place.
    Mapped,
    /// A part of a file, read when it is needed. The system may let go of it at any time.
    File,
    /// A part of a file whose pages are locked in memory, for the copy engine.
    PinnedFile,
    /// A part of a file whose pages are locked in memory, and which device kernels read in place.
    MappedFile,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pageable => "pageable",
            Self::Pinned => "pinned",
            Self::Mapped => "mapped",
            Self::File => "file",
            Self::PinnedFile => "pinned file",
            Self::MappedFile => "mapped file",
        })
    }
}

/// Why the system gave no host memory.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the system refused {bytes} bytes of {kind} host memory: {reason}; {advice}")]
pub struct HostError {
    /// The bytes asked for.
    pub bytes: usize,
    /// The kind of memory asked for.
    pub kind: MemoryKind,
    /// What the system said.
    pub reason: String,
    /// What to do about it.
    pub advice: &'static str,
}

/// One allocation of host memory. It is written while it is exclusively owned, and only read
/// once it is inside a [`HostBuffer`].
pub trait HostMemory: Any + Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// What kind of memory this is.
    fn kind(&self) -> MemoryKind;
}

/// Makes host memory of one kind for one device.
pub trait HostAllocator: Send + Sync {
    /// What kind of memory this allocator makes.
    fn kind(&self) -> MemoryKind;

    /// Takes exactly `bytes` bytes from the system, zeroed or not. The memory keeps `charge` until
    /// it is given back.
    ///
    /// # Errors
    ///
    /// [`HostError`] when the system has none.
    fn allocate(&self, bytes: usize, charge: Charge) -> Result<Box<dyn HostMemory>, HostError>;

    /// Makes a part of a file a buffer: its bytes are not copied where that can be. It keeps `charge`
    /// until it is let go.
    ///
    /// The portable way reads the bytes from the file when they are needed, and never fails.
    fn adopt(&self, slice: FileSlice, charge: Charge) -> HostBuffer {
        HostBuffer::new(Box::new(FileMemory::new(slice, charge)))
    }

    /// Blocks until the memory of buffers that nobody holds any more is given back, as far as the
    /// device's queued work allows.
    fn reclaim(&self) {}
}

/// A parameter's bytes in host memory: immutable and shared.
#[derive(Clone)]
pub struct HostBuffer {
    memory: Arc<dyn HostMemory>,
    id: BufferId,
}

/// The identity of a buffer's bytes, of which there is no other in this process, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u64);

impl BufferId {
    /// An id that no buffer had before.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A buffer that may be gone.
#[derive(Clone)]
pub struct WeakHostBuffer {
    memory: Weak<dyn HostMemory>,
    id: BufferId,
}

impl WeakHostBuffer {
    /// The buffer, if somebody still has it.
    pub fn upgrade(&self) -> Option<HostBuffer> {
        let memory = self.memory.upgrade()?;
        Some(HostBuffer {
            memory,
            id: self.id,
        })
    }

    /// Whether somebody still has the buffer.
    pub fn is_alive(&self) -> bool {
        self.memory.strong_count() > 0
    }
}

impl HostBuffer {
    /// Seals filled memory.
    pub fn new(memory: Box<dyn HostMemory>) -> Self {
        Self {
            memory: memory.into(),
            id: BufferId::fresh(),
        }
    }

    /// Which bytes these are. Clones have the same.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// The buffer, without keeping its memory.
    pub fn downgrade(&self) -> WeakHostBuffer {
        WeakHostBuffer {
            memory: Arc::downgrade(&self.memory),
            id: self.id,
        }
    }

    /// What kind of memory this is.
    pub fn kind(&self) -> MemoryKind {
        self.memory.kind()
    }

    /// The memory as `M`, when an allocator of that type made it.
    pub fn downcast<M: HostMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
    }

    /// A view of the bytes that Burn's `TensorData` takes without a copy, and copies when written.
    pub fn to_bytes(&self) -> burn_backend::Bytes {
        let property = match self.kind() {
            MemoryKind::Pageable | MemoryKind::File => burn_backend::AllocationProperty::Other,
            MemoryKind::Pinned
            | MemoryKind::Mapped
            | MemoryKind::PinnedFile
            | MemoryKind::MappedFile => burn_backend::AllocationProperty::Pinned,
        };
        burn_backend::Bytes::from_shared(bytes::Bytes::from_owner(self.clone()), property)
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostBuffer({} bytes, {})",
            self.as_ref().len(),
            self.kind()
        )
    }
}

/// Ordinary memory, mapped from the system page by page so that a dropped parameter's pages go
/// back at once.
#[derive(Debug, Default, Clone, Copy)]
pub struct PageableAllocator;

struct Pageable {
    map: memmap2::MmapMut,
    _charge: Charge,
}

impl HostAllocator for PageableAllocator {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }

    fn allocate(&self, bytes: usize, charge: Charge) -> Result<Box<dyn HostMemory>, HostError> {
        let map = memmap2::MmapMut::map_anon(bytes).map_err(|err| HostError {
            bytes,
            kind: MemoryKind::Pageable,
            reason: err.to_string(),
            advice: "lower the host budget or free memory",
        })?;
        Ok(Box::new(Pageable {
            map,
            _charge: charge,
        }))
    }
}

impl HostMemory for Pageable {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }
}
