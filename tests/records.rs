//! Burn's own stores and recorders on offloaded modules. One test: it configures the device.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::TensorData,
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, parameter_scope};
use burn_store::{BurnpackStore, ModuleSnapshot, PytorchStore, SafetensorsStore};

type B = Offloaded<Flex>;

/// The values, without the parameters' ids, which not every store keeps.
fn values(module: &Linear<B>) -> [TensorData; 2] {
    let bias = module.bias.as_ref().unwrap().val();
    [module.weight.val().into_data(), bias.into_data()]
}

#[test]
fn stores_and_records_are_placed_by_policy_and_equal_to_the_bit() {
    let device = Default::default();
    let folder = tempfile::tempdir().unwrap();
    let make = || LinearConfig::new(5, 7).init::<B>(&device);
    let size = (5 * 7 + 7) * 4;
    let offload = || B::configure(&device, OffloadPolicy::device_budget(ByteSize::b(0))).unwrap();
    let keep = || B::configure(&device, OffloadPolicy::nothing()).unwrap();
    let offloaded = || B::report(&device).offloaded_bytes();

    for (at, from_host) in [true, false].into_iter().enumerate() {
        let (before, after): (&dyn Fn(), &dyn Fn()) = match from_host {
            true => (&offload, &keep),
            false => (&keep, &offload),
        };
        before();
        let saved = make();
        drop((
            saved.weight.val(),
            saved.bias.as_ref().map(|bias| bias.val()),
        ));
        assert_eq!(offloaded(), if from_host { size } else { 0 });
        let path = |ending| folder.path().join(format!("{at}.{ending}"));
        let mut safetensors = SafetensorsStore::from_file(path("safetensors"));
        saved.save_into(&mut safetensors).unwrap();
        let mut burnpack = BurnpackStore::from_file(path("bpk"));
        saved.save_into(&mut burnpack).unwrap();
        // A store keeps what it has saved.
        drop((safetensors, burnpack));
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let record: Vec<u8> = recorder.record(saved.clone().into_record(), ()).unwrap();
        let expected_values = values(&saved);
        drop(saved);

        after();
        let expected = if from_host { 0 } else { size };
        for burnpack in [false, true] {
            let loaded = parameter_scope(|| {
                let mut module = make();
                if burnpack {
                    let mut store = BurnpackStore::from_file(path("bpk"));
                    module.load_from(&mut store).unwrap();
                } else {
                    let mut store = SafetensorsStore::from_file(path("safetensors"));
                    module.load_from(&mut store).unwrap();
                }
                module
            });
            assert_eq!(offloaded(), expected, "burnpack: {burnpack}, {from_host}");
            assert_eq!(values(&loaded), expected_values);
        }

        let loaded =
            parameter_scope(|| make().load_record(recorder.load(record.clone(), &device).unwrap()));
        assert_eq!(offloaded(), expected, "a record, {from_host}");
        assert_eq!(values(&loaded), expected_values);
    }

    // A state_dict of PyTorch's, which has linear weights the other way round.
    for (set, expected) in [(&offload as &dyn Fn(), size), (&keep, 0)] {
        set();
        let loaded = parameter_scope(|| {
            let mut module = make();
            let mut store = PytorchStore::from_file("tests/fixtures/linear.pt");
            module.load_from(&mut store).unwrap();
            module
        });
        assert_eq!(offloaded(), expected, "PyTorch");
        let [weight, bias] = values(&loaded);
        let columns =
            (0..5).flat_map(|column| (0..7).map(move |row| row as f32 + column as f32 / 8.0));
        assert_eq!(weight, TensorData::new(columns.collect::<Vec<_>>(), [5, 7]));
        assert_eq!(
            bias,
            TensorData::new((0..7).map(|row| -(row as f32)).collect::<Vec<_>>(), [7])
        );
    }
}
