//! Training with parameters, and what the optimizer keeps for them, in host memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::{
    backend::{Autodiff, autodiff::checkpoint::strategy::BalancedCheckpointing},
    grad_clipping::GradientClippingConfig,
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsAccumulator, GradientsParams,
        LBFGSConfig, MuonConfig, Optimizer, RmsPropConfig, SgdConfig, SimpleOptimizer,
        adaptor::OptimizerAdaptor, momentum::MomentumConfig,
    },
    record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder},
    tensor::{
        Int, Tensor, TensorData,
        activation::relu,
        backend::{AutodiffBackend, Backend},
    },
};
use burn_flex::Flex;
use burn_offload::{
    ByteSize, OffloadOptimizer, OffloadPolicy, Offloaded, OffloadedOptimizer, Reason, Report,
    keep_places, optimizer_state_scope, place,
};

type B = Offloaded<Flex>;
type AB = Autodiff<B>;
type Bare = Autodiff<Flex>;

/// A device's policy is the process's, so one test at a time sets it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    configure(OffloadPolicy::nothing());
    assert_eq!(report().parameters, []);
    alone
}

fn configure(policy: OffloadPolicy) {
    B::configure(&Default::default(), policy).unwrap();
}

fn report() -> Report {
    B::report(&Default::default())
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    embedding: Embedding<B>,
    up: Linear<B>,
    down: Linear<B>,
}

const EMBEDDING: u64 = 16 * 8 * 4;
const UP: u64 = 8 * 24 * 4;
const BIAS: u64 = 24 * 4;
const DOWN: u64 = 24 * 4 * 4;
const WEIGHTS: u64 = EMBEDDING + UP + BIAS + DOWN;

impl<B: Backend> Net<B> {
    fn new(bias: bool) -> Self {
        let device = Default::default();
        let net = Self {
            embedding: EmbeddingConfig::new(16, 8).init(&device),
            up: LinearConfig::new(8, 24).with_bias(bias).init(&device),
            down: LinearConfig::new(24, 4).with_bias(false).init(&device),
        };
        // Parameters are made when they are first used, and each clone makes its own.
        net.weights();
        net
    }

    fn loss(&self, step: usize) -> Tensor<B, 1> {
        let device = self.embedding.weight.device();
        let tokens: Vec<i32> = (0..6)
            .map(|at| ((step * 5 + at * at) % 16) as i32)
            .collect();
        let tokens = Tensor::<B, 1, Int>::from_data(tokens.as_slice(), &device).reshape([2, 3]);
        let hidden = relu(self.up.forward(self.embedding.forward(tokens)));
        let target = Tensor::<B, 1>::from_floats([1.0, -1.0, 0.5, 0.0], &device);
        let wrong = self.down.forward(hidden) - target.reshape([1, 1, 4]);
        wrong.powi_scalar(2).mean()
    }

    /// The parameters' bytes.
    fn weights(&self) -> Vec<TensorData> {
        struct Weights(Vec<TensorData>);
        impl<B: Backend> ModuleVisitor<B> for Weights {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                self.0.push(param.val().into_data());
            }
        }
        let mut weights = Weights(Vec::new());
        self.visit(&mut weights);
        weights.0
    }

    fn save(self) -> Vec<u8> {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        recorder.record(self.into_record(), ()).unwrap()
    }

    fn load(self, saved: &[u8]) -> Self {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let record = recorder.load(saved.to_vec(), &self.embedding.weight.lazy_device());
        self.load_record(record.unwrap())
    }
}

/// Steps from one to another, and what the losses were.
fn train<B: AutodiffBackend, O: Optimizer<Net<B>, B>>(
    mut net: Net<B>,
    optimizer: &mut O,
    steps: std::ops::Range<usize>,
    mut each: impl FnMut(&Net<B>),
) -> (Net<B>, Vec<TensorData>) {
    let mut losses = Vec::new();
    for step in steps {
        let loss = net.loss(step);
        losses.push(loss.clone().into_data());
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.05, net, gradients);
        each(&net);
    }
    (net, losses)
}

