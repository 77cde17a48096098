//! The cases, and how they are checked, for any wrapped backend.

#[macro_use]
pub mod case;
pub mod activation;
pub mod bool;
pub mod float;
pub mod gradient;
pub mod int;
pub mod module;
pub mod programs;
pub mod quantized;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

use burn::tensor::{
    BoolDType, FloatDType, IntDType, TensorData,
    backend::{Backend, BackendTypes},
    quantization::QuantScheme,
};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use case::{Args, Case, Cases, Data, Input, Types, Value};

/// A device's policy is the process's, so one test at a time sets it.
static ALONE: Mutex<()> = Mutex::new(());

/// What a case came to: its results, or the panic of the backend.
type Outcome = Result<Vec<Data>, ()>;

/// The results of a case on `values`.
fn run<B: Backend>(
    case: &Case<B>,
    values: Vec<Value<B>>,
    types: Types,
    device: &B::Device,
) -> Outcome {
    let mut args = Args {
        values: values.into_iter(),
        types,
        device: device.clone(),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let results = (case.run)(&mut args);
        results.into_iter().map(Value::read).collect()
    }));
    outcome.map_err(drop)
}

/// How the operands of a case lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Placing {
    /// This one alone in host memory.
    One(usize),
    All,
    /// All, each the transpose of what was stored.
    AllViewed,
    Everything,
}

impl Placing {
    /// Every way to place so many operands.
    fn of(operands: usize) -> Vec<Self> {
        let mut all: Vec<Self> = (0..operands).map(Self::One).collect();
        all.extend([Self::All, Self::AllViewed, Self::Everything]);
        all
    }

    /// The operands, on a device that is [`configure`]d for this. `T` is `Offloaded`, or `Autodiff`
    /// over it.
    fn lay<T: Backend>(
        self,
        inputs: &[Input],
        data: &[TensorData],
        device: &T::Device,
    ) -> Vec<Value<T>> {
        lay(inputs, data, self == Self::AllViewed, device, |at, make| {
            if self == Self::Everything || matches!(self, Self::One(one) if one != at) {
                return make();
            }
            T::memory_persistent_allocations(device, (), |()| make())
        })
    }
}

/// How offloaded operands are to be read.
pub type Mode = fn(OffloadPolicy) -> OffloadPolicy;

/// Sets the policy that a placing needs.
fn configure<B: OffloadTarget>(placing: Placing, mode: Mode, device: &<B as BackendTypes>::Device) {
    let policy = match placing {
        Placing::Everything => OffloadPolicy::everything(),
        _ => OffloadPolicy::host_budget(ByteSize::mib(64)),
    };
    Offloaded::<B>::configure(device, mode(policy)).expect("the policy holds together");
}

/// The operands, each as `scope` has it made; as views where `viewed` says so.
fn lay<T: Backend>(
    inputs: &[Input],
    data: &[TensorData],
    viewed: bool,
    device: &T::Device,
    scope: impl Fn(usize, &(dyn Fn() -> Value<T> + Sync)) -> Value<T>,
) -> Vec<Value<T>> {
    let operands = inputs.iter().zip(data).enumerate();
    let operands = operands.map(|(at, (input, data))| {
        operand(input, data, viewed, |data| {
            scope(at, &|| input.value::<T>(data.clone(), device))
        })
    });
    operands.collect()
}

/// The data with its last two dimensions swapped, where it has as many and can be.
fn swapped(input: &Input, data: &TensorData) -> Option<(TensorData, usize, usize)> {
    let rank = data.shape.len();
    if rank < 2 || matches!(input, Input::Quantized(_)) {
        return None;
    }
    let (rows, columns) = (data.shape[rank - 2], data.shape[rank - 1]);
    let size = data.dtype.size();
    let mut bytes = Vec::with_capacity(data.bytes.len());
    for matrix in data.bytes.chunks(rows.max(1) * columns.max(1) * size) {
        for column in 0..columns {
            for row in 0..rows {
                let at = (row * columns + column) * size;
                bytes.extend_from_slice(&matrix[at..at + size]);
            }
        }
    }
    let mut shape = data.shape.to_vec();
    shape.swap(rank - 2, rank - 1);
    let data = TensorData {
        bytes: burn::tensor::Bytes::from_bytes_vec(bytes),
        shape: shape.into(),
        dtype: data.dtype,
    };
    Some((data, rank - 2, rank - 1))
}

