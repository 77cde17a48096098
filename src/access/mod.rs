//! How one operation reads an offloaded tensor.

mod read;

pub use read::Hosted;
