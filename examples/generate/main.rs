//! Continues a prompt with a Llama-style model whose parameters are in host memory.
//!
//!     cargo run --release --example generate
//!     cargo run --release --example generate -- --prompt "And God said" --host-budget 2MiB
//!     cargo run --release --features cuda --example generate -- --model ~/models/TinyLlama-1.1B
//!
//! The model is a folder of Hugging Face's: Llama 2 and 3, Mistral, Qwen 2 or Qwen 3, in safetensors; by
//! default a small Llama that has read the King James Bible.

#[path = "../llama/mod.rs"]
mod llama;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use burn::tensor::{DType, Element, FloatDType, set_default_dtypes};
use burn_offload::{ByteSize, OffloadError, OffloadPolicy, OffloadTarget, Offloaded, place};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use llama::{
    Target,
    checkpoint::{Checkpoint, CheckpointError},
    generation::{GenerationError, generate},
    policy::{PolicyArgs, PolicyFileError},
    quantize::{Bits, quantize},
    sample::{Sampler, Sampling},
    tokenizer::{Tokenizer, TokenizerError},
};

/// Generated when no flag says how many.
const DEFAULT_TOKENS: usize = 128;

/// Continue a prompt with a model whose parameters are in host memory
#[derive(Debug, Parser)]
struct Args {
    /// Folder with config.json, model.safetensors and tokenizer.json [default: examples/kjv]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// The text to continue
    #[arg(long, default_value = "In the beginning")]
    prompt: String,

    /// Generate up to this many tokens [default: 128, or as many as the model reads]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    tokens: Option<usize>,

    /// Of the choice of tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// 0 chooses the most likely token every time
    #[arg(long, default_value_t = 0.6, value_parser = temperature)]
    temperature: f32,

    /// Choose among the N most likely tokens
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P", value_parser = probability)]
    top_p: Option<f32>,

    /// Convert the weights to this type, and compute in it [default: as the file has them]
    #[arg(long, value_enum)]
    dtype: Option<DTypeArg>,

    /// Hold the matrices of linear layers in fewer bits
    #[arg(long, value_enum, value_name = "BITS")]
    quantize: Option<Bits>,

    #[command(flatten)]
    policy: PolicyArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DTypeArg {
    F32,
    F16,
    Bf16,
}

impl From<DTypeArg> for DType {
    fn from(dtype: DTypeArg) -> Self {
        match dtype {
            DTypeArg::F32 => DType::F32,
            DTypeArg::F16 => DType::F16,
            DTypeArg::Bf16 => DType::BF16,
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

#[derive(Debug, thiserror::Error)]
enum GenerateError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Generation(#[from] GenerationError),
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(transparent)]
    Offload(#[from] OffloadError),
    #[error("the prompt is {tokens} tokens long, and this model reads at most {most}")]
    LongPrompt { tokens: usize, most: usize },
    #[error("{dtype:?} cannot be computed in on this device: {why}")]
    DType { dtype: FloatDType, why: String },
    #[error("cannot write the text: {0}")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    match run::<Target>(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the text has had enough.
        Err(GenerateError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run<T: OffloadTarget>(args: &Args) -> Result<(), GenerateError> {
    let folder = args.model.clone().unwrap_or_else(default_model);
    // With no budget on the device, all is offloaded.
    let policy = args
        .policy
        .policy()?
        .unwrap_or_else(|| OffloadPolicy::device_budget(ByteSize::b(0)));

    let checkpoint = Checkpoint::open(&folder)?;
    let config = checkpoint.config();
    let tokenizer = Tokenizer::of_model(&folder, config)?;
    let prompt = tokenizer.encode_prompt(&args.prompt, config)?;
    let most = config.max_position_embeddings;
    // The last token of all is given, and not read.
    let room = (most + 1).saturating_sub(prompt.len());
    if room == 0 {
        let tokens = prompt.len();
        return Err(GenerateError::LongPrompt { tokens, most });
    }
    if args.tokens.is_some_and(|tokens| tokens > room) {
        eprintln!("note: this model reads at most {most} tokens, so {room} are generated");
    }

    // This is all that offloading takes. Each parameter goes straight into its place; one in host memory
    // whose type is the file's stays in the file, and is read from there.
    let device = Default::default();
    Offloaded::<T>::configure(&device, policy.clone())?;
    let dtype = args.dtype.map(DType::from);
    if args.quantize.is_some()
        && let Some(dtype) = dtype.map(FloatDType::from).or(checkpoint.dtype())
    {
        // Burn computes with a quantized matrix in the device's default type.
        let int = T::IntElem::dtype();
        set_default_dtypes::<Offloaded<T>>(&device, dtype, int).map_err(|error| {
            let why = error.to_string();
            GenerateError::DType { dtype, why }
        })?;
    }
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("loading {wide_bar} {bytes}/{total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let (mut model, _) = checkpoint.load::<Offloaded<T>>(dtype, &device, &policy, |progress| {
        bar.set_length(progress.all_bytes);
        bar.set_position(progress.bytes);
    })?;
    bar.finish_and_clear();
    if let Some(bits) = args.quantize {
        // Where they were, and then into the room that this has made.
        (model, _) = place(quantize(model, bits), "", &policy).map_err(OffloadError::from)?;
    }

    let mut sampler = Sampler::new(Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
    });
    let mut text_of = tokenizer.stream();
    let mut out = io::stdout().lock();
    write!(out, "{}", args.prompt)?;
    out.flush()?;
    let speed = generate(
        &model,
        &prompt,
        args.tokens.unwrap_or(DEFAULT_TOKENS).min(room),
        &config.eos_token_ids,
        &mut sampler,
        |token| -> Result<(), GenerateError> {
            write!(out, "{}", text_of(token)?)?;
            Ok(out.flush()?)
        },
    )?;
    writeln!(out, "\n\n{speed}\n\n{}", Offloaded::<T>::report(&device))?;
    Ok(())
}

/// The model beside this example's source, or else in a checkout that is the current folder.
fn default_model() -> PathBuf {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kjv");
    if built_from.is_dir() {
        built_from
    } else {
        PathBuf::from("examples/kjv")
    }
}
