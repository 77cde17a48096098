//! The text, as tokens: windows to train on, and windows held out.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use rand::{RngExt, rngs::StdRng};

/// One page of so many is held out.
const HELD_OUT: usize = 20;
/// As many pages are held out at most: more of them, and shorter, from all over the text.
const PAGES_HELD_OUT: usize = 20;

#[derive(Debug, thiserror::Error)]
#[error("the text has {tokens} tokens, and at least {least} are needed")]
pub struct ShortText {
    tokens: usize,
    least: usize,
}

pub struct Data {
    tokens: Vec<i32>,
    /// What lies between the pages held out.
    parts: Vec<Range<usize>>,
    /// Windows of the pages held out, by their starts.
    held_out: Vec<usize>,
    batch: usize,
    /// A token more than the model reads: each is to be foretold from those before it.
    window: usize,
}

/// A batch `[batch, length]` of windows, and the token after each of their tokens `[batch * length, 1]`.
pub struct Batch<B: Backend> {
    pub inputs: Tensor<B, 2, Int>,
    pub targets: Tensor<B, 2, Int>,
}

impl Data {
    pub fn new(tokens: &[u32], batch: usize, length: usize) -> Result<Self, ShortText> {
        let window = length + 1;
        let least = HELD_OUT * window;
        if tokens.len() < least {
            let tokens = tokens.len();
            return Err(ShortText { tokens, least });
        }
        let page = (tokens.len() / (HELD_OUT * PAGES_HELD_OUT)).max(window);
        let mut parts = Vec::new();
        let mut held_out = Vec::new();
        let mut start = 0;
        // The last page of each twenty.
        for first in (page * (HELD_OUT - 1)..).step_by(page * HELD_OUT) {
            let end = first + page;
            if end > tokens.len() {
                break;
            }
            parts.push(start..first);
            held_out.extend((first..=end - window).step_by(window));
            start = end;
        }
        if tokens.len() - start >= window {
            parts.push(start..tokens.len());
        }
        Ok(Self {
            tokens: tokens.iter().map(|token| *token as i32).collect(),
            parts,
            held_out,
            batch,
            window,
        })
    }

    /// A batch of windows from anywhere but the pages held out.
    pub fn sample<B: Backend>(&self, rng: &mut StdRng, device: &B::Device) -> Batch<B> {
        let choices = |part: &Range<usize>| part.len() - self.window + 1;
        let all: usize = self.parts.iter().map(choices).sum();
        let starts = (0..self.batch).map(|_| {
            let mut choice = rng.random_range(0..all);
            let mut start = 0;
            for part in &self.parts {
                start = part.start;
                if choice < choices(part) {
                    break;
                }
                choice -= choices(part);
            }
            start + choice
        });
        self.batch(starts, device)
    }

    /// The windows held out, in batches; a few come again to fill the last.
    pub fn held_out<B: Backend>(&self, device: &B::Device) -> Vec<Batch<B>> {
        let batches = self.held_out.len().div_ceil(self.batch);
        let mut starts = self.held_out.iter().copied().cycle();
        (0..batches)
            .map(|_| self.batch(starts.by_ref().take(self.batch), device))
            .collect()
    }

    fn batch<B: Backend>(
        &self,
        starts: impl Iterator<Item = usize>,
        device: &B::Device,
    ) -> Batch<B> {
        let length = self.window - 1;
        let tokens: Vec<i32> = starts
            .flat_map(|start| &self.tokens[start..start + self.window])
            .copied()
            .collect();
        // To the device at once.
        let data = TensorData::new(tokens, [self.batch, self.window]);
        let tokens = Tensor::<B, 2, Int>::from_data(data, device);
        Batch {
            inputs: tokens.clone().slice([0..self.batch, 0..length]),
            targets: tokens
                .slice([0..self.batch, 1..self.window])
                .reshape([self.batch * length, 1]),
        }
    }
}
