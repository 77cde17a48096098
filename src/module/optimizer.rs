use std::{collections::VecDeque, fmt};

use burn::{
    module::AutodiffModule,
    optim::{
        Optimizer, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
        record::{AdaptorRecord, AdaptorRecordV1},
    },
    tensor::{Tensor, TensorPrimitive, backend::AutodiffBackend},
};

use crate::{
    backend::{Offloaded, Pass, Seat},
    target::OffloadTarget,
};

/// An optimizer that leaves parameters where they were placed.
///
/// After each parameter's update the new value is put where the parameter was, in the same host memory
/// where nobody else has that (a clone of the model keeps the old value). At no time is more than one
/// parameter's new value on the device beside what is resident. With
/// [`optimizer_state`](crate::OffloadPolicy::optimizer_state) in the policy, what the optimizer keeps for
/// the parameter, as moments, goes to host memory too.
///
/// It gives the results of the optimizer it wraps, bit for bit. Made by
/// [`offloaded`](OffloadOptimizer::offloaded), or by `from`, for optimizers of your own: the state's
/// tensors are found through their [`SimpleOptimizer::to_device`].
///
/// ```
/// use burn::{
///     backend::Autodiff,
///     nn::LinearConfig,
///     optim::{AdamWConfig, GradientsParams, Optimizer},
///     tensor::Tensor,
/// };
/// use burn_flex::Flex;
/// use burn_offload::{ByteSize, OffloadOptimizer, OffloadPolicy, Offloaded};
///
/// type B = Autodiff<Offloaded<Flex>>;
/// let device = Default::default();
/// let policy = OffloadPolicy::host_budget(ByteSize::mib(1)).with_optimizer_state(ByteSize::mib(2));
/// Offloaded::<Flex>::configure(&device, policy)?;
/// let mut model = LinearConfig::new(64, 64).init::<B>(&device);
/// let mut optimizer = AdamWConfig::new().init().offloaded();
///
/// let loss = model.forward(Tensor::<B, 2>::ones([1, 64], &device)).sum();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
///
/// let report = Offloaded::<Flex>::report(&device);
/// assert_eq!(report.resident_bytes(), 0);
/// assert_eq!(report.offloaded_state_bytes(), 2 * report.offloaded_bytes());
/// # drop(model);
/// # Ok::<(), burn_offload::OffloadError>(())
/// ```
#[derive(Clone)]
pub struct OffloadedOptimizer<O> {
    optimizer: O,
    /// How many clones of the module the one who calls `step` has, and drops after it.
    dropped: usize,
}

impl<O> OffloadedOptimizer<O> {
    /// Has the step write over parameters of which so many clones are held elsewhere: for training loops
    /// that keep the model while a clone of it is stepped, and drop it after. What these clones have changes
    /// with it. Where there are more clones, they keep their values.
    #[must_use]
    pub fn with_dropped_clones(mut self, clones: usize) -> Self {
        self.dropped = clones;
        self
    }

    /// The optimizer in it.
    pub fn into_inner(self) -> O {
        self.optimizer
    }
}

impl<O> From<O> for OffloadedOptimizer<O> {
    fn from(optimizer: O) -> Self {
        Self {
            optimizer,
            dropped: 0,
        }
    }
}

impl<O: fmt::Debug> fmt::Debug for OffloadedOptimizer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OffloadedOptimizer")
            .field(&self.optimizer)
            .finish()
    }
}

/// Makes Burn's optimizers leave parameters where they were placed.
pub trait OffloadOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
    OffloadedOptimizer<O>: SimpleOptimizer<B::InnerBackend>,
{
    /// The optimizer, which leaves parameters where they were placed; with its gradient clipping, and
    /// with its state.
    fn offloaded(self) -> OptimizerAdaptor<OffloadedOptimizer<O>, M, B>;

    /// The same for burn-train's `Learner`, which steps a clone of its model and then drops the model: see
    /// [`with_dropped_clones`](OffloadedOptimizer::with_dropped_clones). With [`offloaded`](Self::offloaded)
    /// it would need host memory for both.
    fn offloaded_for_learner(self) -> OptimizerAdaptor<OffloadedOptimizer<O>, M, B>;
}

impl<T, O, M, B> OffloadOptimizer<O, M, B> for OptimizerAdaptor<O, M, B>
where
    T: OffloadTarget,
    O: SimpleOptimizer<Offloaded<T>>,
    M: AutodiffModule<B>,
    B: AutodiffBackend<InnerBackend = Offloaded<T>>,
{
    fn offloaded(self) -> OptimizerAdaptor<OffloadedOptimizer<O>, M, B> {
        let optimizer = OffloadedOptimizer::from(self.optim().clone());
        with_optimizer(self, optimizer)
    }

    fn offloaded_for_learner(self) -> OptimizerAdaptor<OffloadedOptimizer<O>, M, B> {
        let optimizer = OffloadedOptimizer::from(self.optim().clone()).with_dropped_clones(1);
        with_optimizer(self, optimizer)
    }
}

