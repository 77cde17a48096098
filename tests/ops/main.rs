//! Every method of Burn's operation traits gives what the wrapped backend gives, bit for bit, whichever
//! of its operands lie in host memory.
//!
//! `float`, `int`, ... list a case or more for every method of a trait; a method without one fails
//! [`no_method_is_without_a_case`]. Each case runs on the wrapped backend, then on `Offloaded` of it with
//! each operand alone in host memory, with all, with all as pending views, and with everything.

#[macro_use]
mod case;
mod activation;
mod bool;
#[path = "../forwarding/burn_source.rs"]
mod burn_source;
mod float;
mod gradient;
mod int;
mod model;
mod module;
mod programs;
mod quantized;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Mutex, PoisonError},
};

use burn::tensor::{
    BoolDType, DType, FloatDType, IntDType, TensorData,
    backend::{Backend, BackendTypes},
    quantization::{BlockSize, QuantLevel, QuantScheme, QuantValue},
};
use burn_autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
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

/// Sets the policy that a placing needs.
fn configure<B: OffloadTarget>(placing: Placing, device: &<B as BackendTypes>::Device) {
    let policy = match placing {
        Placing::Everything => OffloadPolicy::everything(),
        _ => OffloadPolicy::host_budget(ByteSize::mib(64)),
    };
    Offloaded::<B>::configure(device, policy).expect("the policy holds together");
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
        let operands = lay(&bare.inputs, &data, viewed, device, |_, make| make());
        run(bare, operands, types, device)
    };
    let expected = bare_run(false);
    let expected_viewed = bare_run(true);

    for placing in Placing::of(data.len()) {
        configure::<B>(placing, device);
        let viewed = placing == Placing::AllViewed;
        let make = || -> Vec<Value<O<B>>> { placing.lay(&bare.inputs, &data, device) };
        let operands = make();
        let wanted = match placing {
            Placing::One(_) => 1,
            _ => data.iter().filter(|d| !d.bytes.is_empty()).count(),
        };
        let there = O::<B>::report(device).offloaded_parameters();
        if there < wanted.min(data.iter().filter(|d| !d.bytes.is_empty()).count())
            && !data.iter().any(|d| d.bytes.is_empty())
        {
            return Err(format!(
                "{placing:?}: {there} operands are in host memory, not {wanted}"
            ));
        }
        let expected = if viewed { &expected_viewed } else { &expected };
        // Somebody else has them too.
        let kept = operands.clone();
        let got = run(offloaded, operands, types, device);
        if got != *expected {
            return Err(format!("{placing:?}: {got:?}\ninstead of {expected:?}"));
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
                "{placing:?}, not shared: {got:?}\ninstead of {expected:?}"
            ));
        }
    }
    Ok(expected.is_ok())
}

/// Runs every case; returns the names of those that the wrapped backend refuses, with a panic.
fn check_all<B: OffloadTarget>(
    name: &str,
    bare: Cases<B>,
    offloaded: Cases<Offloaded<B>>,
    types: Types,
    device: &<B as BackendTypes>::Device,
) -> BTreeSet<&'static str> {
    let mut wrong = Vec::new();
    let mut refused = BTreeSet::new();
    for (bare, offloaded) in bare.iter().zip(&offloaded) {
        let checked = catch_unwind(AssertUnwindSafe(|| check(bare, offloaded, types, device)));
        match checked {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                refused.insert(bare.name);
            }
            Ok(Err(why)) => wrong.push(format!("{}: {why}", bare.name)),
            Err(_) => wrong.push(format!("{}: panicked outside the operation", bare.name)),
        }
    }
    Offloaded::<B>::configure(device, OffloadPolicy::nothing()).expect("nothing can be offloaded");
    assert!(wrong.is_empty(), "{name}, {types:?}:\n{}", wrong.join("\n"));
    refused
}

fn types(float: FloatDType, int: IntDType) -> Types {
    Types {
        float,
        int,
        bool: BoolDType::Native,
        scheme: QuantScheme::default(),
    }
}

type B = burn_flex::Flex;