fn policies() -> Vec<OffloadPolicy> {
    let all = OffloadPolicy::host_budget(ByteSize::mib(1));
    vec![
        OffloadPolicy::nothing(),
        OffloadPolicy::everything(),
        all.clone(),
        all.clone().with_optimizer_state(ByteSize::mib(1)),
        all.with_optimizer_state(ByteSize::b(1000)),
        OffloadPolicy::host_budget(ByteSize::b(EMBEDDING + BIAS))
            .with_optimizer_state(ByteSize::mib(1)),
        OffloadPolicy::device_budget(ByteSize::b(UP + BIAS)),
    ]
}

/// The same losses and weights with and without offloading, and everything stays where it was placed.
fn same<P: Optimizer<Net<Bare>, Bare>, O: Optimizer<Net<AB>, AB>>(
    bias: bool,
    bare: impl Fn() -> P,
    offloaded: impl Fn() -> O,
) {
    const STEPS: usize = 200;
    let _alone = alone();
    let start = Net::<Bare>::new(bias);
    let saved = start.clone().save();
    let (trained, expected) = train(start, &mut bare(), 0..STEPS, |_| ());
    let expected_weights = trained.weights();
    let (first, last) = (&expected[0], &expected[STEPS - 1]);
    assert_ne!(first, last, "nothing was learned");

    for policy in policies() {
        configure(policy.clone());
        let net = Net::<AB>::new(bias).load(&saved);
        let before = report();
        let pointers = |net: &Net<AB>| -> Vec<_> {
            let weights = net.valid().weights();
            weights.iter().map(|data| data.bytes.as_ptr()).collect()
        };
        let at = pointers(&net);
        let (net, losses) = train(net, &mut offloaded(), 0..STEPS, |net| {
            let now = report();
            let weights = |report: &Report| {
                let mut lines = report.parameters.clone();
                lines.retain(|line| line.role == burn_offload::host::Role::Parameter);
                lines
            };
            if policy != OffloadPolicy::everything() {
                assert_eq!(weights(&now), weights(&before), "{policy:?}");
                assert_eq!(now.displaced.parameters, before.displaced.parameters);
                let host = before.offloaded_bytes();
                assert_eq!(B::host_bytes_charged(&Default::default()), host);
                if now.resident_bytes() == 0 {
                    assert_eq!(pointers(net), at, "the same host memory");
                }
            }
            let most = policy.optimizer_state.map_or(0, |size| size.as_u64());
            assert!(now.offloaded_state_bytes() <= most);
        });
        assert!(losses == expected, "losses, {policy:?}");
        assert!(net.weights() == expected_weights, "weights, {policy:?}");
        drop(net);
        configure(OffloadPolicy::nothing());
        assert_eq!(report().parameters, [], "{policy:?}");
    }
}

macro_rules! same {
    ($($name:ident: $config:expr, bias: $bias:literal;)*) => {$(
        #[test]
        fn $name() {
            same($bias, || $config.init(), || $config.init().offloaded());
        }
    )*};
}

same! {
    sgd_gives_the_same: SgdConfig::new(), bias: true;
    sgd_with_momentum_gives_the_same:
        SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true))), bias: true;
    adam_gives_the_same: AdamConfig::new(), bias: true;
    adam_with_amsgrad_gives_the_same: AdamConfig::new().with_amsgrad(true), bias: true;
    adamw_gives_the_same: AdamWConfig::new(), bias: true;
    adamw_with_clipped_norms_gives_the_same:
        AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(0.1))), bias: true;
    sgd_with_clipped_values_gives_the_same:
        SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Value(0.01))), bias: true;
    rmsprop_gives_the_same: RmsPropConfig::new().with_centered(true).with_momentum(0.5), bias: true;
    adagrad_gives_the_same: AdaGradConfig::new(), bias: true;
    adan_gives_the_same: AdanConfig::new(), bias: true;
    muon_gives_the_same: MuonConfig::new(), bias: false;
}

/// An optimizer of one's own, which keeps the weight of before, and an average that is no weight's clone.
#[derive(Clone)]
struct Own;

#[derive(Record, Clone)]
struct OwnState<B: Backend, const D: usize> {
    before: Tensor<B, D>,
    average: Tensor<B, D>,
}