fn transposed<B: Backend>(value: Value<B>, a: usize, b: usize) -> Value<B> {
    match value {
        Value::Float(t) => Value::Float(B::float_swap_dims(t, a, b)),
        Value::Int(t) => Value::Int(B::int_swap_dims(t, a, b)),
        Value::Bool(t) => Value::Bool(B::bool_swap_dims(t, a, b)),
        other => other,
    }
}

/// An operand, made with `make`, as a view where `viewed` says so.
fn operand<B: Backend>(
    input: &Input,
    data: &TensorData,
    viewed: bool,
    make: impl FnOnce(TensorData) -> Value<B>,
) -> Value<B> {
    match swapped(input, data).filter(|_| viewed) {
        Some((data, a, b)) => transposed(make(data), a, b),
        None => make(data.clone()),
    }
}

fn check<B: OffloadTarget>(
    bare: &Case<B>,
    offloaded: &Case<Offloaded<B>>,
    types: Types,
    mode: Mode,
    misread: bool,
    device: &<B as BackendTypes>::Device,
) -> Result<bool, String> {
    type O<B> = Offloaded<B>;
    let data: Vec<TensorData> = bare
        .inputs
        .iter()
        .enumerate()
        .map(|(at, input)| {
            let data = input.data(at, types);
            if !matches!(input, Input::Quantized(_)) {
                return data;
            }
            let float = B::float_from_data(data, device);
            match Value::<B>::Quantized(B::quantize_dynamic(float, &types.scheme)).read() {
                Data::Tensor(data) => data,
                Data::Text(_) => unreachable!("a tensor was read"),
            }
        })
        .collect();
    let bare_run = |viewed| {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let operands = lay(&bare.inputs, &data, viewed, device, |_, make| make());
            // What cannot be read back cannot be compared.
            operands
                .iter()
                .cloned()
                .for_each(|value| drop(value.read()));
            run(bare, operands, types, device)
        }));
        let outcome = outcome.unwrap_or(Err(()));
        if outcome.is_err() {
            settle::<B>(device);
        }
        outcome
    };
    let expected = bare_run(false);
    let expected_viewed = bare_run(true);
    if misread && expected.is_ok() && expected_viewed == expected {
        return Err("the wrapped backend now reads views rightly: it is listed for nothing".into());
    }

    for placing in Placing::of(data.len()) {
        if misread && placing == Placing::AllViewed {
            continue;
        }
        let viewed = placing == Placing::AllViewed;
        let expected = if viewed { &expected_viewed } else { &expected };
        if expected.is_err() {
            // The wrapped backend does not do this.
            continue;
        }
        configure::<B>(placing, mode, device);
        let make = || -> Vec<Value<O<B>>> { placing.lay(&bare.inputs, &data, device) };
        let operands = make();
        // What has no bytes has no place either.
        let full = |data: &TensorData| !data.bytes.is_empty();
        let wanted = match placing {
            Placing::One(at) => usize::from(full(&data[at])),
            _ => data.iter().filter(|d| full(d)).count(),
        };
        let there = O::<B>::report(device).offloaded_parameters();
        if there < wanted {
            return Err(format!(
                "{placing:?}: {there} operands are in host memory, not {wanted}"
            ));
        }
        // Somebody else has them too.
        let kept = operands.clone();
        let got = run(offloaded, operands, types, device);
        if got != *expected {
            return Err(format!("{placing:?}: {}", difference(&got, expected)));
        }
        for (at, (value, data)) in kept.into_iter().zip(&data).enumerate() {
            let intact = match swapped(&bare.inputs[at], data).filter(|_| viewed) {
                // The view of the view is what was stored.
                Some((stored, a, b)) => transposed(value, a, b).read() == Data::Tensor(stored),
                None => value.read() == Data::Tensor(data.clone()),
            };
            if !intact {
                return Err(format!("{placing:?}: operand {at} was changed"));
            }
        }
        // And nobody else.
        let got = run(offloaded, make(), types, device);
        if got != *expected {
            return Err(format!(
                "{placing:?}, not shared: {}",
                difference(&got, expected)
            ));
        }
    }
    Ok(expected.is_ok())
}

