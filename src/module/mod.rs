//! Burn modules: placing their parameters by name.

mod backend;
mod path;
mod place;

pub use backend::OffloadBackend;
pub use place::{PlaceError, place};
