//! The `config.json` of a Hugging Face model of type `llama`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the decoder has to know about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    /// The longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the output projection is the embedding, transposed.
    pub tie_word_embeddings: bool,
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("`{field}` is {value}, and only {supported} is supported")]
    Unsupported {
        field: &'static str,
        value: String,
        supported: &'static str,
    },
    #[error("`{field}` is {value}: {why}")]
    Invalid {
        field: &'static str,
        value: String,
        why: &'static str,
    },
}

impl LlamaConfig {
    /// Reads the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        // First of all the type: another model's file lacks fields for a reason worth naming.
        let json: Value = serde_json::from_str(text)?;
        match &json["model_type"] {
            Value::String(kind) if kind == "llama" => {}
            other => return unsupported("model_type", other.to_string(), "\"llama\""),
        }
        // From the text again, for serde_json to name the line of a mistake.
        let file: File = serde_json::from_str(text)?;
        let config = file.into_config()?;
        config.validate()?;
        Ok(config)
    }

    /// The text of a `config.json` that says the same; `dtype` is that of the weights beside it.
    pub fn to_json(&self, dtype: &str) -> Result<String, ConfigError> {
        let file = File {
            architectures: Some(vec!["LlamaForCausalLM".into()]),
            model_type: "llama".into(),
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: Some(self.num_key_value_heads),
            head_dim: Some(self.head_dim),
            hidden_act: default_activation(),
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: Some(self.rope_theta),
            rope_scaling: None,
            rope_parameters: None,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings,
            attention_bias: false,
            mlp_bias: false,
            bos_token_id: self.bos_token_id,
            eos_token_id: match self.eos_token_ids[..] {
                [] => None,
                [one] => Some(Ids::One(one)),
                _ => Some(Ids::Many(self.eos_token_ids.clone())),
            },
            torch_dtype: Some(dtype.into()),
        };
        Ok(serde_json::to_string_pretty(&file)? + "\n")
    }

    /// Whether the sizes make a model.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 {
                return invalid(field, value, "it must be at least 1");
            }
        }
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return invalid(
                "num_key_value_heads",
                self.num_key_value_heads,
                "it must divide `num_attention_heads`",
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid(
                "head_dim",
                self.head_dim,
                "rotary embedding needs an even one",
            );
        }
        for (field, value) in [
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return invalid(field, value, "it must be a positive number");
            }
        }
        Ok(())
    }
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_activation")]
    hidden_act: String,
    #[serde(default = "default_rms_norm_eps")]
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    /// Where newer files keep both of the above.
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_parameters: Option<RopeParameters>,
    #[serde(default = "default_max_position_embeddings")]
    max_position_embeddings: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
    #[serde(alias = "dtype")]
    torch_dtype: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

fn default_activation() -> String {
    "silu".into()
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_max_position_embeddings() -> usize {
    2048
}

const DEFAULT_ROPE_THETA: f64 = 10_000.0;

impl File {
    fn into_config(self) -> Result<LlamaConfig, ConfigError> {
        if self.hidden_act != "silu" {
            return unsupported("hidden_act", format!("{:?}", self.hidden_act), "\"silu\"");
        }
        for (field, set) in [
            ("attention_bias", self.attention_bias),
            ("mlp_bias", self.mlp_bias),
        ] {
            if set {
                return unsupported(field, set.to_string(), "false");
            }
        }
        if let Some(scaling) = self.rope_scaling {
            return unsupported("rope_scaling", scaling.to_string(), "null");
        }
        let rope = self.rope_parameters.unwrap_or(RopeParameters {
            rope_theta: None,
            rope_type: None,
        });
        if let Some(kind) = rope.rope_type.filter(|kind| kind != "default") {
            return unsupported(
                "rope_parameters.rope_type",
                format!("{kind:?}"),
                "\"default\"",
            );
        }
        let head_dim = match self.head_dim {
            Some(given) => given,
            None if self.num_attention_heads == 0 => 0,
            None if !self.hidden_size.is_multiple_of(self.num_attention_heads) => {
                return invalid(
                    "hidden_size",
                    self.hidden_size,
                    "with no `head_dim` it must be a multiple of `num_attention_heads`",
                );
            }
            None => self.hidden_size / self.num_attention_heads,
        };
        Ok(LlamaConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: rope
                .rope_theta
                .or(self.rope_theta)
                .unwrap_or(DEFAULT_ROPE_THETA),
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings,
            bos_token_id: self.bos_token_id,
            eos_token_ids: match self.eos_token_id {
                None => Vec::new(),
                Some(Ids::One(id)) => vec![id],
                Some(Ids::Many(ids)) => ids,
            },
        })
    }
}

fn unsupported<T>(
    field: &'static str,
    value: String,
    supported: &'static str,
) -> Result<T, ConfigError> {
    Err(ConfigError::Unsupported {
        field,
        value,
        supported,
    })
}

fn invalid<T>(
    field: &'static str,
    value: impl ToString,
    why: &'static str,
) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid {
        field,
        value: value.to_string(),
        why,
    })
}
