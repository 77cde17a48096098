//! How one operation reads an offloaded tensor.
//!
//! - `choice`: in place, or a copy, by what each costs;
//! - `read`: the tensor an operation gets;
//! - `room`: which bytes of the staging memory are whose;
//! - `schedule`: the order in which parameters are used, learned from watching.

mod choice;
mod read;
#[cfg(any(feature = "cuda", test))]
mod room;
#[cfg(any(feature = "cuda", test))]
mod schedule;

pub use choice::{LinkSpeed, Reading, Reuse};
pub use read::Hosted;
#[cfg(feature = "cuda")]
pub(crate) use {room::Room, schedule::Schedule};
