//! Copies ahead of their use are never wrong, whatever the order, the ring's size and the threads.

use burn::tensor::{DType, Element, Tensor, TensorData, bf16};
use burn_offload::{AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded, Stats};
use cubecl::cuda::CudaDevice;

use crate::{Eager, assert_all_given_back, configure, fill::values, line};

/// Products of this size take the tensor memory accelerator at the larger row counts.
const SIZE: usize = 2048;
const WEIGHTS: usize = 7;

type T<B> = Tensor<Offloaded<B>, 2>;

fn weights<B: OffloadTarget<Device = CudaDevice>>(dtype: DType) -> Vec<T<B>> {
    use burn::tensor::backend::Backend;
    let device = CudaDevice::default();
    let weight = |at| {
        let data = values(at as u64, [SIZE, SIZE].into(), dtype);
        Offloaded::<B>::memory_persistent_allocations(&device, data, |data| {
            Tensor::from_data(data, (&device, dtype))
        })
    };
    (0..WEIGHTS).map(weight).collect()
}

/// The orders in which a pass uses the weights: some repeat, some change, one has no pattern.
fn orders() -> Vec<Vec<usize>> {
    let straight: Vec<usize> = (0..WEIGHTS).collect();
    let shared = vec![0, 3, 1, 3, 2, 3, 4];
    let branch = |pass: usize| vec![0, 1 + pass % 2, 3, 5 + pass % 2];
    let mut state = 7u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % WEIGHTS
    };
    let mut orders = vec![straight; 5];
    orders.extend(vec![shared; 4]);
    orders.extend((0..6).map(branch));
    orders.extend((0..5).map(|_| (0..6).map(|_| random()).collect()));
    orders
}

fn pass<B: OffloadTarget<Device = CudaDevice>>(
    weights: &[T<B>],
    order: &[usize],
    x: &T<B>,
) -> T<B> {
    order.iter().fold(x.clone(), |x, at| {
        // Of the size of the input again, so that nothing runs out of the numbers' range.
        x.matmul(weights[*at].clone()).tanh()
    })
}

fn input<B: OffloadTarget<Device = CudaDevice>>(rows: usize, dtype: DType) -> T<B> {
    let device = CudaDevice::default();
    let data = values(1000, [rows, SIZE].into(), dtype);
    Tensor::from_data(data, (&device, dtype)) * 20.0
}

fn stats<B: OffloadTarget<Device = CudaDevice>>() -> Stats {
    Offloaded::<B>::stats(&CudaDevice::default())
}

fn check<B, F: Element>(name: &str)
where
    B: OffloadTarget<Device = CudaDevice>,
{
    let dtype = F::dtype();
    let bytes = (SIZE * SIZE * dtype.size()) as u64;
    let rows = [1, 1024];
    let run = |weights: &[T<B>]| -> Vec<TensorData> {
        let mut results = Vec::new();
        for rows in rows {
            let x = input::<B>(rows, dtype);
            // Several passes between reads, so that the host runs far ahead of the device.
            let queued: Vec<T<B>> = orders().iter().map(|o| pass(weights, o, &x)).collect();
            results.extend(queued.into_iter().map(Tensor::into_data));
            // And one read after each pass.
            results.extend(orders().iter().map(|o| pass(weights, o, &x).into_data()));
        }
        results
    };
    configure::<B>(OffloadPolicy::nothing());
    let resident = weights::<B>(dtype);
    run(&resident);
    let expected = run(&resident);
    drop(resident);

    for (mode, ring, prefetch) in [
        ("room for one", bytes, true),
        ("room for two and a half", bytes * 5 / 2, true),
        ("room for five", bytes * 5, true),
        ("room for all", bytes * 8, true),
        ("room for three, not ahead", bytes * 3, false),
        ("no room", 0, true),
    ] {
        let policy = OffloadPolicy::host_budget(ByteSize::gib(1))
            .with_access(AccessMode::Staged)
            .with_staging_budget(ByteSize::b(ring))
            .with_prefetch(prefetch);
        configure::<B>(policy);
        let before = stats::<B>();
        let weights = weights::<B>(dtype);
        assert!(run(&weights) == expected, "{name}, {mode}");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert!(run(&weights) == expected, "{name}, {mode}, in threads"));
            }
        });
        let after = stats::<B>();
        let since = |f: fn(&Stats) -> u64| f(&after) - f(&before);
        line(
            &format!("staged, {name}, {mode}"),
            format!(
                "bit-identical, {} copies, {} of them ahead, {} hits, {} reused, {} misses, {} \
                 wasted, {} found no room",
                since(|s| s.staged),
                since(|s| s.prefetched),
                since(|s| s.hits),
                since(|s| s.reused),
                since(|s| s.misses),
                since(|s| s.wasted),
                since(|s| s.no_room),
            ),
        );
        assert!(after.ring_bytes <= ring);
        if ring == 0 {
            assert_eq!(since(|s| s.staged), 0);
        } else {
            assert!(since(|s| s.staged) > 0);
        }
        if !prefetch {
            assert_eq!(since(|s| s.prefetched), 0);
        }
        drop(weights);
        assert_all_given_back::<B>();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn staging_eager_bf16() {
    check::<Eager<bf16>, bf16>("bf16 without fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn staging_fused_bf16() {
    check::<crate::Fused<bf16>, bf16>("bf16 with fusion");
}
