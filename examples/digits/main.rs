//! Recognises handwritten digits: a small convolutional network, trained by burn-train's learner with its
//! weights and the optimizer's moments in host memory.
//!
//!     cargo run --release --example digits -- --host-budget 1MiB --optimizer-state 2MiB
//!
//! Trains on the first half of the images and tests on the second, as scikit-learn's example of
//! handwritten digits does.

#[path = "../llama/policy.rs"]
mod policy;

mod bar;
mod data;

use std::process::ExitCode;

use burn::{
    backend::Autodiff,
    data::{dataloader::DataLoaderBuilder, dataset::InMemDataset},
    module::Module,
    nn::{
        Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    optim::{AdamConfig, lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig},
    tensor::{
        Tensor,
        activation::relu,
        backend::{AutodiffBackend, Backend},
    },
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadError, OffloadOptimizer, OffloadPolicy, Offloaded, place};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
    metric::{AccuracyMetric, LossMetric},
};
use clap::Parser;

use bar::Bar;
use data::{Batch, Batches, DataError};
use policy::{PolicyArgs, PolicyFileError};

type B = Offloaded<Flex>;

/// Recognise handwritten digits
#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// Images of a step
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,

    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Keep at most this much of the optimizer's moments in host memory, beside the parameters
    #[arg(long, value_name = "SIZE", value_parser = policy::size, help_heading = "Placement")]
    optimizer_state: Option<ByteSize>,

    #[command(flatten)]
    policy: PolicyArgs,
}

#[derive(Debug, thiserror::Error)]
enum DigitsError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(transparent)]
    Offload(#[from] OffloadError),
    #[error("there is no folder for the learner's logs: {0}")]
    Folder(#[from] std::io::Error),
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Conv2d<B>,
    second: Conv2d<B>,
    pool: MaxPool2d,
    dropout: Dropout,
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let conv =
            |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            first: conv([1, 32]).init(device),
            second: conv([32, 64]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.4).init(),
            hidden: LinearConfig::new(64 * 4 * 4, 128).init(device),
            output: LinearConfig::new(128, 10).init(device),
        }
    }

    /// Images `[batch, 8, 8]` to scores `[batch, 10]`.
    fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = relu(self.first.forward(images.unsqueeze_dim(1)));
        let x = self.pool.forward(relu(self.second.forward(x)));
        let x = self.dropout.forward(x.flatten(1, 3));
        let x = self.dropout.forward(relu(self.hidden.forward(x)));
        self.output.forward(x)
    }

    fn classify(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        let scores = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        let loss = loss.forward(scores.clone(), batch.digits.clone());
        ClassificationOutput::new(loss, scores, batch.digits)
    }
}

impl<B: AutodiffBackend> TrainStep for Net<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Net<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.classify(batch)
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), DigitsError> {
    let [train, test] = data::read()?;
    let mut policy = args.policy.policy()?.unwrap_or_else(OffloadPolicy::nothing);
    if let Some(bytes) = args.optimizer_state {
        policy = policy.with_optimizer_state(bytes);
    }
    let device = Default::default();
    B::configure(&device, policy.clone())?;
    Autodiff::<B>::seed(&device, args.seed);
    let model = Net::<Autodiff<B>>::new(&device);
    let (model, report) = place(model, "", &policy).map_err(OffloadError::from)?;
    println!("{report}");

    let batch = args.batch as usize;
    let steps = args.epochs as usize * train.len().div_ceil(batch);
    let tests = test.len();
    let loader = |size| DataLoaderBuilder::new(Batches).batch_size(size);
    let train = loader(batch)
        .shuffle(args.seed)
        .build(InMemDataset::new(train));
    let test_at_once = DataLoaderBuilder::new(Batches).batch_size(tests);
    let test_at_once = test_at_once.build(InMemDataset::new(test.clone()));
    let test = DataLoaderBuilder::new(Batches)
        .batch_size(batch)
        .build(InMemDataset::new(test));
    let folder = tempfile::tempdir()?;
    let training = SupervisedTraining::new(folder.path(), train, test)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .metric_valid_numeric(AccuracyMetric::new())
        .with_application_logger(None)
        .renderer(Bar::new())
        .num_epochs(args.epochs as usize);
    let scheduler = CosineAnnealingLrSchedulerConfig::new(2e-3, steps)
        .init()
        .expect("the rate is between 0 and 1, and there are steps");
    let optimizer = AdamConfig::new().init().offloaded_for_learner();
    let model = training
        .launch(Learner::new(model, optimizer, scheduler))
        .model;

    let mut right = 0;
    for batch in test_at_once.iter() {
        let output = model.classify(batch);
        let guesses = output.output.argmax(1).flatten::<1>(0, 1);
        let found = guesses.equal(output.targets).int().sum();
        right += found.into_data().iter::<u64>().sum::<u64>();
    }
    println!("\n{}", B::report(&device));
    println!(
        "{right} of {tests} digits that it had not seen are right: {:.4}",
        right as f64 / tests as f64
    );
    Ok(())
}
