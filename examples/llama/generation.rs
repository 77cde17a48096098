//! Text token by token: the prompt at once, and then one at a time.

use std::{
    fmt,
    time::{Duration, Instant},
};

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

use super::{
    model::{Cache, Llama},
    sample::{NotANumber, Sampler},
};

#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
    #[error("cannot read the model's output from the device: {0}")]
    Device(String),
}

/// How long the two phases took.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Tokens of the prompt, and the time to the first token after it.
    pub prompt: (usize, Duration),
    /// Tokens after that one, and their time.
    pub decode: (usize, Duration),
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = |(tokens, time): (usize, Duration)| {
            let seconds = time.as_secs_f64();
            let rate = if tokens == 0 {
                0.0
            } else {
                tokens as f64 / seconds
            };
            format!("{tokens} tokens in {seconds:.2} s, {rate:.1} tokens/s")
        };
        writeln!(f, "prefill: {}", phase(self.prompt))?;
        write!(f, "decode:  {}", phase(self.decode))
    }
}

/// Continues `prompt`, which must have a token, by up to `count` tokens. Gives each to `emit`, and stops
/// early, without giving it, at a token of `stop`.
pub fn generate<B: Backend, E: From<GenerationError>>(
    model: &Llama<B>,
    prompt: &[u32],
    count: usize,
    stop: &[u32],
    sampler: &mut Sampler,
    mut emit: impl FnMut(u32) -> Result<(), E>,
) -> Result<Speed, E> {
    let mut cache = model.cache();
    let mut next = |tokens: &[u32]| {
        let logits = next_logits(model, tokens, &mut cache)?;
        sampler.choose(&logits).map_err(GenerationError::from)
    };

    let start = Instant::now();
    let mut token = next(prompt)?;
    let first = Instant::now();
    let mut decoded = 0;
    for left in (0..count).rev() {
        if stop.contains(&token) {
            break;
        }
        emit(token)?;
        if left > 0 {
            token = next(&[token])?;
            decoded += 1;
        }
    }
    Ok(Speed {
        prompt: (prompt.len(), first - start),
        decode: (decoded, first.elapsed()),
    })
}

fn next_logits<B: Backend>(
    model: &Llama<B>,
    tokens: &[u32],
    cache: &mut Cache<B>,
) -> Result<Vec<f32>, GenerationError> {
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    let data = TensorData::new(ids, [1, tokens.len()]);
    let tokens = Tensor::<B, 2, Int>::from_data(data, &model.device());
    let logits = model.next_logits(tokens, cache);
    let data = logits
        .try_into_data()
        .map_err(|error| GenerationError::Device(format!("{error:?}")))?;
    Ok(data.iter::<f32>().collect())
}