/// Runs `test` alone, without the panics of cases that the backend refuses on the terminal.
fn alone(test: impl FnOnce()) {
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

#[test]
fn no_method_is_without_a_case() {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let lists: [Cases<B>; 6] = [
        float::cases(),
        int::cases(),
        bool::cases(),
        activation::cases(),
        quantized::cases(),
        module::cases(),
    ];
    for cases in &lists {
        named.extend(cases.iter().map(|case| case.name));
    }
    let mut missing = Vec::new();
    for (name, file) in [
        ("FloatTensorOps", "ops/tensor.rs"),
        ("IntTensorOps", "ops/int_tensor.rs"),
        ("BoolTensorOps", "ops/bool_tensor.rs"),
        ("QTensorOps", "ops/qtensor.rs"),
        ("ActivationOps", "ops/activation.rs"),
        ("ModuleOps", "ops/modules/base.rs"),
        ("TransactionOps", "ops/transaction.rs"),
    ] {
        let methods = burn_source::methods(name, Path::new(file));
        assert!(!methods.is_empty(), "{name} has methods");
        missing.extend(methods.into_iter().filter(|m| !named.contains(m.as_str())));
    }
    assert!(missing.is_empty(), "without a case: {missing:?}");
}

/// The operations that Flex refuses: what is not here must give results, or the comparison is empty.
fn assert_refused(refused: BTreeSet<&'static str>, expected: &[&'static str], types: Types) {
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    assert_eq!(refused, expected, "{types:?}");
}

#[test]
fn float_operations() {
    alone(|| {
        use FloatDType::{BF16, F16, F32, F64};
        for float in [F32, F64, F16, BF16] {
            let device = Default::default();
            assert!(B::supports_dtype(&device, DType::from(float)), "{float:?}");
            let types = types(float, IntDType::I32);
            let cases = float::cases();
            let refused = check_all::<B>("float", cases, float::cases(), types, &device);
            assert_refused(refused, &["float_argtopk"], types);
        }
    });
}

#[test]
fn integer_operations() {
    use IntDType::{I8, I16, I32, I64, U8, U16, U32, U64};
    alone(|| {
        for int in [I64, I32, I16, I8, U64, U32, U16, U8] {
            let device = Default::default();
            let types = types(FloatDType::F32, int);
            let refused = check_all::<B>("int", int::cases(), int::cases(), types, &device);
            let expected: &[&str] = match int {
                I64 | I32 => &["int_argtopk"],
                I16 | I8 => &["int_argtopk", "int_matmul"],
                U64 | U32 | U16 | U8 => &[
                    "int_argmax",
                    "int_argmin",
                    "int_argtopk",
                    "int_matmul",
                    "int_mean",
                ],
            };
            assert_refused(refused, expected, types);
        }
    });
}

#[test]
fn boolean_operations() {
    alone(|| {
        let device = Default::default();
        let types = types(FloatDType::F32, IntDType::I64);
        let refused = check_all::<B>("bool", bool::cases(), bool::cases(), types, &device);
        assert_refused(refused, &[], types);
    });
}

#[test]
fn module_operations_activations_and_transactions() {
    alone(|| {
        use FloatDType::{BF16, F16, F32, F64};
        for float in [F32, F64, F16, BF16] {
            let types = types(float, IntDType::I64);
            let device = Default::default();
            let cases = module::cases();
            let refused = check_all::<B>("module", cases, module::cases(), types, &device);
            assert_refused(refused, &["ctc_loss_backward"], types);
            let cases = activation::cases();
            let refused = check_all::<B>("activation", cases, activation::cases(), types, &device);
            assert_refused(refused, &[], types);
        }
    });
}

#[test]
fn quantized_operations() {
    alone(|| {
        use QuantValue::{Q4F, Q4S, Q8F, Q8S};
        let device = Default::default();
        for level in [QuantLevel::Tensor, QuantLevel::Block(BlockSize::new([8]))] {
            for value in [Q8S, Q8F, Q4S, Q4F] {
                let types = Types {
                    scheme: QuantScheme::default().with_level(level).with_value(value),
                    ..types(FloatDType::F32, IntDType::I32)
                };
                let cases = quantized::cases();
                let refused =
                    check_all::<B>("quantized", cases, quantized::cases(), types, &device);
                // What is smaller than a block cannot be quantized by blocks.
                let expected: &[&str] = match level {
                    QuantLevel::Tensor => &["q_argtopk"],
                    QuantLevel::Block(_) => &[
                        "q_argtopk",
                        "q_max",
                        "q_max_abs",
                        "q_max_abs_dim",
                        "q_max_dim",
                        "q_max_dim_with_indices",
                        "q_min",
                        "q_min_dim",
                        "q_min_dim_with_indices",
                    ],
                };
                assert_refused(refused, expected, types);
            }
        }
    });
}

