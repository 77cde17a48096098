//! The command line.

use std::path::PathBuf;

use burn::tensor::FloatDType;
use clap::Parser;

use crate::llama::{policy::PolicyArgs, quantize::Bits, sample::Sampling, shape::Shape};

/// Continued when no flag has another text.
const DEFAULT_PROMPT: &str = "In the beginning";

/// Continue texts with a model whose parameters are in host memory
#[derive(Debug, Parser)]
pub struct Args {
    /// Folder with config.json, model.safetensors and tokenizer.json [default: examples/kjv]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,

    /// Random weights in the shape of a public Llama model, in place of a folder: token ids, no text
    #[arg(
        long,
        value_enum,
        value_name = "SHAPE",
        conflicts_with_all = ["model", "prompt", "prompts", "chat"]
    )]
    pub synthetic: Option<Shape>,

    /// The text to continue; several are continued together [default: "In the beginning"]
    #[arg(long, value_name = "TEXT", group = "texts")]
    prompt: Vec<String>,

    /// Continue each line of this file
    #[arg(long, value_name = "FILE", group = "texts")]
    pub prompts: Option<PathBuf>,

    /// The prompt is what a user says: write it as the model's chat template has it
    #[arg(long, requires = "texts")]
    pub chat: bool,

    /// What the model is told before the user's words
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,

    /// Tokens of a random prompt
    #[arg(long, value_name = "N", default_value_t = 32, requires = "synthetic", value_parser = at_least_one)]
    pub prompt_tokens: usize,

    /// Random prompts
    #[arg(long, value_name = "N", default_value_t = 1, requires = "synthetic", value_parser = at_least_one)]
    pub batch: usize,

    /// Generate up to this many tokens after each prompt [default: 128, or as many as the model reads]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub tokens: Option<usize>,

    /// Of random weights, and of the choice of tokens: there one more for each prompt after the first
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// 0 chooses the most likely token every time
    #[arg(long, default_value_t = 0.6, value_parser = temperature)]
    temperature: f32,

    /// Choose among the N most likely tokens
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P", value_parser = probability)]
    top_p: Option<f32>,

    /// Convert the weights to this type, and compute in it [default: as the file has them; random weights
    /// are bf16 on a GPU that computes in it, or else f32]
    #[arg(long, value_enum)]
    dtype: Option<DTypeArg>,

    /// Hold the matrices of linear layers in fewer bits
    #[arg(long, value_enum, value_name = "BITS")]
    pub quantize: Option<Bits>,

    /// Draw where each layer's parameters are, as SVG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Write a timeline of what offloading does, in Chrome's format: Perfetto opens it
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub policy: PolicyArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DTypeArg {
    F32,
    F16,
    Bf16,
}

impl Args {
    /// The texts that the flags have themselves.
    pub fn prompts(&self) -> Vec<String> {
        if self.prompt.is_empty() {
            vec![DEFAULT_PROMPT.to_owned()]
        } else {
            self.prompt.clone()
        }
    }

    pub fn dtype(&self) -> Option<FloatDType> {
        self.dtype.map(|dtype| match dtype {
            DTypeArg::F32 => FloatDType::F32,
            DTypeArg::F16 => FloatDType::F16,
            DTypeArg::Bf16 => FloatDType::BF16,
        })
    }

    /// How the tokens after prompt number `index` are chosen.
    pub fn sampling(&self, index: usize) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed.wrapping_add(index as u64),
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        Ok(_) => Err("it must be 0 or more".into()),
        Err(error) => Err(format!("{error}")),
    }
}

fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        Ok(_) => Err("it must be above 0 and at most 1".into()),
        Err(error) => Err(format!("{error}")),
    }
}
