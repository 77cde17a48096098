//! Burn modules: placing their parameters by name, loading them from checkpoints, and optimizers that
//! leave them in their places.

mod backend;
mod keep;
pub mod load;
mod optimizer;
mod path;
mod place;

pub use backend::OffloadBackend;
pub use keep::keep_places;
pub use optimizer::{OffloadOptimizer, OffloadedOptimizer};
pub use place::{PlaceError, place};
