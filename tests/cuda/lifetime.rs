//! Host memory is not given back while queued work reads it.
//!
//! `BURN_OFFLOAD_POISON` has the library overwrite memory before it gives it back, so that work that
//! reads it too late reads NaN. `scripts/gpu-check` sets it.

use std::time::Instant;

use burn::tensor::{Tensor, TensorData, backend::Backend};
use burn_offload::{AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::CudaDevice;

use crate::{Eager, assert_all_given_back, configure, line};

const ROWS: usize = 512;
const COLUMNS: usize = 2048;
const BYTES: u64 = (ROWS * COLUMNS * 4) as u64;

/// A weight of one value, offloaded.
fn weight<B: OffloadTarget<Device = CudaDevice>>(value: f32) -> Tensor<Offloaded<B>, 2> {
    let device = CudaDevice::default();
    let data = TensorData::new(vec![value; ROWS * COLUMNS], [ROWS, COLUMNS]);
    Offloaded::<B>::memory_persistent_allocations(&device, data, |data| {
        Tensor::from_data(data, &device)
    })
}

/// Allocates weights, queues work on each behind a long product, and lets them go at once.
fn churn<B: OffloadTarget<Device = CudaDevice>>(rounds: usize, seed: usize) {
    type T<B, const D: usize> = Tensor<Offloaded<B>, D>;
    let device = CudaDevice::default();
    let busy = T::<B, 2>::ones([4096, 4096], &device) * 0.01;
    for round in 0..rounds {
        // Keeps the stream busy, so that what follows waits in its queue.
        let mut product = busy.clone();
        for _ in 0..4 {
            product = product.matmul(busy.clone());
        }
        let mut results = Vec::new();
        for at in 0..16 {
            // Exact in the ten bits that the matrix units keep of an f32.
            let value = ((seed * 331 + round * 16 + at) % 1000) as f32;
            let weight = weight::<B>(value);
            let sum = (weight.clone() * 2.0).max();
            let view = weight.clone().transpose().slice([3..5, 0..ROWS]).min();
            let rows = T::<B, 2>::ones([1, ROWS], &device).matmul(weight);
            results.push((value, sum, view, rows.max()));
        }
        drop(product);
        for (value, sum, view, rows) in results {
            let read = |t: T<B, 1>| t.into_data().as_slice::<f32>().expect("it is f32")[0];
            assert_eq!(read(sum), value * 2.0);
            assert_eq!(read(view), value);
            assert_eq!(read(rows), value * ROWS as f32);
        }
    }
}

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    assert!(
        std::env::var("BURN_OFFLOAD_POISON").is_ok(),
        "set BURN_OFFLOAD_POISON=255, or this shows little"
    );
    for (mode, policy) in [
        (
            "in place",
            OffloadPolicy::host_budget(ByteSize::gib(4)).with_access(AccessMode::InPlace),
        ),
        (
            "staged ahead, small ring",
            OffloadPolicy::host_budget(ByteSize::gib(4))
                .with_access(AccessMode::Staged)
                .with_staging_budget(ByteSize::b(BYTES * 3)),
        ),
        // Sixteen weights do not fit, so allocation waits for memory that queued work reads.
        (
            "in place, tight budget",
            OffloadPolicy::host_budget(ByteSize::b(BYTES * 6)).with_access(AccessMode::InPlace),
        ),
        (
            "staged",
            OffloadPolicy::host_budget(ByteSize::gib(4)).with_uva(false),
        ),
    ] {
        configure::<B>(policy);
        churn::<B>(1, 0); // tunes
        let start = Instant::now();
        churn::<B>(20, 1);
        std::thread::scope(|scope| {
            for seed in 2..6 {
                scope.spawn(move || churn::<B>(10, seed));
            }
        });
        assert_all_given_back::<B>();
        line(
            &format!("freed while queued work reads it, {name}, {mode}"),
            format!(
                "{} weights, all results right, {:.1} s",
                16 * (20 + 4 * 10),
                start.elapsed().as_secs_f64()
            ),
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lifetime_eager() {
    check::<Eager<f32>>("without fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lifetime_fused() {
    check::<crate::Fused<f32>>("with fusion");
}
