//! Decoder layers of a Llama of 7 billion parameters in bf16: one token at a time.

use burn::{
    module::Module,
    tensor::{DType, Int, Tensor, TensorData, backend::Backend, bf16},
};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded, Order, place};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, Fused,
    config::LlamaConfig,
    configure,
    fill::fill,
    model::Llama,
    timing::{Line, Table, Time, device_used, link_speed, time},
};

/// The shapes of Llama 2 7B, with an eighth of its layers.
pub fn config() -> LlamaConfig {
    let json = r#"{
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32000, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "max_position_embeddings": 256
    }"#;
    LlamaConfig::from_json(json).expect("the configuration is sound")
}

const STEPS: usize = 16;

/// Decodes and reads the logits of every step, as one who samples must. Returns the last.
pub fn decode<B: Backend<Device = CudaDevice>>(
    model: &Llama<B>,
    batch: usize,
    steps: usize,
) -> TensorData {
    let device = CudaDevice::default();
    let [vocabulary, _] = model.model.embed_tokens.weight.dims();
    let mut cache = model.cache();
    let mut last = None;
    for at in 0..steps {
        let ids: Vec<i32> = (0..batch)
            .map(|b| ((b + at) * 37 % vocabulary) as i32)
            .collect();
        let tokens = Tensor::<B, 2, Int>::from_data(TensorData::new(ids, [batch, 1]), &device);
        last = Some(model.next_logits(tokens, &mut cache).into_data());
    }
    last.expect("there was a step")
}

/// The time of one step, and the last logits.
fn time_step<B: OffloadTarget<Device = CudaDevice>>(
    model: &Llama<Offloaded<B>>,
    batch: usize,
) -> (Time, TensorData) {
    let mut last = decode(model, batch, STEPS);
    let taken = time::<Offloaded<B>>(3, || last = decode(model, batch, STEPS));
    (taken.each(STEPS), last)
}

fn with<B: OffloadTarget<Device = CudaDevice>>(name: &str, table: &mut Table) {
    let device = CudaDevice::default();
    let link = link_speed();
    let batches = [1, 8, 64];
    configure::<B>(OffloadPolicy::nothing());
    let config = config();
    let mut model = fill(Llama::<Offloaded<B>>::new(&config, &device), DType::BF16);
    // The embedding is read in rows; it passes by itself.
    let embedding = 32000 * 4096 * 2u64;
    let bytes = model.num_params() as u64 * 2 - embedding;
    let baseline: Vec<_> = batches
        .iter()
        .map(|&batch| time_step::<B>(&model, batch))
        .collect();
    for percent in [25, 50, 100] {
        let policy = OffloadPolicy::host_budget(ByteSize::b(bytes * percent / 100))
            .with_keep(["embed_tokens"])
            .with_order(Order::Spread);
        let (placed, report) = place(model, "", &policy).expect("there is room");
        model = placed;
        for (&batch, (resident, expected)) in batches.iter().zip(&baseline) {
            let (taken, result) = time_step::<B>(&model, batch);
            table.add(Line {
                part: "decoder",
                case: format!("batch {batch}, {percent} % offloaded"),
                mode: name.into(),
                time: taken,
                offloaded_bytes: report.offloaded_bytes(),
                link,
                resident: resident.median,
                staging_bytes: Offloaded::<B>::stats(&device).ring_bytes,
                device_bytes: device_used(),
                identical: result == *expected,
            });
        }
        eprintln!("{name}, {percent} %: {:?}", Offloaded::<B>::stats(&device));
    }
}

/// Runs this part without fusion.
pub fn eager(table: &mut Table) {
    with::<Eager<bf16>>("without fusion", table);
}

/// Runs this part with fusion.
pub fn fused(table: &mut Table) {
    with::<Fused<bf16>>("with fusion", table);
}
