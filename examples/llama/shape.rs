//! The shapes of public Llama models, to be filled with random weights.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{FloatDType, Tensor, backend::Backend},
};

use super::config::{LlamaConfig, RopeScaling};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// 40 thousand weights, to try things out
    Tiny,
    /// Llama 3.2 1B
    #[value(name = "1b")]
    B1,
    /// Llama 3.2 3B
    #[value(name = "3b")]
    B3,
    /// Llama 2 7B
    #[value(name = "7b")]
    B7,
    /// Llama 3.1 8B
    #[value(name = "8b")]
    B8,
    /// Llama 2 13B
    #[value(name = "13b")]
    B13,
    /// Llama 3.1 70B
    #[value(name = "70b")]
    B70,
}

impl Shape {
    /// No token ends a text: what a random model says is as long as was asked.
    pub fn config(self) -> LlamaConfig {
        let llama2 = LlamaConfig {
            vocab_size: 32_000,
            hidden_size: 4096,
            intermediate_size: 11_008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            head_dim: 128,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: None,
            attention_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            max_position_embeddings: 4096,
            tie_word_embeddings: false,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
        };
        let llama3 = |factor| LlamaConfig {
            vocab_size: 128_256,
            num_key_value_heads: 8,
            rope_theta: 500_000.0,
            rope_scaling: Some(RopeScaling {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            }),
            max_position_embeddings: 131_072,
            ..llama2.clone()
        };
        match self {
            Self::Tiny => LlamaConfig {
                vocab_size: 256,
                hidden_size: 32,
                intermediate_size: 88,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                num_key_value_heads: 2,
                head_dim: 8,
                max_position_embeddings: 256,
                ..llama2
            },
            Self::B1 => LlamaConfig {
                hidden_size: 2048,
                intermediate_size: 8192,
                num_hidden_layers: 16,
                head_dim: 64,
                tie_word_embeddings: true,
                ..llama3(32.0)
            },
            Self::B3 => LlamaConfig {
                hidden_size: 3072,
                intermediate_size: 8192,
                num_hidden_layers: 28,
                num_attention_heads: 24,
                tie_word_embeddings: true,
                ..llama3(32.0)
            },
            Self::B7 => llama2,
            Self::B8 => LlamaConfig {
                intermediate_size: 14_336,
                ..llama3(8.0)
            },
            Self::B13 => LlamaConfig {
                hidden_size: 5120,
                intermediate_size: 13_824,
                num_hidden_layers: 40,
                num_attention_heads: 40,
                num_key_value_heads: 40,
                ..llama2
            },
            Self::B70 => LlamaConfig {
                hidden_size: 8192,
                intermediate_size: 28_672,
                num_hidden_layers: 80,
                num_attention_heads: 64,
                ..llama3(8.0)
            },
        }
    }
}

/// The type for a model that has none of its own. `bf16` is whether the device takes it: Flex does, and
/// converts each matrix for each use.
pub fn dtype(bf16: bool) -> FloatDType {
    if cfg!(feature = "cuda") && bf16 {
        FloatDType::BF16
    } else {
        FloatDType::F32
    }
}

/// How many weights a model has, none of which this initialises.
pub fn weights<B: Backend>(model: &impl Module<B>) -> usize {
    struct Count(usize);
    impl<B: Backend> ModuleVisitor<B> for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 += param.lazy_shape().num_elements();
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}
