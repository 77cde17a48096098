//! Continues prompts with a Llama-style model whose parameters are in host memory.
//!
//!     cargo run --release --example generate
//!     cargo run --release --example generate -- --prompt "And God said" --host-budget 2MiB
//!     cargo run --release --features cuda --example generate -- --model ~/models/Llama-3.2-1B-Instruct \
//!         --chat --system "Be brief." --prompt "Why is the sky blue?" --prompt "And the sea?"
//!     cargo run --release --features cuda --example generate -- --synthetic 7b --batch 8
//!
//! The model is a folder of Hugging Face's: Llama 2 and 3, Mistral, Qwen 2 or Qwen 3, in safetensors; by
//! default a small Llama that has read the King James Bible.

mod args;
#[path = "../llama/mod.rs"]
mod llama;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use burn::tensor::{DType, Element, FloatDType, backend::Backend, set_default_dtypes};
use burn_offload::{ByteSize, OffloadError, OffloadPolicy, OffloadTarget, Offloaded, place};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use args::Args;
use llama::{
    Target,
    chat::{ChatError, ChatTemplate},
    checkpoint::{Checkpoint, CheckpointError},
    config::LlamaConfig,
    generation::{GenerationError, Sequence, generate},
    log::{self, TraceError},
    model::Llama,
    picture::{self, PictureError},
    policy::PolicyFileError,
    quantize::quantize,
    sample::Sampler,
    shape::{self, Shape},
    tokenizer::{Tokenizer, TokenizerError},
};

/// Generated when no flag says how many.
const DEFAULT_TOKENS: usize = 128;

