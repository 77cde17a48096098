//! Models: gradients, and weights after steps of an optimizer, are those that the wrapped backend
//! gives, bit for bit.

#[allow(dead_code)]
#[path = "../../examples/llama/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../examples/llama/model.rs"]
pub mod llama;

use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    nn::{
        GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        PaddingConfig2d,
        attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
        conv::{Conv2d, Conv2dConfig},
    },
    optim::{AdamWConfig, GradientsParams, Optimizer},
    tensor::{
        Int, Tensor, TensorData,
        activation::{gelu, log_softmax},
        backend::{AutodiffBackend, Backend},
    },
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use serde_json::json;

use crate::harness::case::{Input, Types};
use config::LlamaConfig;
use llama::Llama;

/// A model, its loss on a fixed batch, and nothing random but its initial weights.
pub trait Trained<B: AutodiffBackend>: AutodiffModule<B> {
    fn new(device: &B::Device) -> Self;
    fn loss(&self, types: Types, device: &B::Device) -> Tensor<B, 1>;
}

/// Convolution, norms and attention, from `burn::nn`.
#[derive(Module, Debug)]
pub struct Vision<B: Backend> {
    conv: Conv2d<B>,
    norm: GroupNorm<B>,
    attention: MultiHeadAttention<B>,
    layer_norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Trained<B> for Vision<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            conv: Conv2dConfig::new([2, 8], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            norm: GroupNormConfig::new(2, 8).init(device),
            attention: MultiHeadAttentionConfig::new(8, 2)
                .with_dropout(0.0)
                .init(device),
            layer_norm: LayerNormConfig::new(8).init(device),
            head: LinearConfig::new(8, 3).init(device),
        }
    }

    fn loss(&self, types: Types, device: &B::Device) -> Tensor<B, 1> {
        let images = Input::Float(vec![2, 2, 4, 4]).data(0, types);
        let hidden = self.conv.forward(Tensor::<B, 4>::from_data(images, device));
        let hidden = gelu(self.norm.forward(hidden));
        let hidden: Tensor<B, 3> = hidden.reshape([2, 8, 16]).swap_dims(1, 2);
        let mixed = self.attention.forward(MhaInput::self_attn(hidden.clone()));
        let hidden = self.layer_norm.forward(hidden + mixed.context);
        self.head.forward(hidden).powi_scalar(2).mean()
    }
}

impl<B: AutodiffBackend> Trained<B> for Llama<B> {
    fn new(device: &B::Device) -> Self {
        // The output projection is the embedding, so that one parameter has two uses.
        let config = json!({
            "model_type": "llama", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 32,
            "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 2,
        });
        let config = LlamaConfig::from_json(&config.to_string()).expect("the config is valid");
        Llama::new(&config, device)
    }

    fn loss(&self, types: Types, device: &B::Device) -> Tensor<B, 1> {
        let tokens = Input::Int(vec![2, 6], 24).data(0, types);
        let tokens = Tensor::<B, 2, Int>::from_data(tokens, device);
        let logits = self.forward_frame(tokens.clone(), &self.frame(6));
        -log_softmax(logits, 2)
            .gather(2, tokens.unsqueeze_dim(2))
            .mean()
    }
}

/// What is read of every parameter, in order.
struct Read<'a, B: AutodiffBackend> {
    gradients: Option<&'a GradientsParams>,
    data: Vec<TensorData>,
    backend: std::marker::PhantomData<B>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.data.push(match self.gradients {
            None => param.val().into_data(),
            Some(gradients) => gradients
                .get::<B::InnerBackend, D>(param.id)
                .expect("every parameter has a gradient")
                .into_data(),
        });
    }
}

fn read<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    gradients: Option<&GradientsParams>,
) -> Vec<TensorData> {
    let mut read = Read::<B> {
        gradients,
        data: Vec::new(),
        backend: std::marker::PhantomData,
    };
    model.visit(&mut read);
    assert!(!read.data.is_empty(), "the model has parameters");
    read.data
}

/// The loss, the gradients and the weights of each of three steps. `made` sees the new model.
fn train<B: AutodiffBackend, M: Trained<B>>(
    types: Types,
    device: &B::Device,
    made: impl FnOnce(),
) -> Vec<Vec<TensorData>> {
    B::seed(device, 7);
    let mut model = M::new(device);
    let mut seen = vec![read(&model, None)];
    made();
    let mut optimizer = AdamWConfig::new().init::<B, M>();
    for _ in 0..3 {
        let before = read(&model, None);
        let loss = model.loss(types, device);
        seen.push(vec![loss.clone().into_data()]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        seen.push(read(&model, Some(&gradients)));
        assert_eq!(
            read(&model, None),
            before,
            "the backward pass changed a weight"
        );
        model = optimizer.step(0.05, model, gradients);
        let after = read(&model, None);
        assert_ne!(after, before, "the optimizer changed nothing");
        seen.push(after);
    }
    seen
}

/// Trains a model on the wrapped backend, with its weights in host memory, and with everything there.
pub fn check<B, C, Bare, Moved>(types: Types, device: &B::Device)
where
    B: OffloadTarget,
    C: CheckpointStrategy,
    Bare: Trained<Autodiff<B, C>>,
    Moved: Trained<Autodiff<Offloaded<B>, C>>,
{
    let expected = train::<Autodiff<B, C>, Bare>(types, device, || {});
    for policy in [
        OffloadPolicy::host_budget(ByteSize::mib(64)),
        OffloadPolicy::everything(),
    ] {
        let name = format!("{policy:?}");
        Offloaded::<B>::configure(device, policy).expect("the policy holds together");
        let got = train::<Autodiff<Offloaded<B>, C>, Moved>(types, device, || {
            let report = Offloaded::<B>::report(device);
            assert_eq!(report.resident_bytes(), 0, "{report}");
            assert!(report.offloaded_bytes() > 0, "{report}");
        });
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{name}: record {at} differs");
        }
        assert_eq!(got.len(), expected.len(), "{name}");
    }
    Offloaded::<B>::configure(device, OffloadPolicy::nothing()).expect("nothing can be offloaded");
}