impl<B: Backend> SimpleOptimizer<B> for Own {
    type State<const D: usize> = OwnState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<OwnState<B, D>>,
    ) -> (Tensor<B, D>, Option<OwnState<B, D>>) {
        let (pull, average) = match state {
            Some(OwnState { before, average }) => (
                tensor.clone() - before,
                average.mul_scalar(0.9) + grad.mul_scalar(0.1),
            ),
            None => (tensor.zeros_like(), grad),
        };
        let new = tensor.clone() - average.clone().mul_scalar(lr) + pull.mul_scalar(0.5);
        let state = OwnState {
            before: tensor,
            average,
        };
        (new, Some(state))
    }

    fn to_device<const D: usize>(state: OwnState<B, D>, device: &B::Device) -> OwnState<B, D> {
        OwnState {
            before: state.before.to_device(device),
            average: state.average.to_device(device),
        }
    }
}

#[test]
fn an_optimizer_of_ones_own_may_keep_the_weights_themselves() {
    let _alone = alone();
    let start = Net::<Bare>::new(true);
    let saved = start.clone().save();
    let mut optimizer = OptimizerAdaptor::from(Own);
    let (trained, expected) = train(start, &mut optimizer, 0..20, |_| ());
    for policy in policies() {
        configure(policy.clone());
        let net = Net::<AB>::new(true).load(&saved);
        let mut optimizer = OptimizerAdaptor::from(OffloadedOptimizer::from(Own));
        let (net, losses) = train(net, &mut optimizer, 0..20, |_| ());
        assert!(losses == expected, "losses, {policy:?}");
        assert!(net.weights() == trained.weights(), "weights, {policy:?}");
    }
    configure(OffloadPolicy::nothing());
}

