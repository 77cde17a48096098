//! A Llama-style decoder in Burn, shared by the `generate` and `train` examples.
//!
//! Nothing in `model` knows of offloading: it is generic over Burn's `Backend`, as any model is.

// Each example uses its own part of this module.
#![allow(dead_code)]

pub mod chat;
pub mod checkpoint;
pub mod config;
mod elements;
pub mod generation;
pub mod log;
pub mod model;
pub mod picture;
pub mod policy;
pub mod quantize;
pub mod sample;
pub mod shape;
pub mod tokenizer;
mod walk;

/// The backend that the examples wrap.
#[cfg(feature = "cuda")]
pub type Target = burn_cuda::Cuda;
#[cfg(not(feature = "cuda"))]
pub type Target = burn_flex::Flex;
