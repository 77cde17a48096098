//! Burn's own stores and recorders on offloaded modules. One test: it configures the device.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::TensorData,
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, parameter_scope};
use burn_store::{ModuleSnapshot, SafetensorsStore};

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
        let path = folder.path().join(format!("{at}.safetensors"));
        saved
            .save_into(&mut SafetensorsStore::from_file(&path))
            .unwrap();
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let record: Vec<u8> = recorder.record(saved.clone().into_record(), ()).unwrap();
        let expected_values = values(&saved);
        drop(saved);

        after();
        let expected = if from_host { 0 } else { size };
        let loaded = parameter_scope(|| {
            let mut module = make();
            module
                .load_from(&mut SafetensorsStore::from_file(&path))
                .unwrap();
            module
        });
        assert_eq!(offloaded(), expected, "a store, {from_host}");
        assert_eq!(values(&loaded), expected_values);
        drop(loaded);

        let loaded =
            parameter_scope(|| make().load_record(recorder.load(record.clone(), &device).unwrap()));
        assert_eq!(offloaded(), expected, "a record, {from_host}");
        assert_eq!(values(&loaded), expected_values);
    }
}
