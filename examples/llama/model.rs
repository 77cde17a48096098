//! The decoder. Field names are those of Hugging Face's Llama, so that a parameter's path in the module
//! is its name in the checkpoint: `model.layers.3.self_attn.q_proj.weight`.
//!
//! Computes in the dtype of the weights; norms and softmax in f32.

use burn::{
    module::{Initializer, Module, Param},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    tensor::{
        Bool, DType, Int, Tensor, TensorData,
        activation::{silu, softmax},
        backend::Backend,
        module::linear,
    },
};

use super::config::LlamaConfig;

/// Added to the score of a position that must not be seen. Finite, so that no kernel meets `inf - inf`.
const HIDDEN_SCORE: f32 = -1e30;

/// A whole model: the decoder and the projection of its output onto the vocabulary.
#[derive(Module, Debug)]
pub struct Llama<B: Backend> {
    pub model: Decoder<B>,
    /// None if the embedding serves as the output projection too.
    pub lm_head: Option<Linear<B>>,
}

#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    pub embed_tokens: Embedding<B>,
    pub layers: Vec<Layer<B>>,
    pub norm: RmsNorm<B>,
    /// Of rotary embedding, in radians a position.
    frequencies: Vec<f64>,
}

#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    pub input_layernorm: RmsNorm<B>,
    pub self_attn: Attention<B>,
    pub post_attention_layernorm: RmsNorm<B>,
    pub mlp: Mlp<B>,
}

/// Grouped-query attention: each key and value head serves a group of query heads.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    pub q_proj: Linear<B>,
    pub k_proj: Linear<B>,
    pub v_proj: Linear<B>,
    pub o_proj: Linear<B>,
    /// Of each head of the queries; None in most families.
    pub q_norm: Option<RmsNorm<B>>,
    /// Of each head of the keys.
    pub k_norm: Option<RmsNorm<B>>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// SwiGLU.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    pub gate_proj: Linear<B>,
    pub up_proj: Linear<B>,
    pub down_proj: Linear<B>,
}

#[derive(Module, Debug)]
pub struct RmsNorm<B: Backend> {
    pub weight: Param<Tensor<B, 1>>,
    epsilon: f64,
}

impl<B: Backend> Llama<B> {
    /// A model of random weights, each of them initialised when it is first used.
    pub fn new(config: &LlamaConfig, device: &B::Device) -> Self {
        Self {
            model: Decoder::new(config, device),
            lm_head: (!config.tie_word_embeddings).then(|| {
                projection(
                    config.hidden_size,
                    config.vocab_size,
                    false,
                    INITIAL_DEVIATION,
                    device,
                )
            }),
        }
    }

    /// The logits `[batch, length, vocabulary]` of `tokens` `[batch, length]`, which follow those that
    /// `cache` holds; they are added to it.
    pub fn forward(&self, tokens: Tensor<B, 2, Int>, cache: &mut Cache<B>) -> Tensor<B, 3> {
        self.logits(self.model.forward_cached(tokens, cache))
    }

    /// As [`forward`](Self::forward), but the logits `[batch, vocabulary]` of the last position only.
    pub fn next_logits(&self, tokens: Tensor<B, 2, Int>, cache: &mut Cache<B>) -> Tensor<B, 2> {
        let hidden = self.model.forward_cached(tokens, cache);
        let [batch, length, width] = hidden.dims();
        let last = hidden.slice([0..batch, length - 1..length, 0..width]);
        self.logits(last).squeeze_dim(1)
    }

    /// The logits of whole sequences, each `frame` long, with no cache.
    pub fn forward_frame(&self, tokens: Tensor<B, 2, Int>, frame: &Frame<B>) -> Tensor<B, 3> {
        self.logits(self.model.forward(tokens, frame, None))
    }

    /// The frame of `length` positions from the first.
    pub fn frame(&self, length: usize) -> Frame<B> {
        self.model.frame(0, length, &[])
    }

    /// An empty cache for this model.
    pub fn cache(&self) -> Cache<B> {
        self.padded_cache(Vec::new())
    }

    /// An empty cache for a batch whose sequences begin with so many tokens each of padding: these have no
    /// position, and no token sees them.
    pub fn padded_cache(&self, padding: Vec<usize>) -> Cache<B> {
        Cache {
            length: 0,
            padding: if padding.iter().all(|tokens| *tokens == 0) {
                Vec::new()
            } else {
                padding
            },
            layers: self.model.layers.iter().map(|_| LayerCache(None)).collect(),
        }
    }

