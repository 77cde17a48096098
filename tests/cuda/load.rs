//! Weights are read from where the file lies, and give what the same weights give in device memory.

use std::{fs, time::Instant};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{DType, Tensor, TensorData, backend::Backend, bf16},
};
use burn_offload::{
    AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded,
    host::MemoryKind,
    load::{Checkpoint, Loader},
};
use cubecl::cuda::CudaDevice;
use safetensors::{Dtype, tensor::TensorView};

use crate::{Eager, assert_all_given_back, configure, fill::values, line};

const SIZE: usize = 2048;
const LAYERS: usize = 16;

#[derive(Module, Debug)]
struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Stack<B> {
    fn new(device: &B::Device) -> Self {
        let linear = || LinearConfig::new(SIZE, SIZE).with_bias(false).init(device);
        Self {
            layers: (0..LAYERS).map(|_| linear()).collect(),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let layers = self.layers.iter();
        layers.fold(x, |x, layer| layer.forward(x).tanh())
    }
}

/// Writes the stack's weights as PyTorch does, `[outputs, inputs]`, in two files with an index.
fn write(folder: &std::path::Path) {
    let mut map = serde_json::Map::new();
    for (file, layers) in [
        ("a.safetensors", 0..LAYERS / 2),
        ("b.safetensors", LAYERS / 2..LAYERS),
    ] {
        let data: Vec<(String, TensorData)> = layers
            .map(|at| {
                let data = values(at as u64, [SIZE, SIZE].into(), DType::BF16);
                (format!("layers.{at}.weight"), data)
            })
            .collect();
        let views = data.iter().map(|(name, data)| {
            map.insert(name.clone(), file.into());
            let view = TensorView::new(Dtype::BF16, vec![SIZE, SIZE], &data.bytes);
            (name.clone(), view.expect("it is whole"))
        });
        safetensors::serialize_to_file(views, None, &folder.join(file)).expect("there is room");
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    let path = folder.join("model.safetensors.index.json");
    fs::write(path, index.to_string()).expect("there is room");
}

/// The mean distance of the values of two runs.
fn distance(a: &[TensorData], b: &[TensorData]) -> f64 {
    let pairs = a.iter().zip(b);
    let distances: Vec<f64> = pairs
        .flat_map(|(a, b)| {
            let pairs = a.iter::<f64>().zip(b.iter::<f64>());
            pairs.map(|(a, b)| (a - b).abs()).collect::<Vec<_>>()
        })
        .collect();
    distances.iter().sum::<f64>() / distances.len() as f64
}

/// `exact`: resident weights give the same bits. Without it they are close, and all ways of reading
/// offloaded ones give the same bits: burn-fusion puts a resident weight that lies by columns into the block
/// of the operation before it, and so stores it anew, by rows, for the product; an offloaded one enters its
/// queue between the two and is read as it lies.
fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str, exact: bool) {
    type Model<B> = Stack<Offloaded<B>>;
    let device = CudaDevice::default();
    let folder = tempfile::tempdir().expect("there is room");
    write(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).expect("it was just written");
    let bytes = (LAYERS * SIZE * SIZE * 2) as u64;
    let run = |model: &Model<B>| -> Vec<TensorData> {
        let input = |rows: usize| {
            let data = values(99, [rows, SIZE].into(), DType::BF16);
            Tensor::<Offloaded<B>, 2>::from_data(data, (&device, DType::BF16)) * 20.0
        };
        let pass = |rows| model.forward(input(rows)).into_data();
        [1, 1024, 1, 1024].map(pass).to_vec()
    };
    let load = |policy: &OffloadPolicy| {
        let model = Stack::new(&device);
        let loaded = Loader::new(&checkpoint).load::<Offloaded<B>, _>(model, "", policy);
        loaded.expect("the checkpoint fits the model")
    };
    configure::<B>(OffloadPolicy::nothing());
    let (resident, report) = load(&OffloadPolicy::nothing());
    assert_eq!(report.offloaded_bytes(), 0, "{report}");
    run(&resident);
    let with_resident = run(&resident);
    let mut expected = exact.then(|| with_resident.clone());
    drop(resident);
    assert_all_given_back::<B>();

    let all = OffloadPolicy::host_budget(ByteSize::b(bytes));
    for (mode, policy) in [
        ("as is faster", all.clone()),
        ("in place", all.clone().with_access(AccessMode::InPlace)),
        ("staged", all.clone().with_uva(false)),
        ("staged from pageable memory", all.clone().with_pin(false)),
    ] {
        configure::<B>(policy.clone());
        let start = Instant::now();
        let (model, report) = load(&policy);
        let taken = start.elapsed();
        assert_eq!(report.offloaded_bytes(), bytes, "{report}");
        let kinds = report.parameters.iter().map(|p| p.memory);
        let in_file = kinds.filter(|kind| {
            matches!(
                kind,
                Some(MemoryKind::File | MemoryKind::PinnedFile | MemoryKind::MappedFile)
            )
        });
        let in_file = in_file.count();
        // Other blocks are fused in the first run than later.
        run(&model);
        let got = run(&model);
        let away = distance(&got, &with_resident);
        assert!(away < 0.01, "{name}, {mode}: {away} away from resident");
        let expected = expected.get_or_insert_with(|| got.clone());
        assert!(got == *expected, "{name}, {mode}");
        let same = match got == with_resident {
            true => "bit-identical".into(),
            false => format!(
                "the same bits for every way offloaded, on average {away:.1e} away from resident"
            ),
        };
        line(
            &format!("loaded from a checkpoint in two files, {name}, {mode}"),
            format!(
                "{same}, {in_file} of {LAYERS} parameters left in the file as {}, loaded in \
                 {:.0} ms",
                report.parameters[0]
                    .memory
                    .map_or_else(|| "none".into(), |kind| kind.to_string()),
                taken.as_secs_f64() * 1e3
            ),
        );
        drop(model);
        assert_all_given_back::<B>();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn load_eager() {
    check::<Eager<bf16>>("without fusion", true);
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn load_fused() {
    check::<crate::Fused<bf16>>("with fusion", false);
}
