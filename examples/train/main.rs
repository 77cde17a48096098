//! Trains a small Llama-style model on a text, with its parameters wherever the policy says, and writes it
//! in the layout of Hugging Face.
//!
//!     sh examples/kjv/prepare.sh kjv.txt
//!     cargo run --release --features cuda --example train -- --text kjv.txt --out model --minutes 4

#[path = "../llama/mod.rs"]
mod llama;

mod data;
mod plot;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use burn::{
    backend::Autodiff,
    grad_clipping::GradientClippingConfig,
    module::{AutodiffModule, Module},
    optim::{AdamWConfig, GradientsParams, Optimizer},
    tensor::{DType, Int, Tensor, activation::log_softmax, backend::Backend},
};
use burn_offload::{
    ByteSize, OffloadError, OffloadOptimizer, OffloadPolicy, OffloadTarget, Offloaded, place,
};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{SeedableRng, rngs::StdRng};

use data::{Batch, Data, ShortText};
use llama::{
    Target,
    checkpoint::{self, Checkpoint, CheckpointError},
    config::{ConfigError, LlamaConfig},
    generation::{GenerationError, Sequence, generate},
    log::{self, TraceError},
    model::{Frame, Llama},
    policy::{self, PolicyArgs, PolicyFileError},
    sample::{Sampler, Sampling},
    tokenizer::{Tokenizer, TokenizerError},
};
use plot::{Losses, PlotError};

/// Train a small model on a text
#[derive(Debug, Parser)]
struct Args {
    /// The text, in UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// The tokenizer.json to use [default: that of examples/kjv]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// The folder to write the model to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Width of the residual stream
    #[arg(long, default_value_t = 192)]
    hidden: usize,

    #[arg(long, default_value_t = 5)]
    layers: usize,

    /// Query heads
    #[arg(long, default_value_t = 6)]
    heads: usize,

    /// Key and value heads
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,

    /// Width of the inner layer of the MLP
    #[arg(long, default_value_t = 368)]
    intermediate: usize,

    /// Tokens of a window: as far as the model will see
    #[arg(long, default_value_t = 256)]
    seq: usize,

    /// Windows of a step
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,

    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Stop, well annealed, after this time if it comes before the last step
    #[arg(long, value_parser = minutes)]
    minutes: Option<Duration>,

    /// The highest learning rate
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,

    /// Steps to reach it
    #[arg(long, default_value_t = 200)]
    warmup: u64,

    #[arg(long, default_value_t = 0.1)]
    weight_decay: f32,

    /// Steps between looks at the validation loss; the model of the lowest is kept
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..))]
    validate: u64,

    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Continue this text at the end
    #[arg(long, default_value = "In the beginning")]
    prompt: String,

    /// Keep at most this much of the optimizer's moments in host memory, beside the parameters
    #[arg(long, value_name = "SIZE", value_parser = policy::size, help_heading = "Placement")]
    optimizer_state: Option<ByteSize>,

    /// Write a timeline of what offloading does, in Chrome's format: Perfetto opens it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    #[command(flatten)]
    policy: PolicyArgs,
}

/// Steps between looks at the loss, each of which waits for the device.
const LOOK: u64 = 50;
/// The end of a text, in the text: where the tokenizer has such a token.
const END_OF_TEXT: &str = "<|endoftext|>";
/// The picture of the losses, in the folder of the model.
const LOSS_PLOT: &str = "loss.svg";
/// The length of the text at the end.
const SAMPLE: usize = 200;

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if minutes <= 0.0 {
        return Err("it must be above 0".into());
    }
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())
}

#[derive(Debug, thiserror::Error)]
enum TrainError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot copy {} to {}: {source}", from.display(), to.display())]
    Copy {
        from: PathBuf,
        to: PathBuf,
        source: io::Error,
    },
    #[error("the sizes make no model: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Text(#[from] ShortText),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(transparent)]
    Offload(#[from] OffloadError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Generation(#[from] GenerationError),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("cannot read the loss from the device: {0}")]
    Device(String),
    #[error("the loss is {loss} at step {step}: try a lower --lr")]
    Diverged { loss: f32, step: u64 },
}

