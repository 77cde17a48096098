//! `Offloaded<B>`: Burn's backend, over another one.

pub(crate) mod convert;
#[cfg(all(test, feature = "flex"))]
mod faults;
mod ops;
mod scope;
mod seat;
mod slot;
mod state;
mod tensor;

use std::{fmt, marker::PhantomData};

use burn_backend::{
    Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData,
    tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor},
};
use burn_ir::{BackendIr, HandleKind, TensorHandle};

use crate::{
    error::OffloadError,
    host::{HostOptions, Op, StagingOptions, Stats, memory_limit},
    policy::{Budget, ByteSize, OffloadPolicy},
    report::Report,
    target::{Bool, Float, Int, OffloadTarget, Quantized},
};

pub use tensor::OffloadedTensor;

pub(crate) use scope::{Directive, with_directive};
pub(crate) use seat::{Pass, Seat};
pub(crate) use slot::{Order, Placed};
pub(crate) use state::DeviceState;

/// The backend `B`, with part of its parameters in host memory.
///
/// It is used wherever `B` is, as the backend type of a model. Without [`configure`](Self::configure)
/// it does what `B` does.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_flex::Flex;
/// use burn_offload::{OffloadPolicy, Offloaded};
///
/// type B = Offloaded<Flex>;
/// let device = Default::default();
/// B::configure(&device, OffloadPolicy::host_budget("1MiB".parse::<bytesize::ByteSize>()?))?;
/// let linear = burn::nn::LinearConfig::new(64, 64).init::<B>(&device);
/// let output = linear.forward(Tensor::ones([1, 64], &device));
/// assert_eq!(output.dims(), [1, 64]);
/// println!("{}", B::report(&device));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Offloaded<B>(PhantomData<B>);

impl<B: OffloadTarget> Offloaded<B> {
    /// Sets the policy for `device`: from now on the parameters that modules allocate there are
    /// placed by it as they are made. Parameters that exist stay where they are;
    /// [`place`](crate::place) moves them. Can be called again.
    ///
    /// # Errors
    ///
    /// [`OffloadError`] when the policy does not hold together, asks for more host memory than there
    /// is, or the device cannot be used. The policy in force before then stays.
    pub fn configure(device: &B::Device, policy: OffloadPolicy) -> Result<(), OffloadError> {
        policy.validate()?;
        Self::check_budget(&policy)?;
        let options = HostOptions {
            uva: policy.uva,
            pin: policy.pin,
            staging: StagingOptions {
                access: policy.access,
                budget: policy.staging_budget.map(|size| size.as_u64()),
                prefetch: policy.prefetch,
            },
        };
        let host = B::open_host(device, options.with_environment())?;
        if let Some(reason) = &host.fallback {
            tracing::warn!(
                device = ?device,
                "offloaded weights are not read in place but copied to the device when needed, \
                 from {} memory: {reason}",
                host.memory(),
            );
        }
        DeviceState::configure(device, policy, host);
        Ok(())
    }

    /// Host bytes that count against the budget: those of the offloaded parameters, and those of
    /// parameters that are gone but that queued work may still read.
    pub fn host_bytes_charged(device: &B::Device) -> u64 {
        DeviceState::get(device).map_or(0, |state| state.ledger.used().offloaded)
    }

    /// What `device` did to read offloaded parameters, since the process began. All zero where the
    /// wrapped backend does nothing of its own.
    pub fn stats(device: &B::Device) -> Stats {
        B::stats(device)
    }

    pub(crate) fn check_budget(policy: &OffloadPolicy) -> Result<(), OffloadError> {
        match (policy.budget, memory_limit()) {
            (Budget::Host(budget), Some(limit)) if budget.as_u64() > limit => {
                Err(OffloadError::BudgetExceedsMemory {
                    budget,
                    limit: ByteSize::b(limit),
                })
            }
            _ => Ok(()),
        }
    }

    /// What is where on `device`, and why. Empty for a device that was never configured.
    pub fn report(device: &B::Device) -> Report {
        match DeviceState::get(device) {
            Some(state) => Report::of_device(&state),
            None => Report::empty(format!("{device:?}")),
        }
    }
}

/// The error as Burn's calls return it.
pub(crate) fn execution_error(err: OffloadError) -> ExecutionError {
    ExecutionError::WithContext {
        reason: err.to_string(),
    }
}

/// Runs `task` in a parameter scope: tensors made in it on configured devices, by this thread, that are
/// still alive when it ends are parameters, and go where their device's policy says. For code that makes
/// parameters without Burn's initialisers, as stores and recorders do when they load a module. Scopes
/// nest. After a panic nothing is placed.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_flex::Flex;
/// use burn_offload::{OffloadPolicy, Offloaded, parameter_scope};
///
/// type B = Offloaded<Flex>;
/// let device = Default::default();
/// B::configure(&device, OffloadPolicy::host_budget(bytesize::ByteSize::mib(1)))?;
/// let weight = parameter_scope(|| Tensor::<B, 1>::from_floats([1.0, 2.0], &device));
/// assert_eq!(B::report(&device).offloaded_bytes(), 8);
/// # drop(weight);
/// # Ok::<(), burn_offload::OffloadError>(())
/// ```
pub fn parameter_scope<T>(task: impl FnOnce() -> T) -> T {
    scope::run(task).0
}

