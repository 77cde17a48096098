//! What goes where: which parameters are offloaded to host memory and which stay on the device.
//!
//! Everything here is a pure function of names and sizes; nothing touches memory or a device.
//!
//! - [`OffloadPolicy`] is what the user writes, in code or in a configuration file.
//! - [`OffloadPolicy::decide`] places one allocation, as it comes.
//! - [`OffloadPolicy::plan`] places a whole model, whose names and sizes are known.
//! - Both answer with a [`Decision`]: a [`Placement`] and the [`Reason`] for it.

mod budget;
mod error;
mod order;
mod plan;
#[allow(clippy::module_inception)]
mod policy;
mod select;

pub use budget::Budget;
pub use bytesize::ByteSize;
pub use error::PolicyError;
pub use order::Order;
pub use plan::{Decision, ParamInfo, Placement, Reason, Used};
pub use policy::{AccessMode, OffloadPolicy};
pub use select::selector_matches;
