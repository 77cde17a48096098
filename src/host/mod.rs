//! Where offloaded bytes live, and the account that is kept of them.
//!
//! [`HostBuffer`] is a parameter's bytes in host memory, written once and then only read.
//! A [`HostAllocator`] makes them: [`PageableAllocator`] here, page-locked ones in `target::cuda`.
//! Every byte is charged to the device's [`Ledger`] until it is really given back.

mod buffer;
#[allow(unsafe_code)]
mod bytes;
#[allow(unsafe_code)]
mod file;
mod ledger;
mod op;
mod staging;
mod system;
pub(crate) mod watch;

pub use buffer::{
    BufferId, HostAllocator, HostBuffer, HostError, HostMemory, MemoryKind, PageableAllocator,
    WeakHostBuffer,
};
#[cfg(feature = "cuda")]
pub(crate) use file::FileMemory;
pub use file::{FileError, FileSlice, OpenFile};
pub use ledger::{Admission, Charge, Displaced, Entry, Ledger, Record, Role};
pub use op::Op;
#[cfg(feature = "cuda")]
pub(crate) use op::{
    UnderWay, announce_operations, known_streams, quiesce, take_ended_streams, watch_streams,
};
pub use staging::{StagingOptions, Stats};
pub use system::{HostOptions, memory_limit};
