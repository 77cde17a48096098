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
mod int;
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
    BoolDType, DType, FloatDType, IntDType, TensorData, TensorMetadata,
    backend::{Backend, BackendTypes},
    ops::{FloatTensorOps, QTensorOps},
    quantization::{BlockSize, QuantLevel, QuantScheme, QuantValue},
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
) -> std::result::Result<(), String> {
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
        let operands = bare.inputs.iter().zip(&data);
        let operands = operands.map(|(input, data)| {
            operand(input, data, viewed, |data| input.value::<B>(data, device))
        });
        run(bare, operands.collect(), types, device)
    };
    let expected = bare_run(false);
    let expected_viewed = bare_run(true);

    let mut placings: Vec<Placing> = (0..data.len()).map(Placing::One).collect();
    placings.extend([Placing::All, Placing::AllViewed, Placing::Everything]);
    for placing in placings {
        let policy = match placing {
            Placing::Everything => OffloadPolicy::everything(),
            _ => OffloadPolicy::host_budget(ByteSize::mib(64)),
        };
        O::<B>::configure(device, policy).map_err(|err| err.to_string())?;
        let viewed = placing == Placing::AllViewed;
        let make = || -> Vec<Value<O<B>>> {
            let operands = bare.inputs.iter().zip(&data).enumerate();
            let operands = operands.map(|(at, (input, data))| {
                let on_host = !matches!(placing, Placing::One(one) if one != at);
                operand(input, data, viewed, |data| {
                    if !on_host || placing == Placing::Everything {
                        return input.value::<O<B>>(data, device);
                    }
                    let made = Mutex::new(None);
                    O::<B>::memory_persistent_allocations(device, data, |data| {
                        let value = input.value::<O<B>>(data, device);
                        *made.lock().expect("nobody panicked") = Some(value);
                    });
                    made.into_inner()
                        .expect("nobody panicked")
                        .expect("it was made")
                })
            });
            operands.collect()
        };
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
    Ok(())
}

/// Runs every case; returns how many gave results, rather than a panic on either side.
fn check_all<B: OffloadTarget>(
    name: &str,
    bare: Cases<B>,
    offloaded: Cases<Offloaded<B>>,
    types: Types,
    device: &<B as BackendTypes>::Device,
) -> usize {
    let mut wrong = Vec::new();
    let mut ran = 0;
    for (bare, offloaded) in bare.iter().zip(&offloaded) {
        let operands = bare.inputs.iter().enumerate();
        let runs = operands
            .clone()
            .all(|(_, input)| !matches!(input, Input::Quantized(_)))
            && run(
                bare,
                operands
                    .map(|(at, i)| i.value::<B>(i.data(at, types), device))
                    .collect(),
                types,
                device,
            )
            .is_ok();
        ran += usize::from(runs);
        let checked = catch_unwind(AssertUnwindSafe(|| check(bare, offloaded, types, device)));
        match checked {
            Ok(Ok(())) => {}
            Ok(Err(why)) => wrong.push(format!("{}: {why}", bare.name)),
            Err(_) => wrong.push(format!("{}: panicked outside the operation", bare.name)),
        }
    }
    Offloaded::<B>::configure(device, OffloadPolicy::nothing()).expect("nothing can be offloaded");
    assert!(wrong.is_empty(), "{name}, {types:?}:\n{}", wrong.join("\n"));
    ran
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
    // The hook was away, so say what happened.
    if let Err(panic) = outcome {
        match panic.downcast::<String>() {
            Ok(message) => panic!("{message}"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
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

#[test]
fn float_operations() {
    alone(|| {
        for float in [
            FloatDType::F32,
            FloatDType::F64,
            FloatDType::F16,
            FloatDType::BF16,
        ] {
            let device = Default::default();
            assert!(B::supports_dtype(&device, DType::from(float)), "{float:?}");
            let ran = check_all::<B>(
                "float",
                float::cases(),
                float::cases(),
                types(float, IntDType::I32),
                &device,
            );
            assert!(
                ran * 10 > float::cases::<B>().len() * 9,
                "{float:?}: only {ran} cases ran"
            );
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
            let ran = check_all::<B>("int", int::cases(), int::cases(), types, &device);
            assert!(
                ran * 10 > int::cases::<B>().len() * 8,
                "{int:?}: only {ran} cases ran"
            );
        }
    });
}

#[test]
fn boolean_operations() {
    alone(|| {
        let types = types(FloatDType::F32, IntDType::I64);
        let ran = check_all::<B>(
            "bool",
            bool::cases(),
            bool::cases(),
            types,
            &Default::default(),
        );
        assert_eq!(ran, bool::cases::<B>().len());
    });
}

#[test]
fn module_operations_activations_and_transactions() {
    alone(|| {
        for float in [FloatDType::F32, FloatDType::BF16] {
            let types = types(float, IntDType::I64);
            let device = Default::default();
            let ran = check_all::<B>("module", module::cases(), module::cases(), types, &device);
            assert!(
                ran * 10 > module::cases::<B>().len() * 9,
                "{float:?}: only {ran} cases ran"
            );
            let ran = check_all::<B>(
                "activation",
                activation::cases(),
                activation::cases(),
                types,
                &device,
            );
            assert_eq!(ran, activation::cases::<B>().len());
        }
    });
}

#[test]
fn quantized_operations() {
    alone(|| {
        let mut schemes = Vec::new();
        for level in [QuantLevel::Tensor, QuantLevel::Block(BlockSize::new([8]))] {
            for value in [
                QuantValue::Q8S,
                QuantValue::Q8F,
                QuantValue::Q4S,
                QuantValue::Q4F,
            ] {
                schemes.push(QuantScheme::default().with_level(level).with_value(value));
            }
        }
        let device = Default::default();
        let mut supported = 0;
        for scheme in schemes {
            let types = Types {
                scheme,
                ..types(FloatDType::F32, IntDType::I32)
            };
            // A scheme that the backend does not have is not this crate's.
            let made = catch_unwind(|| {
                let data = Input::Float(vec![4, 8]).data(0, types);
                let float = B::float_from_data(data, &device);
                B::quantize_dynamic(float, &scheme).shape()
            });
            if made.is_ok() {
                supported += 1;
                check_all::<B>(
                    "quantized",
                    quantized::cases(),
                    quantized::cases(),
                    types,
                    &device,
                );
            }
        }
        assert!(supported >= 2, "only {supported} schemes");
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
