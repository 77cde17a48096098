//! The `config.json` of a Hugging Face model of the Llama family: `llama`, `mistral`, `qwen2`, `qwen3`.

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
    /// How Llama 3.1 and later stretch rotary embedding.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the projections to queries, keys and values have biases.
    pub attention_bias: bool,
    /// Whether the attention's output projection has one.
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised, head by head.
    pub qk_norm: bool,
    /// The longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the output projection is the embedding, transposed.
    pub tie_word_embeddings: bool,
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

/// Rotary embedding of type `llama3`: low frequencies are divided by `factor`, high ones are kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RopeScaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_position_embeddings: usize,
}

impl RopeScaling {
    /// A frequency (in radians a position), stretched.
    fn stretch(&self, frequency: f64) -> f64 {
        let turns =
            self.original_max_position_embeddings as f64 * frequency / (2.0 * std::f64::consts::PI);
        let kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let kept = kept.clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / self.factor)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("rope_scaling.factor", self.factor),
            ("rope_scaling.low_freq_factor", self.low_freq_factor),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return invalid(field, value, "it must be a positive number");
            }
        }
        let high = self.high_freq_factor;
        if !(high.is_finite() && high > self.low_freq_factor) {
            return invalid(
                "rope_scaling.high_freq_factor",
                high,
                "it must be above `low_freq_factor`",
            );
        }
        Ok(())
    }
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

const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

impl LlamaConfig {
    /// The frequencies of rotary embedding, one for each pair of a head's numbers.
    pub fn frequencies(&self) -> Vec<f64> {
        let pairs = 0..self.head_dim / 2;
        let frequency = |pair| {
            self.rope_theta
                .powf(-((2 * pair) as f64) / self.head_dim as f64)
        };
        pairs
            .map(frequency)
            .map(|frequency| match &self.rope_scaling {
                Some(scaling) => scaling.stretch(frequency),
                None => frequency,
            })
            .collect()
    }

    /// Adds what the text of a `generation_config.json` says.
    pub fn add_generation(&mut self, text: &str) -> Result<(), ConfigError> {
        #[derive(Deserialize)]
        struct Generation {
            eos_token_id: Option<Ids>,
        }
        let generation: Generation = serde_json::from_str(text)?;
        let ids = match generation.eos_token_id {
            None => Vec::new(),
            Some(Ids::One(id)) => vec![id],
            Some(Ids::Many(ids)) => ids,
        };
        for id in ids {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
        Ok(())
    }

    /// Reads the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        // First of all the type: another model's file lacks fields for a reason worth naming.
        let json: Value = serde_json::from_str(text)?;
        match &json["model_type"] {
            Value::String(kind) if FAMILIES.contains(&kind.as_str()) => {}
            other => {
                let supported = "\"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";
                return unsupported("model_type", other.to_string(), supported);
            }
        }
        // From the text again, for serde_json to name the line of a mistake.
        let file: File = serde_json::from_str(text)?;
        let config = file.into_config()?;
        config.validate()?;
        Ok(config)
    }

    /// The text of a `config.json` that says the same; `dtype` is that of the weights beside it.
    pub fn to_json(&self, dtype: &str) -> Result<String, ConfigError> {
        let (model_type, architecture) = match (self.qk_norm, self.attention_bias, self.output_bias)
        {
            (true, ..) => ("qwen3", "Qwen3ForCausalLM"),
            (false, true, false) => ("qwen2", "Qwen2ForCausalLM"),
            _ => ("llama", "LlamaForCausalLM"),
        };
        let file = File {
            architectures: Some(vec![architecture.into()]),
            model_type: model_type.into(),
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
            rope_scaling: self.rope_scaling.map(|scaling| RopeParameters {
                rope_theta: None,
                rope_type: Some("llama3".into()),
                scaling: serde_json::to_value(scaling).unwrap_or_default(),
            }),
            rope_parameters: None,
            sliding_window: None,
            use_sliding_window: None,
            layer_types: None,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings,
            attention_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
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
        if let Some(scaling) = &self.rope_scaling {
            scaling.validate()?;
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
    rope_scaling: Option<RopeParameters>,
    #[serde(default)]
    sliding_window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    use_sliding_window: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_types: Option<Vec<String>>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    #[serde(flatten)]
    scaling: Value,
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
        let layers = self.layer_types.iter().flatten();
        if let Some(other) = layers.into_iter().find(|kind| *kind != "full_attention") {
            return unsupported("layer_types", format!("{other:?}"), "\"full_attention\"");
        }
        // Where the window is never smaller than the text, it hides nothing.
        let window = self.sliding_window;
        let window = window.filter(|_| self.use_sliding_window.unwrap_or(true));
        let rope = self.rope_parameters.or(self.rope_scaling);
        let rope_scaling = match &rope {
            None => None,
            Some(rope) => match rope.rope_type.as_deref() {
                None if rope.scaling.get("factor").is_none() => None,
                Some("default") => None,
                Some("llama3") => Some(serde_json::from_value(rope.scaling.clone())?),
                other => {
                    return unsupported(
                        "rope_scaling.rope_type",
                        format!("{other:?}"),
                        "\"default\" or \"llama3\"",
                    );
                }
            },
        };
        let qwen2 = self.model_type == "qwen2";
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
                .and_then(|rope| rope.rope_theta)
                .or(self.rope_theta)
                .unwrap_or(DEFAULT_ROPE_THETA),
            rope_scaling,
            attention_bias: self.attention_bias || qwen2,
            output_bias: self.attention_bias && !qwen2,
            mlp_bias: self.mlp_bias,
            qk_norm: self.model_type == "qwen3",
            max_position_embeddings: window
                .unwrap_or(usize::MAX)
                .min(self.max_position_embeddings),
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
