#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// Where it is needed it is allowed, module by module.
#![deny(unsafe_code)]

mod access;
mod backend;
mod error;
pub mod host;
pub mod module;
pub mod policy;
pub mod report;
pub mod target;

pub use backend::{Offloaded, OffloadedTensor, optimizer_state_scope, parameter_scope};
pub use error::OffloadError;
pub use host::Stats;
pub use module::{OffloadOptimizer, OffloadedOptimizer, PlaceError, keep_places, load, place};
pub use policy::{
    AccessMode, Budget, ByteSize, Decision, OffloadPolicy, Order, ParamInfo, Placement,
    PolicyError, Reason, Used,
};
pub use report::Report;
pub use target::OffloadTarget;
