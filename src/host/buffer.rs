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
    /// Waits until nobody reads the memory who does not hold its buffer, as queued work and copies
    /// ahead do, and sees to it that nobody begins to. `false` where that cannot be, or where the memory
    /// is not to be written at all. Called where one thread has the buffer to itself.
    fn unread(&self, id: BufferId) -> bool {
        let _ = id;
        true
    }
    /// Called when the memory of the buffer was written anew, after [`unread`](Self::unread).
    fn rewritten(&self, buffer: &HostBuffer) {
        let _ = buffer;
    }
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

    /// How many bytes a second are copied from this memory to the device; measured at the first call.
    /// `None` where there is no link, or its speed cannot be told.
    fn link_bytes_per_second(&self) -> Option<u64> {
        None
    }
}

/// A parameter's bytes in host memory: shared, and not written while they are.
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

    /// Has `fill` write the bytes anew, where nobody else has the buffer, nobody reads its memory and that
    /// can be written; `None` where not. Waits for work that is queued on the memory.
    pub fn rewrite<T>(&mut self, fill: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        if Arc::strong_count(&self.memory) > 1 || !self.memory.unread(self.id) {
            return None;
        }
        let filled = fill(Arc::get_mut(&mut self.memory)?.bytes_mut());
        self.memory.rewritten(self);
        Some(filled)
    }

    /// The memory as `M`, when an allocator of that type made it.
    pub fn downcast<M: HostMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Ledger;

    fn buffer(bytes: &[u8]) -> HostBuffer {
        let charge = Arc::new(Ledger::default()).admit_state(bytes.len() as u64, u64::MAX);
        let memory = PageableAllocator.allocate(bytes.len(), charge.charge);
        let mut memory = memory.unwrap();
        memory.bytes_mut().copy_from_slice(bytes);
        HostBuffer::new(memory)
    }

    #[test]
    fn a_buffer_is_rewritten_only_while_one_has_it() {
        let mut mine = buffer(&[1, 2, 3]);
        let address = mine.as_ref().as_ptr();
        let theirs = mine.clone();
        assert_eq!(mine.rewrite(|bytes| bytes.fill(9)), None);
        assert_eq!(theirs.as_ref(), [1, 2, 3]);
        drop(theirs);
        let data = mine.to_bytes();
        assert_eq!(mine.rewrite(|bytes| bytes.fill(9)), None);
        assert_eq!(&data[..], [1, 2, 3]);
        drop(data);
        assert_eq!(mine.rewrite(|bytes| bytes.fill(9)), Some(()));
        assert_eq!(mine.as_ref(), [9, 9, 9]);
        assert_eq!(mine.as_ref().as_ptr(), address);
    }
}