    /// The device of the model's inputs and outputs.
    pub fn device(&self) -> B::Device {
        self.model.embed_tokens.weight.lazy_device()
    }

    fn logits(&self, hidden: Tensor<B, 3>) -> Tensor<B, 3> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => linear(
                hidden,
                self.model.embed_tokens.weight.val().transpose(),
                None,
            ),
        }
    }
}

impl<B: Backend> Decoder<B> {
    fn new(config: &LlamaConfig, device: &B::Device) -> Self {
        Self {
            embed_tokens: EmbeddingConfig::new(config.vocab_size, config.hidden_size)
                .with_initializer(normal(INITIAL_DEVIATION))
                .init(device),
            layers: (0..config.num_hidden_layers)
                .map(|_| Layer::new(config, device))
                .collect(),
            norm: RmsNorm::new(config.hidden_size, config.rms_norm_eps, device),
            frequencies: config.frequencies(),
        }
    }

    fn forward_cached(&self, tokens: Tensor<B, 2, Int>, cache: &mut Cache<B>) -> Tensor<B, 3> {
        let [_, length] = tokens.dims();
        let frame = self.frame(cache.length, length, &cache.padding);
        let hidden = self.forward(tokens, &frame, Some(&mut cache.layers));
        cache.length += length;
        hidden
    }

    fn forward(
        &self,
        tokens: Tensor<B, 2, Int>,
        frame: &Frame<B>,
        mut caches: Option<&mut Vec<LayerCache<B>>>,
    ) -> Tensor<B, 3> {
        let mut hidden = self.embed_tokens.forward(tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            let cache = caches.as_mut().map(|caches| &mut caches[index]);
            hidden = layer.forward(hidden, frame, cache);
        }
        self.norm.forward(hidden)
    }

    fn frame(&self, start: usize, length: usize, padding: &[usize]) -> Frame<B> {
        let weight = self.embed_tokens.weight.val();
        Frame::new(
            start,
            length,
            padding,
            &self.frequencies,
            weight.dtype(),
            &weight.device(),
        )
    }
}

impl<B: Backend> Layer<B> {
    fn new(config: &LlamaConfig, device: &B::Device) -> Self {
        Self {
            input_layernorm: RmsNorm::new(config.hidden_size, config.rms_norm_eps, device),
            self_attn: Attention::new(config, device),
            post_attention_layernorm: RmsNorm::new(config.hidden_size, config.rms_norm_eps, device),
            mlp: Mlp::new(config, device),
        }
    }

    fn forward(
        &self,
        hidden: Tensor<B, 3>,
        frame: &Frame<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let normed = self.input_layernorm.forward(hidden.clone());
        let hidden = hidden + self.self_attn.forward(normed, frame, cache);
        let normed = self.post_attention_layernorm.forward(hidden.clone());
        hidden + self.mlp.forward(normed)
    }
}

