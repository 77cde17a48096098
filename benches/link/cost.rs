//! What the decorator costs where nothing is offloaded: steps of a decoder on the wrapped backend alone,
//! and on `Offloaded` of it, in turns.

use std::time::Instant;

use burn::tensor::{DType, Int, Tensor, TensorData, backend::Backend, bf16};
use burn_offload::{OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, Fused, config::LlamaConfig, configure, fill::fill, model::Llama, timing::Table,
};

const STEPS: usize = 32;
const ROUNDS: usize = 15;

/// Layers that the device is busy with, and small ones where the host is what takes the time.
const MODELS: [(&str, &str); 2] = [
    (
        "4 layers of Llama 2 7B",
        r#"{
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 32,
            "vocab_size": 32000, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
            "max_position_embeddings": 256
        }"#,
    ),
    (
        "8 layers of width 256",
        r#"{
            "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024,
            "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
            "vocab_size": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
            "max_position_embeddings": 256
        }"#,
    ),
];

/// Decodes, reading the logits of every step, and returns the milliseconds of one and the last logits.
fn decode<B: Backend<Device = CudaDevice>>(
    model: &Llama<B>,
    vocabulary: usize,
) -> (f64, TensorData) {
    let device = CudaDevice::default();
    B::sync(&device).expect("the device works");
    let mut cache = model.cache();
    let mut last = None;
    let start = Instant::now();
    for at in 0..STEPS {
        let ids = TensorData::new(vec![(at * 37 % vocabulary) as i32], [1, 1]);
        let tokens = Tensor::<B, 2, Int>::from_data(ids, &device);
        last = Some(model.next_logits(tokens, &mut cache).into_data());
    }
    let taken = start.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
    (taken, last.expect("there was a step"))
}

/// The least, the median and the most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    ]
}

fn with<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    let device = CudaDevice::default();
    let models = MODELS.map(|(shape, json)| {
        let config = LlamaConfig::from_json(json).expect("the configuration is sound");
        let bare = fill(Llama::<B>::new(&config, &device), DType::BF16);
        (shape, config, bare)
    });
    println!(
        "| {name}, a step of | bare, ms (least to most) | `Offloaded` | ms (least to most) | \
         times bare, by round (least to most) | same bits |\n| --- | --- | --- | --- | --- | --- |"
    );
    for state in ["not configured", "nothing offloaded"] {
        if state == "nothing offloaded" {
            configure::<B>(OffloadPolicy::nothing());
        }
        for (shape, config, bare) in &models {
            let decorated = fill(Llama::<Offloaded<B>>::new(config, &device), DType::BF16);
            let vocabulary = config.vocab_size;
            // The kernels are compiled and tuned in the first.
            for _ in 0..2 {
                decode(bare, vocabulary);
                decode(&decorated, vocabulary);
            }
            let (mut alone, mut through, mut ratios) = (vec![], vec![], vec![]);
            let mut same = true;
            for round in 0..ROUNDS {
                // Who goes first changes, so that a drift of the clock does not count for one of them.
                let ((one, expected), (other, found)) = if round % 2 == 0 {
                    let first = decode(bare, vocabulary);
                    (first, decode(&decorated, vocabulary))
                } else {
                    let first = decode(&decorated, vocabulary);
                    (decode(bare, vocabulary), first)
                };
                same &= expected == found;
                alone.push(one);
                through.push(other);
                ratios.push(other / one);
            }
            let [a0, a, a1] = spread(alone);
            let [t0, t, t1] = spread(through);
            let [r0, r, r1] = spread(ratios);
            println!(
                "| {shape} | {a:.3} ({a0:.3} to {a1:.3}) | {state} | {t:.3} ({t0:.3} to {t1:.3}) | \
                 {r:.3} ({r0:.3} to {r1:.3}) | {} |",
                if same { "yes" } else { "NO" }
            );
        }
    }
}

/// Runs this part without fusion.
pub fn eager(_: &mut Table) {
    with::<Eager<bf16>>("without fusion");
}

/// Runs this part with fusion.
pub fn fused(_: &mut Table) {
    with::<Fused<bf16>>("with fusion");
}
