//! Texts token by token: the prompts at once, and then one token of each at a time.

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

/// A text to go on with.
pub struct Sequence<'a> {
    /// Its tokens, of which there must be one.
    pub prompt: &'a [u32],
    /// Up to how many follow.
    pub count: usize,
    pub sampler: Sampler,
}

/// How long the two phases took, of all sequences together.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Tokens of the prompts, and the time to the first token after them.
    pub prompt: (usize, Duration),
    /// Tokens after that one, and their time.
    pub decode: (usize, Duration),
    /// How often the model was run for them.
    pub steps: usize,
}

impl Speed {
    /// The seconds that a step of decoding took; none if there was none.
    pub fn step(&self) -> Option<f64> {
        let steps = (self.steps > 0).then_some(self.steps as f64);
        steps.map(|steps| self.decode.1.as_secs_f64() / steps)
    }
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

/// Stands before the shorter prompts of a batch, and after texts that have ended; it is never seen.
const PADDING: u32 = 0;

/// Continues `sequences`, of which there must be one, as a batch. Gives each token, with the number of its
/// sequence, to `emit`. A sequence ends early, without giving it, at a token of `stop`.
pub fn generate<B: Backend, E: From<GenerationError>>(
    model: &Llama<B>,
    mut sequences: Vec<Sequence<'_>>,
    stop: &[u32],
    mut emit: impl FnMut(usize, u32) -> Result<(), E>,
) -> Result<Speed, E> {
    let lengths = sequences.iter().map(|sequence| sequence.prompt.len());
    let (read, longest) = (lengths.clone().sum(), lengths.clone().max().unwrap_or(0));
    let padding: Vec<usize> = lengths.map(|length| longest - length).collect();
    let mut tokens = Vec::with_capacity(longest * sequences.len());
    for (sequence, padding) in sequences.iter().zip(&padding) {
        tokens.resize(tokens.len() + padding, PADDING);
        tokens.extend(sequence.prompt);
    }
    let mut cache = model.padded_cache(padding);
    let batch = sequences.len();

    let start = Instant::now();
    let mut logits = next_logits(model, &tokens, batch, &mut cache)?;
    let first = Instant::now();
    let (mut decoded, mut steps) = (0, 0);
    loop {
        tokens.clear();
        let rows = logits.chunks_exact(logits.len() / batch);
        for (index, (sequence, logits)) in sequences.iter_mut().zip(rows).enumerate() {
            let mut next = PADDING;
            if sequence.count > 0 {
                let token = sequence.sampler.choose(logits);
                next = token.map_err(GenerationError::from)?;
                if stop.contains(&next) {
                    sequence.count = 0;
                } else {
                    emit(index, next)?;
                    sequence.count -= 1;
                }
            }
            tokens.push(next);
        }
        let going = sequences.iter().filter(|sequence| sequence.count > 0);
        match going.count() {
            0 => break,
            going => decoded += going,
        }
        logits = next_logits(model, &tokens, batch, &mut cache)?;
        steps += 1;
    }
    Ok(Speed {
        prompt: (read, first - start),
        decode: (decoded, first.elapsed()),
        steps,
    })
}

/// The logits after the last of `tokens`, one sequence of the batch after the other.
fn next_logits<B: Backend>(
    model: &Llama<B>,
    tokens: &[u32],
    batch: usize,
    cache: &mut Cache<B>,
) -> Result<Vec<f32>, GenerationError> {
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    let data = TensorData::new(ids, [batch, tokens.len() / batch]);
    let tokens = Tensor::<B, 2, Int>::from_data(data, &model.device());
    let logits = model.next_logits(tokens, cache);
    let data = logits
        .try_into_data()
        .map_err(|error| GenerationError::Device(format!("{error:?}")))?;
    Ok(data.iter::<f32>().collect())
}
