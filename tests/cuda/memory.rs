//! Offloaded bytes are missing from device memory, and are in host memory once.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Tensor, backend::Backend, bf16},
};
use burn_offload::{AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded, place};
use cubecl::cuda::CudaDevice;

use crate::{Eager, assert_all_given_back, configure, fill::fill, line};

/// Host bytes that count against the budget, those on their way back to the system too.
pub fn host_bytes_charged<B: OffloadTarget<Device = CudaDevice>>() -> u64 {
    Offloaded::<B>::host_bytes_charged(&CudaDevice::default())
}

pub fn device_used() -> u64 {
    let context = cudarc::driver::CudaContext::new(0).expect("there is a GPU");
    context.bind_to_thread().expect("it answers");
    let (free, total) = cudarc::driver::result::mem_get_info().expect("it answers");
    (total - free) as u64
}

/// Memory of the machine that is in use, in bytes: with what the driver keeps for itself.
fn machine_used() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("this is Linux");
    let field = |name: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with(name))
            .expect("it is there");
        let kib = line.split_whitespace().nth(1).expect("it has a figure");
        kib.parse::<u64>().expect("it is a number") * 1024
    };
    field("MemTotal:") - field("MemAvailable:")
}

/// What the machine loses to `bytes` of page-locked memory in blocks of `block`, taken from the driver
/// with nothing of this crate in between, for each byte of it: the driver's own books are in it.
fn cost_of_pinning(bytes: u64, block: u64) -> f64 {
    let context = cudarc::driver::CudaContext::new(0).expect("there is a GPU");
    context.bind_to_thread().expect("it answers");
    let before = machine_used();
    let flags = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE
        | cudarc::driver::sys::CU_MEMHOSTALLOC_DEVICEMAP;
    let blocks: Vec<_> = (0..bytes / block)
        .map(|_| {
            // SAFETY: a context is current on this thread. The memory is freed below.
            unsafe { cudarc::driver::result::malloc_host(block as usize, flags) }
                .expect("the driver gives it")
        })
        .collect();
    let taken = machine_used().saturating_sub(before);
    for block in blocks {
        // SAFETY: it came from the driver above, and nothing reads it.
        unsafe { cudarc::driver::result::free_host(block) }.expect("the driver takes it back");
    }
    taken as f64 / bytes as f64
}

/// Two hundredths, the most that a measured size may be off.
const TOLERANCE: f64 = 2.0;

#[derive(Module, Debug)]
struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Stack<B> {
    /// 32 layers of 128 MiB in bf16: 4 GiB.
    fn new(device: &B::Device) -> Self {
        let linear = || LinearConfig::new(8192, 8192).with_bias(false).init(device);
        Self {
            layers: (0..32).map(|_| linear()).collect(),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }
}

fn percent(measured: u64, expected: u64) -> f64 {
    (measured as f64 / expected as f64 - 1.0) * 100.0
}

/// `model` is the size of the whole model, of which the tolerance is a share.
fn host_line(case: &str, taken: u64, offloaded: u64, model: u64, block: u64) {
    let pinning = cost_of_pinning(offloaded, block);
    let driver = offloaded as f64 * (pinning - 1.0);
    let own = (taken as f64 - driver).max(0.0) as u64;
    line(
        &format!("{case}: host memory taken"),
        format!(
            "{} ({:+.2} % of the offloaded bytes; {:+.2} % without the {:.2} % that the driver takes \
             for its own books of pinned memory)",
            ByteSize::b(taken),
            percent(taken, offloaded),
            percent(own, offloaded),
            (pinning - 1.0) * 100.0,
        ),
    );
    let off = own.abs_diff(offloaded);
    assert!((off as f64) < model as f64 * TOLERANCE / 100.0, "{case}");
}

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    type Model<B> = Stack<Offloaded<B>>;
    let device = CudaDevice::default();
    let (block, bytes) = (8192 * 8192 * 2u64, 32 * 8192 * 8192 * 2u64);
    let dtype = burn::tensor::DType::BF16;
    let step = |model: &Model<B>| {
        let x = Tensor::<Offloaded<B>, 2>::ones([1, 8192], (&device, dtype));
        model.forward(x).into_data()
    };
    let clean = || {
        B::sync(&device).expect("the device works");
        B::memory_cleanup(&device);
        B::sync(&device).expect("the device works");
    };

    // The ring has a check of its own.
    let policy =
        |budget| OffloadPolicy::host_budget(ByteSize::b(budget)).with_access(AccessMode::InPlace);
    configure::<B>(OffloadPolicy::nothing());
    let model = fill(Model::<B>::new(&device), dtype);
    let expected = step(&model);
    clean();
    let resident = device_used();
    drop(model);
    assert_all_given_back::<B>();
    clean();
    let empty = device_used();
    line(
        &format!("4 GiB model, {name}: device memory of the resident weights"),
        format!(
            "{} ({:+.2} % of the weights)",
            ByteSize::b(resident - empty),
            percent(resident - empty, bytes)
        ),
    );

    // Straight from host data, half and all; then made on the device by Burn's initialisers.
    for (mode, budget) in [("half", bytes / 2), ("all", bytes)] {
        let (device_before, host_before) = (device_used(), machine_used());
        configure::<B>(policy(budget));
        let model = fill(Model::<B>::new(&device), dtype);
        let offloaded = Offloaded::<B>::report(&device).offloaded_bytes();
        assert_eq!(offloaded, budget);
        // CubeCL keeps its own copies of what it uploads until kernels have run.
        assert!(step(&model) == expected);
        clean();
        let host_taken = machine_used().saturating_sub(host_before);
        let device_taken = device_used().saturating_sub(device_before);
        let missing = (resident - empty).saturating_sub(device_taken);
        line(
            &format!("4 GiB model, {name}, {mode} offloaded: missing from device memory"),
            format!(
                "{} ({:+.2} % of the offloaded bytes)",
                ByteSize::b(missing),
                percent(missing, offloaded)
            ),
        );
        let case = format!("4 GiB model, {name}, {mode} offloaded");
        host_line(&case, host_taken, offloaded, bytes, block);
        assert!(percent(missing, offloaded).abs() < TOLERANCE, "{case}");
        drop(model);
        assert_all_given_back::<B>();
        clean();
    }
    let (device_before, host_before) = (device_used(), machine_used());
    let policy = policy(bytes);
    let (model, report) = place(Model::<B>::new(&device), "", &policy).expect("there is room");
    // Burn's initialisers make the device's default float type.
    let offloaded = report.offloaded_bytes();
    clean();
    let device_taken = device_used().saturating_sub(device_before);
    let host_taken = machine_used().saturating_sub(host_before);
    line(
        &format!(
            "initialised on the device, {name}: {} offloaded, device memory left over",
            ByteSize::b(offloaded)
        ),
        ByteSize::b(device_taken),
    );
    let case = format!("initialised on the device, {name}");
    host_line(&case, host_taken, offloaded, bytes, block);
    assert!(device_taken < offloaded / 50, "{device_taken}");
    drop(model);
    assert_all_given_back::<B>();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_eager() {
    check::<Eager<bf16>>("without fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_fused() {
    check::<crate::Fused<bf16>>("with fusion");
}
