//! Where offloaded bytes live, and the account that is kept of them.
//!
//! [`HostBuffer`] is a parameter's bytes in host memory, written once and then only read.
//! A [`HostAllocator`] makes them: [`PageableAllocator`] here, page-locked ones in `target::cuda`.
//! Every byte is charged to the device's [`Ledger`] until it is really given back.

mod buffer;
mod file;
mod ledger;
mod op;
mod system;

pub use buffer::{HostAllocator, HostBuffer, HostError, HostMemory, MemoryKind, PageableAllocator};
#[cfg(feature = "cuda")]
pub(crate) use file::FileMemory;
pub use file::{FileError, FileSlice, OpenFile};
pub use ledger::{Admission, Charge, Entry, Ledger, Record};
pub use op::Op;
#[cfg(feature = "cuda")]
pub(crate) use op::{announce_operations, quiesce};
pub use system::{HostOptions, memory_limit};