fn main() -> ExitCode {
    match run::<Target>(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run<T: OffloadTarget>(args: &Args) -> Result<(), TrainError> {
    let _timeline = log::start(args.trace.as_deref())?;
    let tokenizer_path = args.tokenizer.clone().unwrap_or_else(default_tokenizer);
    let tokenizer = Tokenizer::read(&tokenizer_path)?;
    let config = config(args, &tokenizer)?;
    let text = fs::read_to_string(&args.text).map_err(|source| TrainError::Read {
        path: args.text.clone(),
        source,
    })?;
    let data = Data::new(&tokenizer.encode(&text)?, args.batch as usize, args.seq)?;
    let mut policy = args.policy.policy()?.unwrap_or_else(OffloadPolicy::nothing);
    if let Some(bytes) = args.optimizer_state {
        policy = policy.with_optimizer_state(bytes);
    }

    let device = Default::default();
    Offloaded::<T>::configure(&device, policy.clone())?;
    Autodiff::<Offloaded<T>>::seed(&device, args.seed);
    let model = Llama::<Autodiff<Offloaded<T>>>::new(&config, &device);
    let (model, report) = place(model, "", &policy).map_err(OffloadError::from)?;
    println!("{report}\n{} parameters", model.num_params());

    // The folder is whole before the hours of training, but for the weights.
    fs::create_dir_all(&args.out).map_err(|source| CheckpointError::Write {
        path: args.out.clone(),
        source,
    })?;
    copy_tokenizer(&tokenizer_path, &args.out)?;
    let losses = train(args, model, &data, &config, &device)?;
    let plot = args.out.join(LOSS_PLOT);
    losses.plot(&plot)?;
    println!(
        "validation loss {:.4}; written to {}, and the losses to {}\n",
        losses.lowest(),
        args.out.display(),
        plot.display()
    );

    // The best is not always the last. It was written, so that there was no second model in memory.
    let kept = Checkpoint::open(&args.out)?;
    let dtype = Some(DType::F32);
    let (model, _) = kept.load::<Offloaded<T>>(dtype, &device, &policy, |_| {})?;

    let mut text = args.prompt.clone();
    let mut text_of = tokenizer.stream();
    let sampling = Sampling {
        temperature: 0.8,
        top_k: None,
        top_p: None,
        seed: args.seed,
    };
    let prompt = tokenizer.encode_prompt(&args.prompt, &config)?;
    let sequence = Sequence {
        prompt: &prompt[..prompt.len().min(args.seq)],
        count: SAMPLE.min((args.seq + 1).saturating_sub(prompt.len())),
        sampler: Sampler::new(sampling),
    };
    generate(
        &model,
        vec![sequence],
        &config.eos_token_ids,
        |_, token| -> Result<(), TrainError> {
            text.push_str(&text_of(token)?);
            Ok(())
        },
    )?;
    println!("{text}");
    Ok(())
}

fn config(args: &Args, tokenizer: &Tokenizer) -> Result<LlamaConfig, ConfigError> {
    let end = tokenizer.token(END_OF_TEXT);
    let config = LlamaConfig {
        vocab_size: tokenizer.vocabulary(),
        hidden_size: args.hidden,
        intermediate_size: args.intermediate,
        num_hidden_layers: args.layers,
        num_attention_heads: args.heads,
        num_key_value_heads: args.kv_heads,
        head_dim: args.hidden.checked_div(args.heads).unwrap_or(0),
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        attention_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: false,
        max_position_embeddings: args.seq,
        tie_word_embeddings: true,
        bos_token_id: end,
        eos_token_ids: end.into_iter().collect(),
    };
    config.validate()?;
    Ok(config)
}

/// Trains for as long as the arguments say, and writes the model whenever its validation loss is the lowest
/// so far.
fn train<T: OffloadTarget>(
    args: &Args,
    mut model: Llama<Autodiff<Offloaded<T>>>,
    data: &Data,
    config: &LlamaConfig,
    device: &T::Device,
) -> Result<Losses, TrainError> {
    let mut optimizer = AdamWConfig::new()
        .with_beta_2(0.95)
        .with_epsilon(1e-8)
        .with_weight_decay(args.weight_decay)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)))
        .init()
        .offloaded();
    let frame = model.frame(args.seq);
    let held_out = data.held_out(device);
    let held_out_frame = model.valid().frame(args.seq);
    let mut rng = StdRng::seed_from_u64(args.seed);
    let bar = progress_bar(args.steps);

    let start = Instant::now();
    let mut losses = Losses::default();
    let mut step = 0;
    loop {
        let in_steps = step as f64 / args.steps as f64;
        let in_time = args
            .minutes
            .map_or(0.0, |limit| start.elapsed().div_duration_f64(limit));
        let progress = in_steps.max(in_time).min(1.0);
        let last = progress == 1.0;

        if last || step % args.validate == 0 {
            let valid = model.valid();
            let loss = validate(&valid, &held_out, &held_out_frame)?;
            let line = format!("step {step}: validation loss {loss:.4}, {}", bar.prefix());
            // Where there is no terminal to draw the bar in, too.
            bar.suspend(|| println!("{line}"));
            if !loss.is_finite() {
                return Err(TrainError::Diverged { loss, step });
            }
            if loss < losses.lowest() {
                checkpoint::save(&valid, config, &args.out)?;
            }
            losses.validation.push((step, loss));
        }
        if last {
            bar.finish();
            let tokens = step * args.batch * args.seq as u64;
            let seconds = start.elapsed().as_secs_f64();
            let rate = tokens as f64 / seconds;
            println!("{step} steps, {tokens} tokens in {seconds:.0} s: {rate:.0} tokens/s");
            return Ok(losses);
        }

        let Batch { inputs, targets } = data.sample(&mut rng, device);
        let loss = cross_entropy(&model, inputs, targets, &frame);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(learning_rate(args, step, progress), model, gradients);
        step += 1;
        bar.inc(1);
        if step % LOOK == 0 {
            let loss = read(loss)?;
            if !loss.is_finite() {
                return Err(TrainError::Diverged { loss, step });
            }
            losses.training.push((step, loss));
            bar.set_prefix(format!("training loss {loss:.4}"));
        }
    }
}

