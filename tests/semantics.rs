//! What models rely on: a parameter stays where it was placed, and what takes its place is placed as it was.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::{
    backend::Autodiff,
    module::{AutodiffModule, Module},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    record::{CompactRecorder, FileRecorder, FullPrecisionSettings, NamedMpkFileRecorder, Record},
    tensor::{Int, Tensor, TensorData, backend::Backend, quantization::QuantValue},
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, Report, place};
use common::quantizer;

type B = Offloaded<Flex>;

/// A device's policy is the process's, so one test at a time sets it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    configure(OffloadPolicy::nothing());
    assert_eq!(report().parameters, []);
    alone
}

fn configure(policy: OffloadPolicy) {
    B::configure(&Default::default(), policy).unwrap();
}

fn report() -> Report {
    B::report(&Default::default())
}

fn offloaded() -> (usize, u64) {
    let report = report();
    (report.offloaded_parameters(), report.offloaded_bytes())
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    embedding: Embedding<B>,
    linear: Linear<B>,
}

const BYTES: u64 = (16 * 8 + 8 * 8 + 8) * 4;

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let net = Self {
            embedding: EmbeddingConfig::new(16, 8).init(device),
            linear: LinearConfig::new(8, 8).init(device),
        };
        // Parameters are made when they are first used.
        net.forward(device);
        net
    }

    fn forward(&self, device: &B::Device) -> TensorData {
        let tokens = Tensor::<B, 2, Int>::from_data([[1, 5, 5], [15, 0, 2]], device);
        self.linear
            .forward(self.embedding.forward(tokens))
            .into_data()
    }
}

fn recorded<R: FileRecorder<B>>(recorder: R, exact: bool) {
    let device = Default::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net");
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let net = Net::<B>::new(&device);
    let expected = net.forward(&device);
    net.clone().save_file(&path, &recorder).unwrap();
    drop(net);

    // Into a module that was never made, into one that was, and resident.
    for made in [false, true] {
        let net = match made {
            true => Net::<B>::new(&device),
            false => Net {
                embedding: EmbeddingConfig::new(16, 8).init(&device),
                linear: LinearConfig::new(8, 8).init(&device),
            },
        };
        let loaded = net.load_file(&path, &recorder, &device).unwrap();
        assert_eq!(offloaded(), (3, BYTES), "{}", report());
        let output = loaded.forward(&device);
        if exact {
            assert_eq!(output, expected);
        }
        drop(loaded);
        configure(OffloadPolicy::nothing());
        let resident = Net::new(&device).load_file(&path, &recorder, &device);
        assert_eq!(offloaded(), (0, 0));
        assert_eq!(resident.unwrap().forward(&device), output);
        configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    }
}

#[test]
fn records_of_full_and_half_precision_are_placed() {
    let _alone = alone();
    recorded(
        NamedMpkFileRecorder::<FullPrecisionSettings>::default(),
        true,
    );
    recorded(CompactRecorder::default(), false);
}

#[test]
fn a_record_taken_from_an_offloaded_module_stays_in_host_memory() {
    let _alone = alone();
    let device = Default::default();
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let net = Net::<B>::new(&device);
    let expected = net.forward(&device);
    let item = net
        .clone()
        .into_record()
        .into_item::<FullPrecisionSettings>();
    drop(net);
    let record = Record::<B>::from_item::<FullPrecisionSettings>(item, &device);
    let net = Net::<B>::new(&device).load_record(record);
    assert_eq!(net.forward(&device), expected);
    assert_eq!(offloaded(), (3, BYTES), "{}", report());
}