/// Has a device that queues its work report, and forget, what the backend refused.
fn settle<B: Backend>(device: &B::Device) {
    for _ in 0..4 {
        let synced = catch_unwind(AssertUnwindSafe(|| B::sync(device)));
        if matches!(synced, Ok(Ok(()))) {
            return;
        }
    }
}

/// What a result is that it should not be, with its values where they can be told.
fn difference(got: &Outcome, expected: &Outcome) -> String {
    let values = |outcome: &Outcome| match outcome {
        Ok(results) => {
            let values = |data: &Data| match data {
                Data::Tensor(data) if data.dtype.is_float() => {
                    let values: Vec<f64> = data.iter::<f64>().collect();
                    format!("{:?} {values:?}", data.shape)
                }
                data => format!("{data:?}"),
            };
            results.iter().map(values).collect::<Vec<_>>().join(", ")
        }
        Err(()) => "a panic".into(),
    };
    format!("{}\ninstead of {}", values(got), values(expected))
}

/// What comparing cases came to.
#[derive(Default)]
pub struct Compared {
    /// The names of those that the wrapped backend refuses, with a panic.
    pub refused: BTreeSet<&'static str>,
    /// Those that give something else, and what.
    pub wrong: Vec<String>,
}

/// Runs every case. Views in the cases named in `misread` are compared with nothing: the wrapped backend
/// reads memory that is not theirs, so its results are of no tensor.
pub fn compare_all<B: OffloadTarget>(
    bare: Cases<B>,
    offloaded: Cases<Offloaded<B>>,
    types: Types,
    mode: Mode,
    misread: &[&str],
    device: &<B as BackendTypes>::Device,
) -> Compared {
    let Compared {
        mut refused,
        mut wrong,
    } = Compared::default();
    for (bare, offloaded) in bare.iter().zip(&offloaded) {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let misread = misread.contains(&bare.name);
            check(bare, offloaded, types, mode, misread, device)
        }));
        match checked {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                refused.insert(bare.name);
            }
            Ok(Err(why)) => wrong.push(format!("{}: {why}", bare.name)),
            Err(_) => {
                wrong.push(format!("{}: panicked outside the operation", bare.name));
                settle::<B>(device);
            }
        }
    }
    Offloaded::<B>::configure(device, OffloadPolicy::nothing()).expect("nothing can be offloaded");
    Compared { refused, wrong }
}

/// Runs every case, and panics where one gives something else. Returns the names of those that are refused.
pub fn check_all<B: OffloadTarget>(
    name: &str,
    bare: Cases<B>,
    offloaded: Cases<Offloaded<B>>,
    types: Types,
    mode: Mode,
    device: &<B as BackendTypes>::Device,
) -> BTreeSet<&'static str> {
    let Compared { refused, wrong } = compare_all(bare, offloaded, types, mode, &[], device);
    assert!(wrong.is_empty(), "{name}, {types:?}:\n{}", wrong.join("\n"));
    refused
}

pub fn types(float: FloatDType, int: IntDType) -> Types {
    Types {
        float,
        int,
        bool: BoolDType::Native,
        scheme: QuantScheme::default(),
    }
}

/// Runs `test` alone, without the panics of cases that the backend refuses on the terminal.
pub fn alone(test: impl FnOnce()) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(AssertUnwindSafe(test));
    std::panic::set_hook(hook);
    if let Err(panic) = outcome {
        // The hook that would have printed what went wrong was not there.
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        panic!("{}", text.unwrap_or("a panic with no message"));
    }
}