/// A steep line up, and half a wave down to a twentieth.
fn learning_rate(args: &Args, step: u64, progress: f64) -> f64 {
    let warmup = ((step + 1) as f64 / args.warmup.max(1) as f64).min(1.0);
    let wave = 0.5 + 0.5 * (std::f64::consts::PI * progress).cos();
    args.lr * warmup * (0.05 + 0.95 * wave)
}

fn cross_entropy<B: Backend>(
    model: &Llama<B>,
    inputs: Tensor<B, 2, Int>,
    targets: Tensor<B, 2, Int>,
    frame: &Frame<B>,
) -> Tensor<B, 1> {
    let logits = model.forward_frame(inputs, frame);
    let [batch, length, vocabulary] = logits.dims();
    let logits = logits.reshape([batch * length, vocabulary]);
    log_softmax(logits, 1).gather(1, targets).mean().neg()
}

fn validate<B: Backend>(
    model: &Llama<B>,
    batches: &[Batch<B>],
    frame: &Frame<B>,
) -> Result<f32, TrainError> {
    let losses = batches
        .iter()
        .map(|batch| cross_entropy(model, batch.inputs.clone(), batch.targets.clone(), frame));
    read(Tensor::cat(losses.collect(), 0).mean())
}

fn read<B: Backend>(loss: Tensor<B, 1>) -> Result<f32, TrainError> {
    let data = loss
        .try_into_data()
        .map_err(|error| TrainError::Device(format!("{error:?}")))?;
    let first = data.iter::<f32>().next();
    first.ok_or_else(|| TrainError::Device("it is empty".into()))
}

fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = "{elapsed_precise} {wide_bar} {pos}/{len} {prefix}";
    // Without the template the bar's own will do.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn copy_tokenizer(from: &Path, folder: &Path) -> Result<(), TrainError> {
    let to = folder.join(checkpoint::TOKENIZER);
    let is_there = || Ok(to.exists() && to.canonicalize()? == from.canonicalize()?);
    let copied = is_there().and_then(|there| if there { Ok(0) } else { fs::copy(from, &to) });
    match copied {
        Ok(_) => Ok(()),
        Err(source) => Err(TrainError::Copy {
            from: from.to_owned(),
            to,
            source,
        }),
    }
}

fn default_tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/kjv")
        .join(checkpoint::TOKENIZER)
}
