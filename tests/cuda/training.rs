//! Training with weights and moments in host memory gives what training on the device gives.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use burn::{
    backend::Autodiff,
    module::{AutodiffModule, Module},
    nn::{Linear, LinearConfig},
    optim::{AdamWConfig, GradientsParams, Optimizer},
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use burn_offload::{
    AccessMode, ByteSize, OffloadOptimizer, OffloadPolicy, OffloadTarget, Offloaded,
};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, assert_all_given_back, configure,
    fill::{fill, values},
    line,
    memory::device_used,
};

#[derive(Module, Debug)]
struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Stack<B> {
    fn new(layers: usize, size: usize, device: &B::Device) -> Self {
        let linear = || LinearConfig::new(size, size).with_bias(false).init(device);
        Self {
            layers: (0..layers).map(|_| linear()).collect(),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let layers = self.layers.iter();
        layers.fold(x, |x, layer| layer.forward(x).tanh())
    }
}

/// Trains for so many steps. Returns the losses and the weights.
fn train<B: OffloadTarget<Device = CudaDevice>>(
    layers: usize,
    size: usize,
    steps: usize,
) -> (Vec<TensorData>, Vec<TensorData>)
where
    Autodiff<Offloaded<B>>:
        burn::tensor::backend::AutodiffBackend<InnerBackend = Offloaded<B>, Device = CudaDevice>,
{
    type A<B> = Autodiff<Offloaded<B>>;
    let device = CudaDevice::default();
    let mut model = fill(Stack::<A<B>>::new(layers, size, &device), DType::F32);
    let mut optimizer = AdamWConfig::new().init().offloaded();
    let input = |seed: u64| {
        let data = values(seed, [64, size].into(), DType::F32);
        Tensor::<A<B>, 2>::from_data(data, &device) * 20.0
    };
    let mut losses = Vec::new();
    for step in 0..steps {
        let wrong = model.forward(input(step as u64)) - input(1000);
        let loss = wrong.powi_scalar(2).mean();
        losses.push(loss.clone().into_data());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    let weights = model.valid().layers.into_iter();
    let weights = weights.map(|layer| layer.weight.val().into_data());
    (losses, weights.collect())
}

/// The greatest distance of two values.
fn distance(a: &[TensorData], b: &[TensorData]) -> f64 {
    let pairs = a.iter().zip(b);
    let distances = pairs.flat_map(|(a, b)| {
        let pairs = a.iter::<f64>().zip(b.iter::<f64>());
        pairs.map(|(a, b)| (a - b).abs()).collect::<Vec<_>>()
    });
    distances.fold(0.0, f64::max)
}

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    const LAYERS: usize = 6;
    const SIZE: usize = 1024;
    const STEPS: usize = 8;
    let bytes = (LAYERS * SIZE * SIZE * 4) as u64;

    configure::<B>(OffloadPolicy::nothing());
    let run = || train::<B>(LAYERS, SIZE, STEPS);
    run();
    let (expected, once) = (run(), run());
    let own = distance(&expected.0, &once.0).max(distance(&expected.1, &once.1));
    line(
        &format!("{STEPS} steps of AdamW, {name}, resident, one run against another"),
        format!("greatest distance of losses and weights {own:.1e}"),
    );
    assert_all_given_back::<B>();
    let all = OffloadPolicy::host_budget(ByteSize::b(bytes));
    let with_state = all.clone().with_optimizer_state(ByteSize::b(2 * bytes));
    for (mode, policy) in [
        ("weights offloaded", all.clone()),
        ("weights and moments offloaded", with_state.clone()),
        (
            "the same, in place",
            with_state.clone().with_access(AccessMode::InPlace),
        ),
        (
            "the same, staged",
            with_state.clone().with_access(AccessMode::Staged),
        ),
        (
            "the same, from pageable memory",
            with_state.clone().with_pin(false),
        ),
        (
            "half of the weights and moments offloaded",
            OffloadPolicy::host_budget(ByteSize::b(bytes / 2))
                .with_optimizer_state(ByteSize::b(bytes)),
        ),
    ] {
        configure::<B>(policy);
        let got = run();
        let away = distance(&expected.0, &got.0).max(distance(&expected.1, &got.1));
        let check = format!("{STEPS} steps of AdamW, {name}, {mode}");
        if got == expected {
            line(&check, "bit-identical to resident");
        } else {
            line(
                &check,
                format!("greatest distance from resident {away:.1e}"),
            );
        }
        assert!(away <= own, "{name}, {mode}: {away}, of its own {own}");
        assert_all_given_back::<B>();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn training_eager() {
    check::<Eager<f32>>("without fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn training_fused() {
    check::<crate::Fused<f32>>("with fusion");
}

/// The most device memory in use while `task` runs, looked at every millisecond.
fn peak<T>(task: impl FnOnce() -> T) -> (T, u64) {
    let (done, most) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let watcher = std::thread::spawn({
        let (done, most) = (done.clone(), most.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(device_used(), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let output = task();
    done.store(true, Ordering::Relaxed);
    watcher.join().expect("looking does not fail");
    (output, most.load(Ordering::Relaxed))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn training_takes_no_device_memory_for_weights_and_moments() {
    const LAYERS: usize = 24;
    const SIZE: usize = 4096;
    let weights = (LAYERS * SIZE * SIZE * 4) as u64;
    let policy = OffloadPolicy::host_budget(ByteSize::b(weights))
        .with_optimizer_state(ByteSize::b(2 * weights));
    configure::<Eager<f32>>(policy);
    // Tunes, and takes the ring.
    train::<Eager<f32>>(2, SIZE, 2);
    Eager::<f32>::memory_cleanup(&CudaDevice::default());
    let before = device_used();
    let ((losses, _), most) = peak(|| train::<Eager<f32>>(LAYERS, SIZE, 3));
    let taken = most.saturating_sub(before);
    // Weights, their gradients, and two moments.
    let all = 4 * weights;
    line(
        "device memory that training takes, weights and moments of AdamW offloaded, f32",
        format!(
            "{:.2} GiB of {:.2} GiB of weights, gradients and moments, of which gradients are {:.2}",
            taken as f64 / (1u64 << 30) as f64,
            all as f64 / (1u64 << 30) as f64,
            weights as f64 / (1u64 << 30) as f64,
        ),
    );
    assert!(
        losses
            .iter()
            .all(|loss| loss.iter::<f32>().all(f32::is_finite))
    );
    assert!(taken < all / 2, "{taken} of {all}");
    assert_all_given_back::<Eager<f32>>();
}
