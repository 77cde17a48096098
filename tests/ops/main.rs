//! Every method of Burn's operation traits gives what the wrapped backend gives, bit for bit, whichever
//! of its operands lie in host memory: here on Flex, on CUDA in `tests/cuda`.
//!
//! The files of `harness` list a case or more for every method of a trait; a method without one fails
//! [`no_method_is_without_a_case`]. Each case runs on the wrapped backend, then on `Offloaded` of it with
//! each operand alone in host memory, with all, with all as pending views, and with everything.

#[path = "../forwarding/burn_source.rs"]
mod burn_source;
#[macro_use]
mod harness;
mod model;

use std::{collections::BTreeSet, path::Path};

use burn::tensor::{
    DType, FloatDType, IntDType,
    backend::Backend,
    quantization::{BlockSize, QuantLevel, QuantScheme, QuantValue},
};
use burn_autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use harness::{
    Mode, activation, alone, bool,
    case::{Cases, Types},
    check_all, float, gradient, int, module, programs, quantized, types,
};

type B = burn_flex::Flex;

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

/// On Flex there is one way to read an operand.
const COPIED: Mode = |policy| policy;

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
            let refused = check_all::<B>("float", cases, float::cases(), types, COPIED, &device);
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
            let refused = check_all::<B>("int", int::cases(), int::cases(), types, COPIED, &device);
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
        let refused = check_all::<B>("bool", bool::cases(), bool::cases(), types, COPIED, &device);
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
            let refused = check_all::<B>("module", cases, module::cases(), types, COPIED, &device);
            assert_refused(refused, &["ctc_loss_backward"], types);
            let cases = activation::cases();
            let refused = check_all::<B>(
                "activation",
                cases,
                activation::cases(),
                types,
                COPIED,
                &device,
            );
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
                let refused = check_all::<B>(
                    "quantized",
                    cases,
                    quantized::cases(),
                    types,
                    COPIED,
                    &device,
                );
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
