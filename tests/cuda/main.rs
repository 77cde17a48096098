//! Checks on an NVIDIA GPU. They are ignored where there may be none; `scripts/gpu-check` runs them.
//!
//! Each prints lines `| check | figure |` for the table in `benches/results/`.
#![cfg(feature = "cuda")]

#[allow(dead_code)]
#[path = "../../examples/llama/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../examples/llama/model.rs"]
mod model;

mod fill;
mod lifetime;
mod load;
mod logits;
mod memory;
mod ops;
#[allow(dead_code)]
#[macro_use]
#[path = "../ops/harness/mod.rs"]
mod ops_harness;
mod staging;
mod training;

use burn_cubecl::CubeBackend;
use burn_offload::{OffloadError, OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::{CudaDevice, CudaRuntime};

/// burn-cuda without fusion.
pub type Eager<F> = CubeBackend<CudaRuntime, F, i32, u8>;
/// burn-cuda with fusion, its default.
#[cfg(feature = "fusion")]
pub type Fused<F> = burn_fusion::Fusion<Eager<F>>;

/// A line of the table.
pub fn line(check: &str, figure: impl std::fmt::Display) {
    println!("| {check} | {figure} |");
}

/// Sets the device's policy.
pub fn configure<B: OffloadTarget<Device = CudaDevice>>(policy: OffloadPolicy) {
    Offloaded::<B>::configure(&CudaDevice::default(), policy).expect("the device can be used");
}

/// Nothing is left on the books, and none of its memory with the driver.
pub fn assert_all_given_back<B: OffloadTarget<Device = CudaDevice>>() {
    let device = CudaDevice::default();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        B::sync(&device).expect("the device works");
        let report = Offloaded::<B>::report(&device);
        assert_eq!(report.parameters, [], "{report}");
        // The next budget is whole again only when the memory is really free.
        if memory::host_bytes_charged::<B>() == 0 {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "host memory was not given back"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn without_a_driver_configure_says_so() {
    match Offloaded::<Eager<f32>>::configure(&CudaDevice::default(), OffloadPolicy::nothing()) {
        Ok(()) => {}
        Err(OffloadError::NoDriver { .. } | OffloadError::NoDevice { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_device_that_is_not_there_is_a_typed_error() {
    let policy = OffloadPolicy::nothing();
    let failed = Offloaded::<Eager<f32>>::configure(&CudaDevice::new(63), policy);
    assert!(
        matches!(failed, Err(OffloadError::NoDevice { .. })),
        "{failed:?}"
    );
}
