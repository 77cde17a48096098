//! Parts of files as host memory.

use std::{
    fs::{File, Metadata},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use memmap2::{Mmap, MmapOptions};

use super::{BufferId, Charge, HostMemory, MemoryKind};

/// A file that is open for reading, and what it was like then.
#[derive(Debug)]
pub struct OpenFile {
    path: PathBuf,
    file: File,
    len: u64,
    modified: Option<SystemTime>,
}

/// Why a part of a file cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system does not open or map it.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What was to be a file.
        path: PathBuf,
    },
    /// Somebody has written or shortened the file since it was opened.
    #[error(
        "{} has changed since it was opened ({opened} bytes then, {now} now): open it again, and \
         let nobody write it while it is in use",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        opened: u64,
        /// Its length now.
        now: u64,
    },
    /// The part is not in the file.
    #[error("{} has {len} bytes, so bytes {from} to {to} are not in it", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// The first byte asked for.
        from: u64,
        /// The end of what was asked for.
        to: u64,
        /// The file's length.
        len: u64,
    },
}

impl OpenFile {
    /// Opens a regular file.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`] and [`FileError::NotAFile`].
    pub fn open(path: &Path) -> Result<Arc<Self>, FileError> {
        let io = |source| FileError::Io {
            path: path.to_owned(),
            source,
        };
        // Looked at first: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(FileError::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        Ok(Arc::new(Self {
            path: path.to_owned(),
            len: metadata.len(),
            modified: metadata.modified().ok(),
            file,
        }))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes, when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps a part of the file, read-only and in a mapping of its own: two parts may share a page.
    ///
    /// The bytes are those in the file for as long as nobody writes it. A file that is written under
    /// its mapping changes the bytes, and one that is shortened ends the process at the next read
    /// (`SIGBUS`): neither can be prevented, so leave the file alone while it is in use. To replace
    /// a checkpoint, rename a new file over it.
    ///
    /// # Errors
    ///
    /// [`FileError`], also when the file has changed since it was opened.
    pub fn slice(&self, range: Range<u64>) -> Result<FileSlice, FileError> {
        let io = |source| FileError::Io {
            path: self.path.clone(),
            source,
        };
        let now = self.file.metadata().map_err(io)?;
        if self.has_changed(&now) {
            return Err(FileError::Changed {
                path: self.path.clone(),
                opened: self.len,
                now: now.len(),
            });
        }
        let len = range.end.checked_sub(range.start);
        let len = len.filter(|_| range.end <= self.len);
        let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
            return Err(FileError::Range {
                path: self.path.clone(),
                from: range.start,
                to: range.end,
                len: self.len,
            });
        };
        if len == 0 {
            return Ok(FileSlice { map: None });
        }
        let mut options = MmapOptions::new();
        options.offset(range.start).len(len);
        // SAFETY: the map is read-only and was just seen to lie in the file. That nobody writes or
        // shortens the file while it is mapped is asked for in the documentation: no program can
        // enforce it.
        let map = unsafe { options.map(&self.file) }.map_err(io)?;
        Ok(FileSlice { map: Some(map) })
    }

    fn has_changed(&self, now: &Metadata) -> bool {
        now.len() != self.len || now.modified().ok() != self.modified
    }
}

/// A part of a file, mapped read-only.
#[derive(Debug)]
pub struct FileSlice {
    /// `None` for no bytes at all.
    map: Option<Mmap>,
}

impl FileSlice {
    /// The bytes, read from the file when they are touched.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

/// A part of a file as host memory: pages that the system reads when they are needed, and may let go
/// of at any time.
pub(crate) struct FileMemory {
    slice: FileSlice,
    _charge: Charge,
}

impl FileMemory {
    pub fn new(slice: FileSlice, charge: Charge) -> Self {
        Self {
            slice,
            _charge: charge,
        }
    }
}

impl HostMemory for FileMemory {
    fn bytes(&self) -> &[u8] {
        self.slice.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        unreachable!("a part of a file is full when it becomes host memory")
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::File
    }

    fn unread(&self, _id: BufferId) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn parts_that_share_a_page_are_mapped_apart() {
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        let file = file(&bytes);
        let open = OpenFile::open(file.path()).unwrap();
        for range in [0..10_000, 1..2, 4095..4097, 5000..9999, 10_000..10_000] {
            let slice = open.slice(range.start as u64..range.end as u64).unwrap();
            assert_eq!(slice.bytes(), &bytes[range]);
        }
        for (from, to) in [(0, 10_001), (u64::MAX - 1, u64::MAX), (7, 3)] {
            let found = open.slice(from..to);
            assert!(matches!(found, Err(FileError::Range { .. })), "{found:?}");
        }
    }

    #[test]
    fn a_file_that_shrinks_or_grows_is_not_mapped() {
        let file = file(&[7; 100]);
        let open = OpenFile::open(file.path()).unwrap();
        for len in [99, 101] {
            file.as_file().set_len(len).unwrap();
            let found = open.slice(0..10);
            assert!(
                matches!(found, Err(FileError::Changed { opened: 100, now, .. }) if now == len),
                "{found:?}"
            );
        }
    }

    #[test]
    fn only_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let found = OpenFile::open(folder.path());
        assert!(
            matches!(found, Err(FileError::NotAFile { .. })),
            "{found:?}"
        );
        let found = OpenFile::open(&folder.path().join("none"));
        assert!(matches!(found, Err(FileError::Io { .. })), "{found:?}");
    }
}
