//! How one operation reads an offloaded tensor.
//!
//! - `reading`: how often it reads what of it;
//! - `cost`: in place, or a copy, by what each costs;
//! - `read`: the tensor an operation gets;
//! - `room`: which bytes of the staging memory are whose;
//! - `schedule`: the order in which parameters are used, learned from watching.

#[cfg(any(feature = "cuda", test))]
mod cost;
mod read;
mod reading;
#[cfg(any(feature = "cuda", test))]
mod room;
#[cfg(any(feature = "cuda", test))]
mod schedule;

pub use read::Hosted;
pub use reading::{Reading, Reuse};
#[cfg(feature = "cuda")]
pub(crate) use {cost::LinkSpeed, room::Room, schedule::Schedule};
