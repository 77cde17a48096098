//! burn-train's learner, with weights and moments in host memory.

use std::sync::{Arc, Mutex, PoisonError};

use burn::{
    backend::Autodiff,
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    module::{AutodiffModule, Module},
    nn::{Linear, LinearConfig},
    optim::{AdamWConfig, Optimizer, lr_scheduler::constant::ConstantLr},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{
        Tensor, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadOptimizer, OffloadPolicy, Offloaded, Report};
use burn_train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
    metric::LossMetric,
};

type B = Offloaded<Flex>;
type AB = Autodiff<B>;
type Bare = Autodiff<Flex>;

const UP: u64 = 4 * 32 * 4;
const DOWN: u64 = 32 * 2 * 4;
const WEIGHTS: u64 = UP + DOWN;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new() -> Self {
        let device = Default::default();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).with_bias(false);
        let net = Self {
            up: linear(4, 32).init(&device),
            down: linear(32, 2).init(&device),
        };
        net.weights();
        net
    }

    fn forward(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let output = self.down.forward(self.up.forward(batch.inputs).tanh());
        let loss = (output.clone() - batch.targets.clone())
            .powi_scalar(2)
            .mean();
        RegressionOutput::new(loss, output, batch.targets)
    }

    fn weights(&self) -> [TensorData; 2] {
        [&self.up, &self.down].map(|layer| layer.weight.val().into_data())
    }

    /// Where they are in memory, if they are in host memory.
    fn pointers(&self) -> [*const u8; 2] {
        self.weights().map(|data| data.bytes.as_ptr())
    }
}

impl<B: AutodiffBackend> TrainStep for Net<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.forward(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Net<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.forward(batch)
    }
}

#[derive(Clone, Debug)]
struct Batch<B: Backend> {
    inputs: Tensor<B, 2>,
    targets: Tensor<B, 2>,
}

#[derive(Clone)]
struct Batches;

impl<B: Backend> Batcher<B, u32, Batch<B>> for Batches {
    fn batch(&self, items: Vec<u32>, device: &B::Device) -> Batch<B> {
        let rows = items.len();
        let wave = |at: u32, by: f32| (at as f32 * by).sin();
        let of = |columns: u32, by: f32| -> TensorData {
            let values = items
                .iter()
                .flat_map(|item| (0..columns).map(move |column| wave(item * 7 + column * 3, by)));
            TensorData::new(values.collect::<Vec<_>>(), [rows, columns as usize])
        };
        Batch {
            inputs: Tensor::from_data(of(4, 0.37), device),
            targets: Tensor::from_data(of(2, 0.11), device),
        }
    }
}

fn batches<B: Backend>(items: u32) -> Arc<dyn DataLoader<B, Batch<B>>> {
    DataLoaderBuilder::new(Batches)
        .batch_size(8)
        .build(InMemDataset::new((0..items).collect()))
}

/// Two epochs with checkpoints, as a user has them.
fn learn<B: AutodiffBackend, O: Optimizer<Net<B>, B> + 'static>(
    net: Net<B>,
    optimizer: O,
) -> Net<B::InnerBackend> {
    let folder = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(folder.path(), batches(64), batches(16))
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_file_checkpointer(burn::record::CompactRecorder::new())
        .with_application_logger(None)
        .num_epochs(2);
    let learner = Learner::new(net, optimizer, ConstantLr::new(0.01));
    let learned = training.launch(learner).model;
    assert!(folder.path().join("checkpoint/model-2.mpk").exists());
    learned
}

fn report() -> Report {
    B::report(&Default::default())
}

fn configure(policy: OffloadPolicy) {
    B::configure(&Default::default(), policy).unwrap();
}

/// A device's policy is the process's, so one test at a time sets it.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_learner_gives_the_same_and_leaves_parameters_where_they_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let start = Net::<Bare>::new();
    let saved: Vec<u8> = recorder.record(start.clone().into_record(), ()).unwrap();
    let expected = learn(start, AdamWConfig::new().init()).weights();

    let all = OffloadPolicy::host_budget(ByteSize::b(WEIGHTS));
    for policy in [
        OffloadPolicy::nothing(),
        all.clone(),
        all.with_optimizer_state(ByteSize::b(2 * WEIGHTS)),
        OffloadPolicy::host_budget(ByteSize::b(UP)).with_optimizer_state(ByteSize::b(UP)),
    ] {
        configure(policy.clone());
        let net = Net::<AB>::new();
        let device = Default::default();
        let record = recorder.load(saved.clone(), &device).unwrap();
        let net = net.load_record(record);
        let before = report();
        let net = learn(net, AdamWConfig::new().init().offloaded_for_learner());
        assert!(net.weights() == expected, "{policy:?}");
        let now = report();
        assert!(now.offloaded_bytes() <= before.offloaded_bytes());
        assert_eq!(now.displaced.parameters, 0);
    }
}

#[test]
fn the_learners_own_clone_takes_no_host_memory_and_others_keep_their_values() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    configure(OffloadPolicy::host_budget(ByteSize::b(WEIGHTS)));
    let net = Net::<AB>::new();
    let at = net.valid().pointers();
    let optimizer = AdamWConfig::new().init().offloaded_for_learner();
    let mut learner = Learner::new(net, optimizer, ConstantLr::new(0.01));
    let steps = |learner: &mut Learner<_>, count: usize| {
        let batches = batches::<AB>(64);
        for batch in batches.iter().take(count) {
            learner.lr_step();
            let step = learner.train_step(batch);
            learner.optimizer_step(step.grads);
        }
    };
    steps(&mut learner, 3);
    assert_eq!(
        learner.model().valid().pointers(),
        at,
        "the same host memory"
    );
    assert_eq!(report().offloaded_bytes(), WEIGHTS);

    // A clone of one's own, as a checkpoint that is being written has, is not written over. There is no host
    // memory for both, so the new values wait on the device, and come back when the clone is gone.
    let mine = learner.model();
    let then = mine.weights();
    drop(then.clone());
    let then = then.map(|data| data.to_vec::<f32>().unwrap());
    steps(&mut learner, 2);
    assert_eq!(
        mine.weights().map(|data| data.to_vec::<f32>().unwrap()),
        then
    );
    assert_eq!(
        [report().offloaded_bytes(), report().resident_bytes()],
        [WEIGHTS; 2]
    );
    drop(mine);
    steps(&mut learner, 1);
    assert_eq!(
        [report().offloaded_bytes(), report().resident_bytes()],
        [WEIGHTS, 0]
    );
    assert_ne!(
        learner
            .model()
            .weights()
            .map(|data| data.to_vec::<f32>().unwrap()),
        then
    );
}
