//! Checkpoints: weights are read from where the file lies.
//!
//! A [`Checkpoint`] is one safetensors file, or several with an index, open for reading. A [`Loader`]
//! puts its tensors into a module of any backend over [`Offloaded`](crate::Offloaded), each straight
//! into the place that the policy gives it.
//!
//! # What is copied
//!
//! An offloaded parameter whose stored type is the wanted one is not copied: its part of the file is
//! mapped, and read from there (the system's page cache). On CUDA the part is registered with the
//! driver, read-only, and kernels read it in place, if it begins at a multiple of 16 bytes; else it
//! is staged from there. Where the driver refuses that, its bytes are copied once into page-locked
//! memory, or, where there is no room for that either, staged from the file. Other parameters are
//! converted and copied one at a time. A linear weight stays as it lies in the file,
//! `[output, input]`, and is turned when it is read.
//!
//! All offloaded bytes count against the host budget, those in files too, though the system may let
//! go of file pages that are not registered and read them again.
//!
//! # The file while it is in use
//!
//! A file that has changed since it was opened is refused. After a parameter was loaded from it
//! nobody must write or shorten the file for as long as the parameter lives: its values would change,
//! or the process would end with `SIGBUS`. To replace a checkpoint, rename a new file over it.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn_flex::Flex;
//! use burn_offload::{OffloadPolicy, Offloaded, load::{Checkpoint, Loader}};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! # let zeros = [0u8; 8 * 4 * 4];
//! # let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![4, 8], &zeros)?;
//! # safetensors::serialize_to_file([("fc.weight", view)], None, &path)?;
//! let linear = LinearConfig::new(8, 4).with_bias(false).init::<Offloaded<Flex>>(&Default::default());
//! let policy = OffloadPolicy::host_budget(bytesize::ByteSize::mib(1));
//! let checkpoint = Checkpoint::open(&path)?;
//! let (linear, report) = Loader::new(&checkpoint).with_prefix("fc").load(linear, "", &policy)?;
//! assert_eq!(linear.weight.dims(), [8, 4]);
//! assert_eq!(report.offloaded_bytes(), 8 * 4 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checkpoint;
mod error;
mod header;
mod loader;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use error::{HeaderError, LoadError};
pub use loader::{Convention, Loader, Progress};