#[test]
fn quantizing_an_offloaded_module_leaves_it_in_host_memory() {
    let _alone = alone();
    let device = Default::default();
    let expected = |value| {
        Flex::seed(&device, 5);
        let net = Net::<Flex>::new(&device).quantize_weights(&mut quantizer(value));
        net.forward(&device)
    };
    for value in [QuantValue::Q8S, QuantValue::Q4S] {
        let expected = expected(value);
        // Placed as it is made, and by name under a policy that is not the device's.
        for by_name in [false, true] {
            let policy = OffloadPolicy::host_budget(ByteSize::mib(1)).with_keep(["bias"]);
            configure(match by_name {
                true => OffloadPolicy::nothing(),
                false => OffloadPolicy::host_budget(ByteSize::mib(1)),
            });
            B::seed(&device, 5);
            let mut net = Net::<B>::new(&device);
            if by_name {
                net = place(net, "", &policy).unwrap().0;
            }
            let (count, before) = offloaded();
            assert_eq!(count, if by_name { 2 } else { 3 }, "{}", report());

            let net = net.quantize_weights(&mut quantizer(value));
            let (count, after) = offloaded();
            assert_eq!(count, if by_name { 2 } else { 3 }, "{}", report());
            assert!(after * 3 < before, "{}", report());
            if by_name {
                let names = report().parameters.into_iter().filter_map(|p| p.name);
                let names: Vec<String> = names.collect();
                assert!(names.contains(&"linear.weight".to_string()), "{names:?}");
            }
            assert_eq!(
                net.forward(&device),
                expected,
                "{value:?}, by name: {by_name}"
            );
        }
    }
}

#[test]
fn a_quantized_module_that_has_no_room_says_so() {
    let _alone = alone();
    let device = Default::default();
    // The bytes of the module are all there is, and they are given back only when it is gone.
    configure(OffloadPolicy::host_budget(ByteSize::b(BYTES)));
    let net = Net::<B>::new(&device);
    assert_eq!(offloaded(), (3, BYTES));
    let kept = net.clone();
    let net = net.quantize_weights(&mut quantizer(QuantValue::Q8S));
    assert!(B::host_bytes_charged(&device) <= BYTES);
    let resident: Vec<_> = report()
        .parameters
        .into_iter()
        .filter(|p| p.decision.placement == burn_offload::Placement::Resident)
        .collect();
    assert_eq!(resident.len(), 3, "{}", report());
    drop((kept, net));
}

#[test]
fn what_is_read_out_comes_from_host_memory() {
    let _alone = alone();
    let device = Default::default();
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let linear = LinearConfig::new(64, 64).init::<B>(&device);
    let data = linear.weight.val().into_data();
    let again = linear.weight.val().into_data();
    let address = |data: &TensorData| {
        let bytes: &[u8] = &data.bytes;
        bytes.as_ptr()
    };
    assert_eq!(address(&data), address(&again), "it was copied");
    drop(linear);
    // The data keeps the memory alive, and does not change with it.
    assert_eq!(data, again);
}

/// Each of these is another handle of the same parameters: nothing is stored twice, nothing becomes resident.
#[test]
fn a_module_that_is_cloned_forked_frozen_or_validated_keeps_its_host_memory() {
    let _alone = alone();
    let device = Default::default();
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let inner = Net::<B>::new(&device);
    let expected = inner.forward(&device);
    let net = Net::<Autodiff<B>>::from_inner(inner);
    let placed = (3, BYTES);
    assert_eq!(offloaded(), placed);
    let check = |what: &str, out: TensorData| {
        assert_eq!(out, expected, "{what}");
        assert_eq!(offloaded(), placed, "{what}: {}", report());
        assert_eq!(report().parameters.len(), 3, "{what}: {}", report());
        assert_eq!(B::host_bytes_charged(&device), BYTES, "{what}");
    };

    // Autodiff keeps what a forward pass read until a backward pass, so none is made with gradients.
    let cloned = net.clone();
    check("clone", cloned.valid().forward(&device));
    let forked = net.clone().fork(&device);
    check("fork", forked.valid().forward(&device));
    let valid = net.valid();
    check("valid", valid.forward(&device));
    let frozen = net.clone().no_grad();
    check("no_grad", frozen.forward(&device));
    let moved = net.clone().to_device(&device);
    check("to_device", moved.valid().forward(&device));

    // Whichever handle is the last keeps the memory alive.
    drop((net, cloned, forked, frozen, moved));
    check("the last one", valid.forward(&device));
    drop(valid);
    assert_eq!(offloaded(), (0, 0), "{}", report());
    assert_eq!(B::host_bytes_charged(&device), 0);
}