#[derive(Debug, thiserror::Error)]
enum GenerateError {
    #[error("cannot read {}: {source}", path.display())]
    Prompts { path: PathBuf, source: io::Error },
    #[error("{} has no line with a prompt", path.display())]
    NoPrompts { path: PathBuf },
    #[error(transparent)]
    Chat(#[from] ChatError),
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
    #[error("prompt {number} is {tokens} tokens long, and this model reads at most {most}")]
    LongPrompt {
        number: usize,
        tokens: usize,
        most: usize,
    },
    #[error("{dtype:?} cannot be computed in on this device: {why}")]
    DType { dtype: FloatDType, why: String },
    #[error(transparent)]
    Picture(#[from] PictureError),
    #[error(transparent)]
    Trace(#[from] TraceError),
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
    let _timeline = log::start(args.trace.as_deref())?;
    // With no budget on the device, all is offloaded.
    let policy = args
        .policy
        .policy()?
        .unwrap_or_else(|| OffloadPolicy::device_budget(ByteSize::b(0)));
    match args.synthetic {
        Some(shape) => with_random_weights::<T>(args, shape, &policy),
        None => with_checkpoint::<T>(args, &policy),
    }
}

/// A prompt, and how what follows it is shown.
struct Prompt<'a> {
    /// Written before what follows.
    text: String,
    tokens: Vec<u32>,
    text_of: Box<dyn FnMut(u32) -> Result<String, TokenizerError> + 'a>,
}

fn with_checkpoint<T: OffloadTarget>(
    args: &Args,
    policy: &OffloadPolicy,
) -> Result<(), GenerateError> {
    let folder = args.model.clone().unwrap_or_else(default_model);
    let checkpoint = Checkpoint::open(&folder)?;
    let mut config = checkpoint.config().clone();
    let tokenizer = Tokenizer::of_model(&folder, &config)?;
    let chat = args.chat.then(|| ChatTemplate::of_model(&folder));
    let chat = chat.transpose()?;
    if let Some(end) = chat.as_ref().and_then(ChatTemplate::end) {
        config.eos_token_ids.extend(tokenizer.token(end));
    }
    let mut prompts = Vec::new();
    for text in texts(args)? {
        let (text, tokens) = match &chat {
            Some(chat) => {
                let turns = chat.render(args.system.as_deref(), &text)?;
                (text + "\n\n", tokenizer.encode_chat(&turns)?)
            }
            None => {
                let tokens = tokenizer.encode_prompt(&text, &config)?;
                (text, tokens)
            }
        };
        let text_of = Box::new(tokenizer.stream());
        prompts.push(Prompt {
            text,
            tokens,
            text_of,
        });
    }
    let counts = counts(args, &config, &prompts)?;

    // This is all that offloading takes. Each parameter goes straight into its place; one in host memory
    // whose type is the file's stays in the file, and is read from there.
    let device = Default::default();
    Offloaded::<T>::configure(&device, policy.clone())?;
    if args.quantize.is_some()
        && let Some(dtype) = args.dtype().or(checkpoint.dtype())
    {
        // Burn computes with a quantized matrix in the device's default type.
        set_default_dtype::<T>(&device, dtype)?;
    }
    let bar = progress_bar(0, "loading {wide_bar} {bytes}/{total_bytes}");
    let dtype = args.dtype().map(DType::from);
    let (model, _) = checkpoint.load::<Offloaded<T>>(dtype, &device, policy, |progress| {
        bar.set_length(progress.all_bytes);
        bar.set_position(progress.bytes);
    })?;
    bar.finish_and_clear();
    continue_prompts(args, policy, model, &config, prompts, &counts)
}

fn with_random_weights<T: OffloadTarget>(
    args: &Args,
    shape: Shape,
    policy: &OffloadPolicy,
) -> Result<(), GenerateError> {
    let config = shape.config();
    let mut rng = StdRng::seed_from_u64(args.seed);
    let prompts = (0..args.batch).map(|_| Prompt {
        text: "token ids:".into(),
        tokens: (0..args.prompt_tokens)
            .map(|_| rng.random_range(0..config.vocab_size as u32))
            .collect(),
        text_of: Box::new(|token| Ok(format!(" {token}"))),
    });
    let prompts: Vec<_> = prompts.collect();
    let counts = counts(args, &config, &prompts)?;

    let device = Default::default();
    Offloaded::<T>::configure(&device, policy.clone())?;
    let bf16 = Offloaded::<T>::supports_dtype(&device, DType::BF16);
    let dtype = args.dtype().unwrap_or(shape::dtype(bf16));
    set_default_dtype::<T>(&device, dtype)?;
    Offloaded::<T>::seed(&device, args.seed);
    let model = Llama::<Offloaded<T>>::new(&config, &device);
    let weights = shape::weights(&model);
    let bytes = ByteSize::b((weights * DType::from(dtype).size()) as u64);
    eprintln!(
        "{weights} random weights, {} of {dtype:?}",
        bytes.display().iec()
    );
    // A weight is made where it belongs, one after the other.
    let (model, _) = place(model, "", policy).map_err(OffloadError::from)?;
    continue_prompts(args, policy, model, &config, prompts, &counts)
}

/// The texts to continue.
fn texts(args: &Args) -> Result<Vec<String>, GenerateError> {
    let Some(path) = &args.prompts else {
        return Ok(args.prompts());
    };
    let path = path.clone();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(GenerateError::Prompts { path, source }),
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(GenerateError::NoPrompts { path });
    }
    Ok(lines)
}

/// Up to how many tokens follow each prompt.
fn counts(
    args: &Args,
    config: &LlamaConfig,
    prompts: &[Prompt<'_>],
) -> Result<Vec<usize>, GenerateError> {
    let most = config.max_position_embeddings;
    let count = |(number, prompt): (usize, &Prompt<'_>)| {
        let tokens = prompt.tokens.len();
        // The last token of all is given, and not read.
        let room = (most + 1).saturating_sub(tokens);
        if room == 0 {
            return Err(GenerateError::LongPrompt {
                number,
                tokens,
                most,
            });
        }
        if args.tokens.is_some_and(|tokens| tokens > room) {
            eprintln!(
                "note: this model reads at most {most} tokens, so {room} are generated after prompt {number}"
            );
        }
        Ok(args.tokens.unwrap_or(DEFAULT_TOKENS).min(room))
    };
    (1..).zip(prompts).map(count).collect()
}

fn set_default_dtype<T: OffloadTarget>(
    device: &T::Device,
    dtype: FloatDType,
) -> Result<(), GenerateError> {
    let int = T::IntElem::dtype();
    set_default_dtypes::<Offloaded<T>>(device, dtype, int).map_err(|error| {
        let why = error.to_string();
        GenerateError::DType { dtype, why }
    })
}

/// Writes what follows the prompts: of one as it comes, of several when all have ended. Then the speed, and
/// where the parameters are.
fn continue_prompts<T: OffloadTarget>(
    args: &Args,
    policy: &OffloadPolicy,
    mut model: Llama<Offloaded<T>>,
    config: &LlamaConfig,
    mut prompts: Vec<Prompt<'_>>,
    counts: &[usize],
) -> Result<(), GenerateError> {
    if let Some(bits) = args.quantize {
        // Where they were, and then into the room that this has made.
        (model, _) = place(quantize(model, bits), "", policy).map_err(OffloadError::from)?;
    }
    let tokens: Vec<_> = prompts
        .iter_mut()
        .map(|prompt| std::mem::take(&mut prompt.tokens))
        .collect();
    let sequences = tokens.iter().zip(counts).enumerate();
    let sequences = sequences.map(|(index, (prompt, count))| Sequence {
        prompt,
        count: *count,
        sampler: Sampler::new(args.sampling(index)),
    });
    let several = prompts.len() > 1;
    let mut out = io::stdout().lock();
    if !several {
        write!(out, "{}", prompts[0].text)?;
        out.flush()?;
    }
    let all = counts.iter().sum::<usize>() as u64;
    let bar = if several {
        progress_bar(all, "generating {wide_bar} {pos}/{len} tokens")
    } else {
        ProgressBar::hidden()
    };
    let stop = &config.eos_token_ids;
    let speed = generate(
        &model,
        sequences.collect(),
        stop,
        |index, token| -> Result<(), GenerateError> {
            let Prompt { text, text_of, .. } = &mut prompts[index];
            let new = text_of(token)?;
            if several {
                text.push_str(&new);
                bar.inc(1);
                return Ok(());
            }
            write!(out, "{new}")?;
            Ok(out.flush()?)
        },
    )?;
    bar.finish_and_clear();
    if several {
        let of = prompts.len();
        for (number, prompt) in (1..).zip(&prompts) {
            let gap = if number == 1 { "" } else { "\n\n" };
            write!(out, "{gap}--- {number} of {of} ---\n{}", prompt.text)?;
        }
    }
    let report = Offloaded::<T>::report(&model.device());
    writeln!(out, "\n\n{speed}\n\n{report}")?;
    if let Some(path) = &args.picture {
        picture::draw(&report, speed.step(), path)?;
    }
    Ok(())
}

fn progress_bar(length: u64, template: &str) -> ProgressBar {
    ProgressBar::new(length).with_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
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
