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
        Compared, Mode, activation, alone, bool, case::Types, compare_all, float, int, module,
        quantized, types,
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

/// burn-cubecl 0.21's kernel takes a grid point's second coordinate from the element after the first one's,
/// which in a transposed grid belongs to another point, or to the padding of the row.
const MISREAD: &[&str] = &["float_grid_sample_2d"];

fn check<B: OffloadTarget<Device = CudaDevice>>(name: &str) {
    let device = CudaDevice::default();
    let mut all = 0;
    let mut refused_anywhere = std::collections::BTreeSet::new();
    let mut wrong_anywhere = Vec::new();
    for (mode_name, mode) in MODES {
        let mut ran = 0;
        let mut count = |what: &str, types: Types, cases: usize, compared: Compared| {
            ran += cases - compared.refused.len();
            refused_anywhere.extend(compared.refused);
            let wrong = compared.wrong.into_iter();
            wrong_anywhere.extend(wrong.map(|why| format!("{what}, {types:?}: {why}")));
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
                    let compared = compare_all::<B>(bare, offloaded, types, mode, MISREAD, &device);
                    count(&what, types, cases, compared);
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
                let compared = compare_all::<B>(bare, offloaded, types, mode, MISREAD, &device);
                count(&what, types, cases, compared);
            }
        }
        let none_wrong = wrong_anywhere.is_empty();
        line(
            &format!(
                "operations, each operand alone, all, as views, everything, {name}, {mode_name}"
            ),
            match none_wrong {
                true => format!("{ran} cases give burn-cuda's bits"),
                false => format!("WRONG: {}", wrong_anywhere.len()),
            },
        );
        all += ran;
    }
    println!("refused by burn-cuda somewhere: {refused_anywhere:?}");
    assert!(wrong_anywhere.is_empty(), "{}", wrong_anywhere.join("\n"));
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
