//! Models of each supported family, against transformers (`fixtures/make.py`), and random ones in the shapes
//! of public models.

#[path = "../examples/llama/mod.rs"]
mod llama;

use std::{fs, path::Path};

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, place};
use clap::ValueEnum;
use serde_json::Value;

use llama::{
    checkpoint::Checkpoint,
    model::Llama,
    shape::{self, Shape},
};

type B = Offloaded<Flex>;

/// The logits have five decimals.
const TOLERANCE: f32 = 1e-4;

fn distance(a: Tensor<B, 3>, b: Tensor<B, 3>) -> f32 {
    (a.cast(DType::F32) - b).abs().max().into_scalar()
}

fn check(family: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(family);
    let answer = fs::read_to_string(folder.join("answer.json")).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let tokens: Vec<Vec<i32>> = serde_json::from_value(answer["tokens"].clone()).unwrap();
    let logits: Vec<Vec<Vec<f32>>> = serde_json::from_value(answer["logits"].clone()).unwrap();
    let device = Default::default();
    let (batch, length, vocabulary) = (logits.len(), logits[0].len(), logits[0][0].len());
    let tokens = TensorData::new(tokens.concat(), [batch, length]);
    let tokens = Tensor::<B, 2, Int>::from_data(tokens, &device);
    let expected = TensorData::new(logits.concat().concat(), [batch, length, vocabulary]);
    let expected = Tensor::<B, 3>::from_data(expected, &device);

    let checkpoint = Checkpoint::open(&folder).unwrap();
    let load = |policy: OffloadPolicy| {
        let (model, report) = checkpoint
            .load::<B>(None, &device, &policy, |_| {})
            .unwrap();
        let prefill = model.forward(tokens.clone(), &mut model.cache());
        let far = distance(prefill.clone(), expected.clone());
        assert!(far < TOLERANCE, "{family}, prefill: {far}");

        let mut cache = model.cache();
        for at in 0..length {
            let token = tokens.clone().slice([0..batch, at..at + 1]);
            let next = model.next_logits(token, &mut cache).unsqueeze_dim(1);
            let wanted = expected.clone().slice([0..batch, at..at + 1]);
            let far = distance(next, wanted);
            assert!(far < TOLERANCE, "{family}, token {at}: {far}");
        }
        (prefill.into_data(), report)
    };
    let (resident, report) = load(OffloadPolicy::nothing());
    assert_eq!(report.offloaded_bytes(), 0);
    let (offloaded, report) = load(OffloadPolicy::device_budget(ByteSize::b(0)));
    assert_eq!(report.resident_bytes(), 0);
    assert_eq!(offloaded, resident, "{family}");
}

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            check(stringify!($family));
        }
    )*};
}

families! { llama2 llama3 mistral qwen2 qwen3 }

#[test]
fn shapes_are_those_of_the_public_models() {
    let weights = |shape: Shape| {
        let config = shape.config();
        config.validate().unwrap();
        shape::weights(&Llama::<B>::new(&config, &Default::default()))
    };
    for (shape, expected) in [
        (Shape::Tiny, 39_584),
        (Shape::B1, 1_235_814_400),
        (Shape::B3, 3_212_749_824),
        (Shape::B7, 6_738_415_616),
        (Shape::B8, 8_030_261_248),
        (Shape::B13, 13_015_864_320),
        (Shape::B70, 70_553_706_496),
    ] {
        assert_eq!(weights(shape), expected, "{shape:?}");
    }
    assert_eq!(Shape::value_variants().len(), 7);
}

#[test]
fn random_weights_are_made_where_the_policy_wants_them() {
    let config = Shape::Tiny.config();
    let all = 4 * 39_584;
    let offloaded = |policy: OffloadPolicy| {
        let device = Default::default();
        let model = Llama::<B>::new(&config, &device);
        let (model, report) = place(model, "", &policy).unwrap();
        assert_eq!(report.offloaded_bytes() + report.resident_bytes(), all);
        let tokens = Tensor::<B, 2, Int>::from_data([[1, 2, 3]], &device);
        let logits = model.next_logits(tokens, &mut model.cache());
        assert!(logits.into_data().iter::<f32>().all(f32::is_finite));
        report.offloaded_bytes()
    };
    let none_stays = OffloadPolicy::device_budget(ByteSize::b(0));
    assert_eq!(offloaded(none_stays), all);
    assert_eq!(offloaded(OffloadPolicy::nothing()), 0);
    let by_name = OffloadPolicy::host_budget(ByteSize::gib(1)).with_params(["mlp"]);
    let mlps = 2 * 3 * config.hidden_size * config.intermediate_size * 4;
    assert_eq!(offloaded(by_name), mlps as u64);
}