/// The gradients of every case with a float operand, and of models, with a checkpointing strategy.
fn gradients<C: CheckpointStrategy>() {
    alone(|| {
        let device = Default::default();
        let types = types(FloatDType::F32, IntDType::I64);
        let without =
            |bare, offloaded| gradient::check_all::<B, C>(bare, offloaded, types, &device);
        // They give indices, booleans or integers; `detach` cuts; `topk` autodiff does not have.
        let expected = [
            "float_all",
            "float_all_dim",
            "float_any",
            "float_any_dim",
            "float_argmax",
            "float_argmin",
            "float_argsort",
            "float_argtopk",
            "float_detach",
            "float_device",
            "float_equal",
            "float_equal_elem",
            "float_greater",
            "float_greater_elem",
            "float_greater_equal",
            "float_greater_equal_elem",
            "float_into_int",
            "float_is_inf",
            "float_is_nan",
            "float_is_require_grad",
            "float_lower",
            "float_lower_elem",
            "float_lower_equal",
            "float_lower_equal_elem",
            "float_not_equal",
            "float_not_equal_elem",
            "float_topk",
        ];
        assert_eq!(
            without(float::cases(), float::cases()),
            BTreeSet::from(expected)
        );
        // Autodiff does not differentiate backward operations and Fourier transforms; a transaction
        // gives host data.
        let expected = [
            "adaptive_avg_pool1d_backward",
            "adaptive_avg_pool2d_backward",
            "avg_pool1d_backward",
            "avg_pool2d_backward",
            "ctc_loss_backward",
            "deform_conv2d_backward",
            "embedding_backward",
            "interpolate_backward",
            "irfft",
            "linear_bias_backward",
            "linear_weight_backward",
            "linear_x_backward",
            "max_pool1d_with_indices_backward",
            "max_pool2d_with_indices_backward",
            "rfft",
            "tr_execute",
        ];
        assert_eq!(
            without(module::cases(), module::cases()),
            BTreeSet::from(expected)
        );
        assert_eq!(
            without(activation::cases(), activation::cases()),
            BTreeSet::new()
        );
    });
}

/// Models train as on the wrapped backend, with a checkpointing strategy.
fn models<C: CheckpointStrategy>() {
    alone(|| {
        use model::llama::Llama;
        let device = Default::default();
        let types = types(FloatDType::F32, IntDType::I64);
        model::check::<B, C, model::Vision<_>, model::Vision<_>>(types, &device);
        model::check::<B, C, Llama<_>, Llama<_>>(types, &device);
    });
}

#[test]
fn models_train_without_checkpointing() {
    models::<NoCheckpointing>();
}

#[test]
fn models_train_with_balanced_checkpointing() {
    models::<BalancedCheckpointing>();
}

#[test]
fn gradients_without_checkpointing() {
    gradients::<NoCheckpointing>();
}

#[test]
fn gradients_with_balanced_checkpointing() {
    gradients::<BalancedCheckpointing>();
}

/// Found at random: the sum is of a transpose, and a product rounds by the layout of its operands.
#[test]
fn a_program_with_a_strided_result() {
    use programs::{Program, Step};
    alone(|| {
        let program = Program {
            on_host: vec![false, false],
            steps: vec![
                (Step::Transpose(0), true),
                (Step::AddScalar(0), true),
                (Step::Relu(0), false),
                (Step::Add(0, 0), false),
                (Step::Matmul(4, 6), false),
            ],
        };
        if let Err(err) = programs::agree::<B>(&program, &Default::default()) {
            panic!("{program:?}: {err}");
        }
    });
}

#[test]
fn random_programs() {
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    alone(|| {
        let config = Config {
            cases: 1000,
            failure_persistence: None,
            ..Config::default()
        };
        // The same programs every time; more are tried by raising `cases`.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&programs::any_program(), |program| {
            programs::agree::<B>(&program, &Default::default())
        });
        if let Err(err) = outcome {
            panic!("{err}");
        }
    });
}
