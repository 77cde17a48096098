//! Offloaded bytes are missing from device memory, and are in host memory once.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Tensor, backend::Backend, bf16},
};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded, place};
use cubecl::cuda::CudaDevice;

use crate::{Eager, assert_all_given_back, configure, fill::fill, line};

/// Host bytes that count against the budget, those on their way back to the system too.
pub fn host_bytes_charged<B: OffloadTarget<Device = CudaDevice>>() -> u64 {
    Offloaded::<B>::host_bytes_charged(&CudaDevice::default())
}

fn device_used() -> u64 {
    let context = cudarc::driver::CudaContext::new(0).expect("there is a GPU");
    context.bind_to_thread().expect("it answers");
    let (free, total) = cudarc::driver::result::mem_get_info().expect("it answers");
    (total - free) as u64
}

/// Memory of the machine that is in use, in bytes.
fn machine_used() -> u64 {
    let field = proc_fields("/proc/meminfo");
    field("MemTotal:") - field("MemAvailable:")
}

/// Memory that this process has in use, in bytes: without what the driver keeps for itself.
fn process_used() -> u64 {
    proc_fields("/proc/self/status")("VmRSS:")
}

/// The fields of a file of figures in KiB, as bytes.
fn proc_fields(path: &str) -> impl Fn(&str) -> u64 {
    let text = std::fs::read_to_string(path).expect("this is Linux");
    move |name: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with(name))
            .expect("it is there");
        let kib = line.split_whitespace().nth(1).expect("it has a figure");
        kib.parse::<u64>().expect("it is a number") * 1024
    }
}

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

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    type Model<B> = Stack<Offloaded<B>>;
    let device = CudaDevice::default();
    let bytes = 32 * 8192 * 8192 * 2u64;
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
        let process_before = process_used();
        configure::<B>(OffloadPolicy::host_budget(ByteSize::b(budget)));
        let model = fill(Model::<B>::new(&device), dtype);
        let offloaded = Offloaded::<B>::report(&device).offloaded_bytes();
        assert_eq!(offloaded, budget);
        // CubeCL keeps its own copies of what it uploads until kernels have run.
        assert!(step(&model) == expected);
        clean();
        let host_taken = machine_used().saturating_sub(host_before);
        let process_taken = process_used().saturating_sub(process_before);
        line(
            &format!("4 GiB model, {name}, {mode} offloaded: taken by this process (VmRSS)"),
            format!(
                "{} ({:+.2} % of the offloaded bytes)",
                ByteSize::b(process_taken),
                percent(process_taken, offloaded)
            ),
        );
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
        line(
            &format!("4 GiB model, {name}, {mode} offloaded: host memory taken"),
            format!(
                "{} ({:+.2} % of the offloaded bytes)",
                ByteSize::b(host_taken),
                percent(host_taken, offloaded)
            ),
        );
        assert!(percent(missing, offloaded).abs() < 2.0);
        assert!(percent(host_taken, offloaded).abs() < 2.0);
        drop(model);
        assert_all_given_back::<B>();
        clean();
    }
    let (device_before, host_before) = (device_used(), machine_used());
    let policy = OffloadPolicy::host_budget(ByteSize::b(bytes));
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
    line(
        &format!("initialised on the device, {name}: host memory taken"),
        format!(
            "{} ({:+.2} % of the offloaded bytes)",
            ByteSize::b(host_taken),
            percent(host_taken, offloaded)
        ),
    );
    assert!(device_taken < offloaded / 50, "{device_taken}");
    assert!(percent(host_taken, offloaded).abs() < 2.0);
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