#[test]
fn what_is_not_offloaded_any_more_is_told() {
    let _alone = alone();
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let before = report().displaced;
    let net = Net::<AB>::new(true);
    let (net, _) = train(net, &mut AdamConfig::new().init(), 0..1, |_| ());
    let now = report();
    assert_eq!(now.displaced.parameters - before.parameters, 4);
    assert_eq!(now.displaced.bytes - before.bytes, WEIGHTS);
    assert!(now.to_string().contains("lost their place in host memory"));
    assert_eq!(now.offloaded_bytes(), 0);
    // Placed again, and kept from then on.
    let (net, report) = place(net, "", &OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    assert_eq!(report.offloaded_bytes(), WEIGHTS);
    let (_net, _) = train(net, &mut AdamConfig::new().init().offloaded(), 0..2, |_| {
        assert_eq!(B::report(&Default::default()).displaced, now.displaced);
    });
}

#[test]
fn a_clone_keeps_the_weights_it_had() {
    let _alone = alone();
    configure(OffloadPolicy::host_budget(ByteSize::b(3 * WEIGHTS)));
    let mut optimizer = AdamWConfig::new().init().offloaded();
    let (mut net, _) = train(Net::<AB>::new(true), &mut optimizer, 0..2, |_| ());
    let (clone, valid) = (net.clone(), net.valid());
    let then = net.weights();
    (net, _) = train(net, &mut optimizer, 2..4, |_| ());
    assert_ne!(net.weights(), then);
    assert_eq!(clone.weights(), then);
    assert_eq!(valid.weights(), then);
    assert_eq!(report().offloaded_bytes(), 2 * WEIGHTS);
    drop((clone, valid));
    assert_eq!(report().offloaded_bytes(), WEIGHTS);
    // The data shares the host memory.
    drop((net, then));

    // Where there is no room for both the new ones stay on the device, and the report says why.
    configure(OffloadPolicy::host_budget(ByteSize::b(WEIGHTS)));
    let tight = OffloadPolicy::host_budget(ByteSize::b(WEIGHTS));
    let (net, _) = place(Net::<AB>::new(true), "net", &tight).unwrap();
    let clone = net.clone();
    let (net, _) = train(net, &mut optimizer, 0..1, |_| ());
    assert_eq!(report().offloaded_bytes(), WEIGHTS);
    assert_eq!(report().resident_bytes(), WEIGHTS);
    let left = Reason::OverHostBudget { left: 0 };
    let lines = report().parameters;
    assert_eq!(
        lines.iter().filter(|l| l.decision.reason == left).count(),
        4
    );
    assert_eq!(
        lines
            .iter()
            .filter(|l| l.name.as_deref() == Some("net.up.weight"))
            .count(),
        2
    );
    drop(clone);
    // They find their way back when there is.
    let (_net, report) = place(net, "net", &tight).unwrap();
    assert_eq!(report.offloaded_bytes(), WEIGHTS);
}

#[test]
fn state_goes_to_the_host_up_to_its_budget_and_is_named() {
    let _alone = alone();
    let policy = OffloadPolicy::host_budget(ByteSize::mib(1))
        .with_optimizer_state(ByteSize::b(WEIGHTS + EMBEDDING));
    configure(policy.clone());
    let (net, _) = place(Net::<AB>::new(true), "net", &policy).unwrap();
    let mut optimizer = AdamWConfig::new().init().offloaded();
    let (net, _) = train(net, &mut optimizer, 0..3, |_| {
        let now = report();
        assert!(now.offloaded_state_bytes() <= WEIGHTS + EMBEDDING);
        assert_eq!(
            now.offloaded_state_bytes() + now.resident_state_bytes(),
            2 * WEIGHTS
        );
    });
    let now = report();
    let line = |name: &str| {
        let found = now
            .parameters
            .iter()
            .find(|l| l.name.as_deref() == Some(name));
        found.unwrap_or_else(|| panic!("{name} in {now}")).clone()
    };
    let first = line("net.embedding.weight (optimizer state 0)");
    assert_eq!(first.decision.reason, Reason::WithinStateBudget);
    assert!(now.to_string().contains("optimizer state: "));
    assert!(
        now.parameters
            .iter()
            .any(|l| matches!(l.decision.reason, Reason::OverStateBudget { .. }))
    );
    drop(optimizer);
    assert_eq!(report().offloaded_state_bytes(), 0);
    drop(net);
}

#[test]
fn a_run_goes_on_elsewhere_as_it_would_have() {
    let _alone = alone();
    let start = Net::<Bare>::new(true);
    let saved = start.clone().save();
    let (trained, losses) = train(start, &mut AdamWConfig::new().init(), 0..20, |_| ());

    let all = OffloadPolicy::host_budget(ByteSize::mib(1)).with_optimizer_state(ByteSize::mib(1));
    let half =
        OffloadPolicy::host_budget(ByteSize::b(EMBEDDING)).with_optimizer_state(ByteSize::b(UP));
    for (first, second) in [
        (all.clone(), OffloadPolicy::nothing()),
        (OffloadPolicy::nothing(), all.clone()),
        (all, half),
    ] {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        configure(first);
        let mut optimizer = AdamWConfig::new().init().offloaded();
        let (net, head) = train(
            Net::<AB>::new(true).load(&saved),
            &mut optimizer,
            0..10,
            |_| (),
        );
        let state = Recorder::<AB>::record(&recorder, optimizer.to_record(), ()).unwrap();
        let middle = net.save();
        drop(optimizer);

        configure(second.clone());
        let optimizer = AdamWConfig::new().init().offloaded();
        let load = || Recorder::<AB>::load(&recorder, state, &Default::default()).unwrap();
        let state = optimizer_state_scope(load);
        let most = second.optimizer_state.map_or(0, |size| size.as_u64());
        let placed = report().offloaded_state_bytes();
        assert!(
            placed <= most && (placed > 0) == (most > 0),
            "{placed} of {most}"
        );
        assert_eq!(report().offloaded_bytes() + report().resident_bytes(), 0);
        let mut optimizer = optimizer.load_record(state);
        let net = Net::<AB>::new(true).load(&middle);
        let (net, tail) = train(net, &mut optimizer, 10..20, |_| ());
        assert!([head, tail].concat() == losses);
        assert!(net.weights() == trained.weights());
        assert!(report().offloaded_state_bytes() <= most);
        assert_eq!(report().offloaded_state_bytes() > 0, most > 0);
    }
    configure(OffloadPolicy::nothing());
}

#[test]
fn an_optimizer_with_state_can_be_offloaded_later() {
    let _alone = alone();
    let start = Net::<Bare>::new(true);
    let saved = start.clone().save();
    let (trained, _) = train(start, &mut AdamConfig::new().init(), 0..10, |_| ());
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let mut optimizer = AdamConfig::new().init();
    let (net, _) = train(
        Net::<AB>::new(true).load(&saved),
        &mut optimizer,
        0..5,
        |_| (),
    );
    let (net, _) = train(net, &mut optimizer.offloaded(), 5..10, |_| ());
    assert!(net.weights() == trained.weights());
}

#[test]
fn accumulated_gradients_and_checkpointing_give_the_same() {
    fn accumulate<B: AutodiffBackend, O: Optimizer<Net<B>, B>>(
        mut net: Net<B>,
        optimizer: &mut O,
    ) -> Net<B> {
        let mut accumulator = GradientsAccumulator::new();
        for step in 0..24 {
            let loss = net.loss(step);
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            accumulator.accumulate(&net, gradients);
            if step % 4 == 3 {
                net = optimizer.step(0.05, net, accumulator.grads());
            }
        }
        net
    }

    let _alone = alone();
    let start = Net::<Bare>::new(true);
    let saved = start.clone().save();
    let expected = accumulate(start, &mut AdamConfig::new().init()).weights();
    let policy =
        OffloadPolicy::host_budget(ByteSize::mib(1)).with_optimizer_state(ByteSize::mib(1));
    configure(policy);
    let net = Net::<AB>::new(true).load(&saved);
    let net = accumulate(net, &mut AdamConfig::new().init().offloaded());
    assert_eq!(net.weights(), expected);
    assert_eq!(report().resident_bytes(), 0);
    drop(net);
    type Checkpointed = Autodiff<B, BalancedCheckpointing>;
    let net = Net::<Checkpointed>::new(true).load(&saved);
    let net = accumulate(net, &mut AdamConfig::new().init().offloaded());
    assert_eq!(net.weights(), expected);
    assert_eq!(report().resident_bytes(), 0);
}

#[test]
fn frozen_weights_stay_and_take_no_gradients() {
    let _alone = alone();
    configure(OffloadPolicy::host_budget(ByteSize::mib(1)));
    let mut net = Net::<AB>::new(true);
    net.embedding = net.embedding.no_grad();
    net.up = net.up.no_grad();
    let at = |net: &Net<AB>| net.valid().up.weight.val().into_data().bytes.as_ptr();
    let (then, place) = (net.weights(), at(&net));
    let gradients = GradientsParams::from_grads(net.loss(0).backward(), &net);
    assert_eq!(gradients.len(), 1);
    let (net, _) = train(net, &mut AdamConfig::new().init().offloaded(), 0..3, |_| ());
    let now = net.weights();
    assert_eq!(now[..3], then[..3]);
    assert_ne!(now[3], then[3]);
    assert_eq!(at(&net), place);
    assert_eq!(report().offloaded_bytes(), WEIGHTS);
}

#[test]
fn what_replaces_parameters_at_once_keeps_their_places() {
    let _alone = alone();
    let start = Net::<Bare>::new(true);
    let saved = start.clone().save();
    let closure = |net: Net<Bare>| {
        let loss = net.loss(0);
        let value = loss.clone().into_scalar() as f64;
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        (value, gradients)
    };
    let mut optimizer = LBFGSConfig::new().init::<Bare>();
    let (expected, loss) = optimizer.step(0.5, start, closure);

    for policy in policies() {
        configure(policy.clone());
        let closure = |net: Net<AB>| {
            let loss = net.loss(0);
            let value = loss.clone().into_scalar() as f64;
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            (value, gradients)
        };
        let net = Net::<AB>::new(true).load(&saved);
        let before = report();
        let mut optimizer = LBFGSConfig::new().init::<AB>();
        let (net, mine) = keep_places(net, |net| optimizer.step(0.5, net, closure));
        assert_eq!(mine, loss, "{policy:?}");
        assert!(net.weights() == expected.weights(), "weights, {policy:?}");
        if policy != OffloadPolicy::everything() {
            assert_eq!(report().parameters, before.parameters, "{policy:?}");
        }
        assert!(net.up.weight.is_require_grad());
    }
    configure(OffloadPolicy::nothing());
}
