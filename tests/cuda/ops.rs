//! The cases of `tests/ops`, with their operands read in place and staged: each gives what burn-cuda gives,
//! bit for bit.

use burn::tensor::{
    BoolDType, DType, FloatDType, IntDType, bf16,
    quantization::{BlockSize, QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue},
};
use burn_offload::{AccessMode, OffloadTarget};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, line,
    ops_harness::{
        Mode, activation, alone, bool, case::Types, check_all, float, int, module, quantized, types,
    },
};

const MODES: [(&str, Mode); 2] = [
    ("in place", |policy| policy.with_access(AccessMode::InPlace)),
    ("staged", |policy| policy.with_access(AccessMode::Staged)),
];

/// burn-cuda keeps a boolean in a byte.
fn cuda_types(float: FloatDType, int: IntDType) -> Types {
    Types {
        bool: BoolDType::U8,
        ..types(float, int)
    }
}

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    let device = CudaDevice::default();
    let mut all = 0;
    let mut refused_anywhere = std::collections::BTreeSet::new();
    for (mode_name, mode) in MODES {
        let mut ran = 0;
        let mut count = |cases: usize, refused: std::collections::BTreeSet<&'static str>| {
            ran += cases - refused.len();
            refused_anywhere.extend(refused);
        };
        for (float_type, int_type) in [
            (FloatDType::F32, IntDType::I32),
            (FloatDType::BF16, IntDType::I64),
            (FloatDType::F16, IntDType::U8),
            (FloatDType::Flex32, IntDType::U32),
        ] {
            if !B::supports_dtype(&device, DType::from(float_type)) {
                line(
                    &format!("operations, {name}, {float_type:?}"),
                    "burn-cuda does not have the type",
                );
                continue;
            }
            let types = cuda_types(float_type, int_type);
            macro_rules! run {
                ($($cases:ident)*) => {$(
                    let (bare, offloaded) = ($cases::cases(), $cases::cases());
                    let cases = bare.len();
                    let what = format!("{name}, {mode_name}, {}", stringify!($cases));
                    count(cases, check_all::<B>(&what, bare, offloaded, types, mode, &device));
                )*};
            }
            run!(float activation module);
            if int_type != IntDType::U32 {
                run!(int);
            }
            if float_type == FloatDType::F32 {
                run!(bool);
            }
        }
        for level in [QuantLevel::Tensor, QuantLevel::Block(BlockSize::new([8]))] {
            for value in [QuantValue::Q8S, QuantValue::Q4S] {
                let scheme = QuantScheme::default()
                    .with_level(level)
                    .with_value(value)
                    .with_param(QuantParam::F32)
                    .with_store(QuantStore::PackedU32(0));
                let types = Types {
                    scheme,
                    ..cuda_types(FloatDType::F32, IntDType::I32)
                };
                let (bare, offloaded) = (quantized::cases(), quantized::cases());
                let cases = bare.len();
                let what = format!("{name}, {mode_name}, quantized");
                count(
                    cases,
                    check_all::<B>(&what, bare, offloaded, types, mode, &device),
                );
            }
        }
        line(
            &format!(
                "operations, each operand alone, all, as views, everything, {name}, {mode_name}"
            ),
            format!("{ran} cases give burn-cuda's bits"),
        );
        all += ran;
    }
    println!("refused by burn-cuda somewhere: {refused_anywhere:?}");
    assert!(all > 0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn operations_eager() {
    alone(|| check::<Eager<bf16>>("without fusion"));
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn operations_fused() {
    alone(|| check::<crate::Fused<bf16>>("with fusion"));
}