/// The adaptor with `optimizer` in place of the one that this wraps.
fn with_optimizer<T, O, M, B>(
    adaptor: OptimizerAdaptor<O, M, B>,
    optimizer: OffloadedOptimizer<O>,
) -> OptimizerAdaptor<OffloadedOptimizer<O>, M, B>
where
    T: OffloadTarget,
    O: SimpleOptimizer<Offloaded<T>>,
    M: AutodiffModule<B>,
    B: AutodiffBackend<InnerBackend = Offloaded<T>>,
{
    let mut offloaded = OptimizerAdaptor::from(optimizer);
    if let Some(clipping) = adaptor.grad_clipping() {
        offloaded = offloaded.with_grad_clipping(clipping.clone());
    }
    let states = adaptor.to_record().into_iter();
    offloaded.load_record(states.map(|(id, state)| (id, same_state(state))).collect())
}

fn same_state<T, O, B>(record: AdaptorRecord<O, B>) -> AdaptorRecord<OffloadedOptimizer<O>, B>
where
    T: OffloadTarget,
    O: SimpleOptimizer<Offloaded<T>>,
    B: AutodiffBackend<InnerBackend = Offloaded<T>>,
{
    let AdaptorRecord::V1(record) = record;
    AdaptorRecord::V1(match record {
        AdaptorRecordV1::Rank0(state) => AdaptorRecordV1::Rank0(state),
        AdaptorRecordV1::Rank1(state) => AdaptorRecordV1::Rank1(state),
        AdaptorRecordV1::Rank2(state) => AdaptorRecordV1::Rank2(state),
        AdaptorRecordV1::Rank3(state) => AdaptorRecordV1::Rank3(state),
        AdaptorRecordV1::Rank4(state) => AdaptorRecordV1::Rank4(state),
        AdaptorRecordV1::Rank5(state) => AdaptorRecordV1::Rank5(state),
        AdaptorRecordV1::Rank6(state) => AdaptorRecordV1::Rank6(state),
        AdaptorRecordV1::Rank7(state) => AdaptorRecordV1::Rank7(state),
        AdaptorRecordV1::Rank8(state) => AdaptorRecordV1::Rank8(state),
    })
}

impl<B: OffloadTarget, O: SimpleOptimizer<Offloaded<B>>> SimpleOptimizer<Offloaded<B>>
    for OffloadedOptimizer<O>
{
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<Offloaded<B>, D>,
        grad: Tensor<Offloaded<B>, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<Offloaded<B>, D>, Option<Self::State<D>>) {
        let device = tensor.device();
        let (tensor, seat) = match tensor.into_primitive() {
            TensorPrimitive::Float(tensor) => {
                let seat = Seat::of(&tensor, 1, self.dropped);
                (TensorPrimitive::Float(tensor), Some(seat))
            }
            quantized @ TensorPrimitive::QFloat(_) => (quantized, None),
        };
        let tensor = Tensor::from_primitive(tensor);
        let place = seat.as_ref().and_then(|seat| seat.state_place(&device));
        let mut seats = VecDeque::new();
        if place.is_some()
            && let Some(state) = &state
        {
            let pass = Pass::<B>::Rise(VecDeque::new());
            let rise = || drop(O::to_device(state.clone(), &device));
            if let ((), Some(Pass::Rise(risen))) = pass.run(rise) {
                seats = risen;
            }
        }

        let (tensor, state) = self.optimizer.step(lr, tensor, grad, state);

        let tensor = match (tensor.into_primitive(), seat) {
            (TensorPrimitive::Float(tensor), Some(seat)) => {
                TensorPrimitive::Float(seat.seat(tensor))
            }
            (tensor, _) => tensor,
        };
        let place = place.filter(|place| {
            place.policy.optimizer_state.is_some() || seats.iter().any(Seat::is_offloaded)
        });
        let state = match (state, place) {
            (Some(state), Some(place)) => {
                let pass = Pass::Sit {
                    seats,
                    place,
                    seated: 0,
                };
                Some(pass.run(|| O::to_device(state, &device)).0)
            }
            (state, _) => state,
        };
        (Tensor::from_primitive(tensor), state)
    }

    fn to_device<const D: usize>(
        state: Self::State<D>,
        device: &<Offloaded<B> as burn_backend::BackendTypes>::Device,
    ) -> Self::State<D> {
        O::to_device(state, device)
    }
}
