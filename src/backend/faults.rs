//! The system refuses memory, or somebody keeps reading it, at every point of a model's life in turn: results
//! are right all the same, and the books add up.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use burn::{
    backend::Autodiff,
    module::{AutodiffModule, Module},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    optim::{AdamWConfig, GradientsParams, Optimizer},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{Int, Tensor, TensorData, backend::AutodiffBackend, backend::Backend},
};
use burn_flex::{Flex, FlexDevice};

use super::{DeviceState, Offloaded};
use crate::{
    ByteSize, OffloadError, OffloadOptimizer, OffloadPolicy,
    host::{
        BufferId, Charge, HostAllocator, HostBuffer, HostError, HostMemory, MemoryKind,
        PageableAllocator, Role,
    },
    optimizer_state_scope, place,
    target::{Access, HostAccess},
};

type B = Offloaded<Flex>;

/// Refuses one request for memory, or for writing it anew, and counts them.
#[derive(Default)]
struct Faults {
    requests: AtomicUsize,
    refused: AtomicUsize,
    /// Which one is refused; those after it too, if `stays`.
    at: usize,
    stays: bool,
}

impl Faults {
    fn refuses(&self) -> bool {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let refuses = request == self.at || self.stays && request > self.at;
        self.refused
            .fetch_add(usize::from(refuses), Ordering::Relaxed);
        refuses
    }
}

struct Allocator(Arc<Faults>);

struct Memory {
    memory: Box<dyn HostMemory>,
    faults: Arc<Faults>,
}

impl HostAllocator for Allocator {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }

    fn allocate(&self, bytes: usize, charge: Charge) -> Result<Box<dyn HostMemory>, HostError> {
        if self.0.refuses() {
            return Err(HostError {
                bytes,
                kind: self.kind(),
                reason: "a test says so".into(),
                advice: "run another test",
            });
        }
        Ok(Box::new(Memory {
            memory: PageableAllocator.allocate(bytes, charge)?,
            faults: self.0.clone(),
        }))
    }
}

impl HostMemory for Memory {
    fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
    fn kind(&self) -> MemoryKind {
        self.memory.kind()
    }
    fn unread(&self, _: BufferId) -> bool {
        !self.faults.refuses()
    }
    fn rewritten(&self, _: &HostBuffer) {}
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    embedding: Embedding<B>,
    linear: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(16, 8).init(device),
            linear: LinearConfig::new(8, 4).init(device),
        }
    }

    fn forward(&self, step: usize) -> Tensor<B, 3> {
        let device = self.embedding.weight.device();
        let tokens: [i32; 3] = std::array::from_fn(|at| ((step * 5 + at * 3) % 16) as i32);
        let tokens = Tensor::<B, 1, Int>::from_data(tokens, &device).unsqueeze();
        self.linear.forward(self.embedding.forward(tokens))
    }
}

/// A model's life: made from a record, placed, run, trained, saved and loaded, run again. Gives all that can
/// be seen of it.
fn life<B: AutodiffBackend<Device = FlexDevice>, O: Optimizer<Net<B>, B>>(
    saved: &[u8],
    optimizer: impl Fn() -> O,
    place: impl Fn(Net<B>) -> Net<B>,
) -> Vec<TensorData> {
    let device = FlexDevice;
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let load = |bytes: Vec<u8>| {
        let record = Recorder::<B>::load(&recorder, bytes, &device);
        Net::<B>::new(&device).load_record(record.expect("it was just recorded"))
    };
    let mut seen = Vec::new();
    let mut net = place(load(saved.to_vec()));
    seen.push(net.valid().forward(0).into_data());

    let mut trained = optimizer();
    for step in 0..3 {
        // A clone of the second step keeps its values through the third.
        let clone = (step == 1).then(|| net.valid());
        let loss = net.forward(step).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        drop(loss);
        net = trained.step(0.1, net, gradients);
        seen.push(net.valid().forward(step).into_data());
        seen.extend(clone.map(|clone| clone.forward(step).into_data()));
    }

    let state = Recorder::<B>::record(&recorder, trained.to_record(), ());
    let state = state.expect("it is recorded in memory");
    let model = Recorder::<B>::record(&recorder, net.into_record(), ());
    drop(trained);
    let mut net = place(load(model.expect("it is recorded in memory")));
    let record = optimizer_state_scope(|| Recorder::<B>::load(&recorder, state, &device));
    let mut trained = optimizer().load_record(record.expect("it was just recorded"));
    let loss = net.forward(9).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &net);
    net = trained.step(0.1, net, gradients);
    seen.push(net.valid().forward(10).into_data());
    seen
}

#[test]
fn every_refusal_in_turn_leaves_results_right_and_the_books_whole() {
    let device = FlexDevice;
    let start = Net::<Flex>::new(&device);
    start.forward(0);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let saved: Vec<u8> = Recorder::<Flex>::record(&recorder, start.into_record(), ())
        .expect("it is recorded in memory");
    let expected = life::<Autodiff<Flex>, _>(&saved, || AdamWConfig::new().init(), |net| net);

    let policy =
        OffloadPolicy::host_budget(ByteSize::kib(4)).with_optimizer_state(ByteSize::kib(4));
    let run = |at, stays| {
        let faults = Arc::new(Faults {
            at,
            stays,
            ..Faults::default()
        });
        let host = HostAccess {
            allocator: Arc::new(Allocator(faults.clone())),
            access: Access::Staged,
            fallback: None,
        };
        DeviceState::configure(&device, policy.clone(), host);
        let place = |net| match place(net, "net", &policy) {
            Ok((net, _)) => net,
            Err(stopped) => {
                assert!(
                    matches!(&stopped.error, OffloadError::Refused { name, bytes, .. }
                        if name.starts_with("net.") && *bytes > 0),
                    "{stopped}"
                );
                stopped.module
            }
        };
        let optimizer = || AdamWConfig::new().init().offloaded();
        let seen = life::<Autodiff<B>, _>(&saved, optimizer, place);
        assert!(seen == expected, "request {at}, stays: {stays}");
        let state = DeviceState::get(&device).expect("it was configured");
        assert_eq!(state.ledger.records(), [], "request {at}, stays: {stays}");
        assert_eq!(state.ledger.used(), Default::default());
        for role in [Role::Parameter, Role::OptimizerState] {
            assert_eq!(state.ledger.retiring(role), 0);
        }
        (
            faults.requests.load(Ordering::Relaxed),
            faults.refused.load(Ordering::Relaxed),
        )
    };
    let (requests, refused) = run(usize::MAX, false);
    assert_eq!(refused, 0);
    assert!(
        requests > 40,
        "{requests} requests are hardly a model's life"
    );
    for at in 0..requests {
        for stays in [false, true] {
            assert!(run(at, stays).1 > 0, "request {at} was never made");
        }
    }
    DeviceState::configure(&device, OffloadPolicy::nothing(), HostAccess::portable());
}
