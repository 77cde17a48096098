//! Burn modules: placing their parameters by name, and loading them from checkpoints.

mod backend;
pub mod load;
mod path;
mod place;

pub use backend::OffloadBackend;
pub use place::{PlaceError, place};
