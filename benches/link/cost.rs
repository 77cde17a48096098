//! What the decorator costs where nothing is offloaded: steps of a decoder on the wrapped backend alone,
//! and on `Offloaded` of it, in turns.

use std::time::Instant;

use burn::tensor::{DType, TensorData, backend::Backend, bf16};
use burn_offload::{OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, Fused,
    config::LlamaConfig,
    configure, decoder,
    fill::fill,
    model::Llama,
    timing::{Table, Time},
};

const STEPS: usize = 32;
const ROUNDS: usize = 15;

/// Layers that the device is busy with, and small ones where the host is what takes the time.
fn configs() -> [(&'static str, LlamaConfig); 2] {
    let small = LlamaConfig {
        vocab_size: 512,
        hidden_size: 256,
        intermediate_size: 1024,
        num_hidden_layers: 8,
        num_attention_heads: 4,
        num_key_value_heads: 4,
        head_dim: 64,
        ..decoder::config()
    };
    [
        ("4 layers of Llama 2 7B", decoder::config()),
        ("8 layers of width 256", small),
    ]
}

/// The milliseconds of one step of decoding, and the last logits.
fn decode<B: Backend<Device = CudaDevice>>(model: &Llama<B>) -> (f64, TensorData) {
    B::sync(&CudaDevice::default()).expect("the device works");
    let start = Instant::now();
    let last = decoder::decode(model, 1, STEPS);
    let taken = start.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
    (taken, last)
}

fn with<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    let device = CudaDevice::default();
    let models = configs().map(|(shape, config)| {
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
            // The kernels are compiled and tuned in the first.
            for _ in 0..2 {
                decode(bare);
                decode(&decorated);
            }
            let (mut alone, mut through, mut ratios) = (vec![], vec![], vec![]);
            let mut same = true;
            for round in 0..ROUNDS {
                // Who goes first changes, so that a drift of the clock does not count for one of them.
                let ((one, expected), (other, found)) = if round % 2 == 0 {
                    let first = decode(bare);
                    (first, decode(&decorated))
                } else {
                    let first = decode(&decorated);
                    (decode(bare), first)
                };
                same &= expected == found;
                alone.push(one);
                through.push(other);
                ratios.push(other / one);
            }
            let [alone, through, ratio] = [alone, through, ratios].map(Time::of);
            println!(
                "| {shape} | {alone} | {state} | {through} | {ratio} | {} |",
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