impl<B: Backend> Attention<B> {
    fn new(config: &LlamaConfig, device: &B::Device) -> Self {
        let hidden = config.hidden_size;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let bias = config.attention_bias;
        let head_norm = || RmsNorm::new(config.head_dim, config.rms_norm_eps, device);
        Self {
            q_proj: projection(hidden, queries, bias, INITIAL_DEVIATION, device),
            k_proj: projection(hidden, keys, bias, INITIAL_DEVIATION, device),
            v_proj: projection(hidden, keys, bias, INITIAL_DEVIATION, device),
            o_proj: projection(
                queries,
                hidden,
                config.output_bias,
                residual_deviation(config),
                device,
            ),
            q_norm: config.qk_norm.then(head_norm),
            k_norm: config.qk_norm.then(head_norm),
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    fn forward(
        &self,
        hidden: Tensor<B, 3>,
        frame: &Frame<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let [batch, length, _] = hidden.dims();
        let dtype = hidden.dtype();
        let split = |tensor: Tensor<B, 3>, heads: usize| {
            tensor
                .reshape([batch, length, heads, self.head_dim])
                .swap_dims(1, 2)
        };
        let norm = |norm: &Option<RmsNorm<B>>, heads| match norm {
            Some(norm) => norm.forward(heads),
            None => heads,
        };
        let query = split(self.q_proj.forward(hidden.clone()), self.heads);
        let query = frame.rotate(norm(&self.q_norm, query));
        let key = split(self.k_proj.forward(hidden.clone()), self.kv_heads);
        let key = frame.rotate(norm(&self.k_norm, key));
        let value = split(self.v_proj.forward(hidden), self.kv_heads);
        let (key, value) = match cache {
            Some(cache) => cache.append(frame.start, key, value),
            None => (key, value),
        };

        // The query heads of a group follow one another, so they are more rows against the same keys.
        let [_, _, seen, _] = key.dims();
        let rows = self.heads / self.kv_heads * length;
        let query = query
            .mul_scalar((self.head_dim as f64).powf(-0.5))
            .reshape([batch, self.kv_heads, rows, self.head_dim]);
        let scores = query
            .matmul(key.swap_dims(2, 3))
            .reshape([batch, self.heads, length, seen]);
        let weights = softmax(frame.hide(in_dtype(scores, DType::F32)), 3);
        let mixed = in_dtype(weights, dtype)
            .reshape([batch, self.kv_heads, rows, seen])
            .matmul(value);

        let joined = mixed
            .reshape([batch, self.heads, length, self.head_dim])
            .swap_dims(1, 2)
            .reshape([batch, length, self.heads * self.head_dim]);
        self.o_proj.forward(joined)
    }
}

impl<B: Backend> Mlp<B> {
    fn new(config: &LlamaConfig, device: &B::Device) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let bias = config.mlp_bias;
        Self {
            gate_proj: projection(hidden, inner, bias, INITIAL_DEVIATION, device),
            up_proj: projection(hidden, inner, bias, INITIAL_DEVIATION, device),
            down_proj: projection(inner, hidden, bias, residual_deviation(config), device),
        }
    }

    fn forward(&self, hidden: Tensor<B, 3>) -> Tensor<B, 3> {
        let gate = silu(self.gate_proj.forward(hidden.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(hidden))
    }
}

impl<B: Backend> RmsNorm<B> {
    fn new(size: usize, epsilon: f64, device: &B::Device) -> Self {
        Self {
            weight: Initializer::Ones.init([size], device),
            epsilon,
        }
    }

    /// Normalises along the last axis.
    fn forward<const D: usize>(&self, hidden: Tensor<B, D>) -> Tensor<B, D> {
        let dtype = hidden.dtype();
        let hidden = in_dtype(hidden, DType::F32);
        let square = hidden.clone() * hidden.clone();
        let scale = square
            .mean_dim(D - 1)
            .add_scalar(self.epsilon)
            .sqrt()
            .recip();
        in_dtype(hidden * scale, dtype) * self.weight.val().unsqueeze()
    }
}

/// What a forward pass needs to know of the tokens it computes: `start..start + length` of each sequence.
pub struct Frame<B: Backend> {
    start: usize,
    /// Both `[batch, 1, length, head_dim]`, or 1 for a batch without padding; the sines of a head's first
    /// half are negated.
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
    /// `[batch, 1, length, start + length]`, or 1 as above; None where nothing is to be hidden.
    hidden: Option<Tensor<B, 4>>,
}

impl<B: Backend> Frame<B> {
    /// `padding` is empty, or how many tokens of it each sequence begins with.
    fn new(
        start: usize,
        length: usize,
        padding: &[usize],
        frequencies: &[f64],
        dtype: DType,
        device: &B::Device,
    ) -> Self {
        let (end, rows) = (start + length, padding.len().max(1));
        let half = frequencies.len();
        let head_dim = 2 * half;
        let mut cos = Vec::with_capacity(rows * length * head_dim);
        let mut sin = Vec::with_capacity(rows * length * head_dim);
        for row in 0..rows {
            let padding = padding.get(row).copied().unwrap_or(0);
            for token in start..end {
                let position = token.saturating_sub(padding);
                for at in 0..head_dim {
                    let angle = position as f64 * frequencies[at % half];
                    cos.push(angle.cos() as f32);
                    sin.push(if at < half { -angle.sin() } else { angle.sin() } as f32);
                }
            }
        }
        let table = |values: Vec<f32>| {
            let data = TensorData::new(values, [rows, 1, length, head_dim]);
            Tensor::from_data(data, (device, dtype))
        };
        let later = (length > 1).then(|| {
            let shape = [length, end];
            let later = Tensor::<B, 2, Bool>::tril_mask(shape, start as i64, device);
            Tensor::<B, 2>::zeros(shape, (device, DType::F32))
                .mask_fill(later, HIDDEN_SCORE)
                .unsqueeze::<4>()
        });
        let padded = (!padding.is_empty()).then(|| {
            let score = |hidden: bool| if hidden { HIDDEN_SCORE } else { 0.0 };
            let scores = padding
                .iter()
                .flat_map(|padding| (0..end).map(move |token| score(token < *padding)));
            let data = TensorData::new(scores.collect(), [rows, 1, 1, end]);
            Tensor::from_data(data, (device, DType::F32))
        });
        Self {
            start,
            cos: table(cos),
            sin: table(sin),
            hidden: match (later, padded) {
                (Some(later), Some(padded)) => Some(later + padded),
                (later, padded) => later.or(padded),
            },
        }
    }

    /// Rotary embedding of `[batch, heads, length, head_dim]`, in the convention of Hugging Face: number
    /// `i` of a head's first half is rotated with number `i` of its second half.
    fn rotate(&self, heads: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, count, length, head_dim] = heads.dims();
        let half = head_dim / 2;
        let first = heads
            .clone()
            .slice([0..batch, 0..count, 0..length, 0..half]);
        let second = heads
            .clone()
            .slice([0..batch, 0..count, 0..length, half..head_dim]);
        let swapped = Tensor::cat(vec![second, first], 3);
        heads * self.cos.clone() + swapped * self.sin.clone()
    }

    /// Keeps each token from seeing later ones, and padding.
    fn hide(&self, scores: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.hidden {
            Some(hidden) => scores + hidden.clone(),
            None => scores,
        }
    }
}

/// The keys and values of the positions computed so far.
pub struct Cache<B: Backend> {
    length: usize,
    /// Of each sequence of the batch, or empty.
    padding: Vec<usize>,
    layers: Vec<LayerCache<B>>,
}

impl<B: Backend> Cache<B> {
    /// How many positions it holds.
    pub fn len(&self) -> usize {
        self.length
    }
}

/// One layer's keys and values, `[batch, kv_heads, capacity, head_dim]` each.
struct LayerCache<B: Backend>(Option<(Tensor<B, 4>, Tensor<B, 4>)>);

impl<B: Backend> LayerCache<B> {
    /// Writes the keys and values of the positions from `start`; returns those of all up to them.
    fn append(
        &mut self,
        start: usize,
        key: Tensor<B, 4>,
        value: Tensor<B, 4>,
    ) -> (Tensor<B, 4>, Tensor<B, 4>) {
        let end = start + key.dims()[2];
        let (keys, values) = match self.0.take() {
            Some((keys, values)) => (Some(keys), Some(values)),
            None => (None, None),
        };
        let (keys, seen_keys) = put(keys, start, end, key);
        let (values, seen_values) = put(values, start, end, value);
        self.0 = Some((keys, values));
        (seen_keys, seen_values)
    }
}

/// Room for this many positions is made at a time.
const CACHE_STEP: usize = 256;

/// Puts `new` at `start..end` of `held`, with more room if need be; returns all of it and `0..end` of it.
fn put<B: Backend>(
    held: Option<Tensor<B, 4>>,
    start: usize,
    end: usize,
    new: Tensor<B, 4>,
) -> (Tensor<B, 4>, Tensor<B, 4>) {
    let [batch, heads, _, width] = new.dims();
    let room = match held {
        Some(held) if held.dims()[2] >= end => held,
        held => {
            let capacity = end.next_multiple_of(CACHE_STEP).max(2 * start);
            let shape = [batch, heads, capacity, width];
            let room = Tensor::zeros(shape, (&new.device(), new.dtype()));
            match held {
                Some(held) => {
                    let old = held.slice([0..batch, 0..heads, 0..start, 0..width]);
                    room.slice_assign([0..batch, 0..heads, 0..start, 0..width], old)
                }
                None => room,
            }
        }
    };
    let room = room.slice_assign([0..batch, 0..heads, start..end, 0..width], new);
    let seen = room.clone().slice([0..batch, 0..heads, 0..end, 0..width]);
    (room, seen)
}

const INITIAL_DEVIATION: f64 = 0.02;

/// The deviation of projections whose output is added to the residual stream, twice a layer.
fn residual_deviation(config: &LlamaConfig) -> f64 {
    INITIAL_DEVIATION / (2.0 * config.num_hidden_layers as f64).sqrt()
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

fn projection<B: Backend>(
    input: usize,
    output: usize,
    bias: bool,
    deviation: f64,
    device: &B::Device,
) -> Linear<B> {
    LinearConfig::new(input, output)
        .with_bias(bias)
        .with_initializer(normal(deviation))
        .init(device)
}

fn in_dtype<B: Backend, const D: usize>(tensor: Tensor<B, D>, dtype: DType) -> Tensor<B, D> {
    if tensor.dtype() == dtype {
        tensor
    } else {
        tensor.cast(dtype)
    }
}