/// Runs `task` as [`parameter_scope`] does, but what it makes is an optimizer's state: it goes to host memory
/// up to the policy's [`optimizer_state`](OffloadPolicy::optimizer_state). For loading an optimizer's record
/// that the device has no room for.
///
/// ```
/// use burn::{
///     backend::Autodiff,
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams, Optimizer},
///     record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
///     tensor::Tensor,
/// };
/// use burn_flex::Flex;
/// use burn_offload::{ByteSize, OffloadOptimizer, OffloadPolicy, Offloaded, optimizer_state_scope};
///
/// type B = Autodiff<Offloaded<Flex>>;
/// let device = Default::default();
/// let policy = OffloadPolicy::host_budget(ByteSize::mib(1)).with_optimizer_state(ByteSize::mib(2));
/// Offloaded::<Flex>::configure(&device, policy)?;
/// let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
/// # let model = LinearConfig::new(64, 64).with_bias(false).init::<B>(&device);
/// # let mut optimizer = AdamConfig::new().init::<B, Linear<B>>().offloaded();
/// # let loss = model.forward(Tensor::<B, 2>::ones([1, 64], &device)).sum();
/// # let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// # let model = optimizer.step(1e-3, model, gradients);
/// let saved: Vec<u8> = Recorder::<B>::record(&recorder, optimizer.to_record(), ())?;
/// # drop(optimizer);
///
/// let optimizer = AdamConfig::new().init::<B, Linear<B>>().offloaded();
/// let record = optimizer_state_scope(|| Recorder::<B>::load(&recorder, saved, &device))?;
/// let optimizer = optimizer.load_record(record);
/// assert_eq!(Offloaded::<Flex>::report(&device).offloaded_state_bytes(), 2 * 64 * 64 * 4);
/// # drop((model, optimizer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn optimizer_state_scope<T>(task: impl FnOnce() -> T) -> T {
    scope::run_for_state(task)
}

impl<B> Clone for Offloaded<B> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<B> Default for Offloaded<B> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<B> fmt::Debug for Offloaded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Offloaded")
    }
}

impl<B: OffloadTarget> BackendTypes for Offloaded<B> {
    type Device = B::Device;
    type FloatTensorPrimitive = OffloadedTensor<B, Float>;
    type FloatElem = B::FloatElem;
    type IntTensorPrimitive = OffloadedTensor<B, Int>;
    type IntElem = B::IntElem;
    type BoolTensorPrimitive = OffloadedTensor<B, Bool>;
    type BoolElem = B::BoolElem;
    type QuantizedTensorPrimitive = OffloadedTensor<B, Quantized>;
}

impl<B: OffloadTarget> Backend for Offloaded<B> {
    fn ad_enabled(device: &Self::Device) -> bool {
        B::ad_enabled(device)
    }

    /// The parameter scope. What leaves it alive is a parameter, and goes where the policy says.
    fn memory_persistent_allocations<
        Output: Send,
        Input: Send,
        Func: Fn(Input) -> Output + Send,
    >(
        device: &Self::Device,
        input: Input,
        func: Func,
    ) -> Output {
        let Some(state) = DeviceState::get(device) else {
            return B::memory_persistent_allocations(device, input, func);
        };
        let (output, moved) = scope::run(|| B::memory_persistent_allocations(device, input, func));
        // The backend keeps what was allocated in its persistent mode until it is told to clean up.
        if state.has_moved(moved) {
            B::memory_cleanup(device);
        }
        output
    }

    fn memory_cleanup(device: &Self::Device) {
        B::memory_cleanup(device);
    }

    fn name(device: &Self::Device) -> String {
        format!("offloaded<{}>", B::name(device))
    }

    fn seed(device: &Self::Device, seed: u64) {
        B::seed(device, seed);
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        let synced = {
            let _op = Op::enter();
            B::sync(device)
        };
        B::end_of_step(device).map_err(execution_error)?;
        synced
    }

    fn staging<'a, Iter>(data: Iter, device: &Self::Device)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        B::staging(data, device);
    }

    fn supports_dtype(device: &Self::Device, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }

    fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        B::device_count(type_id)
    }
}

macro_rules! handles {
    ($($kind:ident, $tensor:ident, $from:ident, $into:ident;)*) => {
        /// For Burn's router and remote backends.
        impl<B: OffloadTarget> BackendIr for Offloaded<B> {
            type Handle = HandleKind<Self>;
            $(
                fn $from(handle: TensorHandle<Self::Handle>) -> $tensor<Self> {
                    match handle.handle {
                        HandleKind::$kind(tensor) => tensor,
                        other => panic!(
                            "a {} tensor was asked for, but the handle is of a {} tensor",
                            stringify!($kind),
                            other.name(),
                        ),
                    }
                }
                fn $into(tensor: $tensor<Self>) -> Self::Handle {
                    HandleKind::$kind(tensor)
                }
            )*
        }
    };
}

handles! {
    Float, FloatTensor, float_tensor, float_tensor_handle;
    Int, IntTensor, int_tensor, int_tensor_handle;
    Bool, BoolTensor, bool_tensor, bool_tensor_handle;
    Quantized, QuantizedTensor, quantized_tensor, quantized_tensor_handle;
}
