//! Models of each supported family, against transformers (`fixtures/make.py`).

#[path = "../examples/llama/mod.rs"]
mod llama;

use std::{fs, path::Path};

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded};
use serde_json::Value;

use llama::checkpoint::Checkpoint;

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
