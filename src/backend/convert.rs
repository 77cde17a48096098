//! Elements as files have them, in little-endian order, and as tensors do.

use burn_backend::DType;
use burn_std::{bf16, f16};

/// Whether elements of one type are stored as the other's are in memory.
pub fn is_same(stored: DType, wanted: DType) -> bool {
    let bools = |dtype: DType| matches!(dtype, DType::Bool(_)) && dtype.size() == 1;
    cfg!(target_endian = "little") && (stored == wanted || bools(stored) && bools(wanted))
}

/// The elements in memory of their own.
pub fn to_vec(bytes: &[u8], stored: DType, wanted: DType) -> Vec<u8> {
    if is_same(stored, wanted) {
        return bytes.to_vec();
    }
    let mut out = vec![0; bytes.len() / stored.size() * wanted.size()];
    fill(bytes, stored, &mut out, wanted);
    out
}

/// Whether [`fill`] can do it.
pub fn is_possible(stored: DType, wanted: DType) -> bool {
    let class = |dtype: DType| match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => 1,
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => 2,
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => 2,
        DType::Bool(_) => 3,
        _ => 0,
    };
    class(stored) != 0 && class(stored) == class(wanted)
}

/// Writes the elements to `out`, which has room for exactly so many. Floats go by way of `f32`, rounded
/// to the nearest; integers that do not fit wrap around.
///
/// # Panics
///
/// Where [`is_possible`] says no.
pub fn fill(bytes: &[u8], stored: DType, out: &mut [u8], wanted: DType) {
    if is_same(stored, wanted) {
        out.copy_from_slice(bytes);
        return;
    }
    macro_rules! each {
        ($from:ty, $to:ty, $convert:expr) => {{
            let (from, _) = bytes.as_chunks::<{ size_of::<$from>() }>();
            let (to, _) = out.as_chunks_mut::<{ size_of::<$to>() }>();
            let convert: fn($from) -> $to = $convert;
            for (from, to) in from.iter().zip(to) {
                *to = convert(<$from>::from_le_bytes(*from)).to_ne_bytes();
            }
        }};
    }
    macro_rules! float_to {
        ($from:ty, $read:expr) => {
            match wanted {
                DType::F64 => each!($from, f64, |x| f64::from($read(x))),
                DType::F32 => each!($from, f32, |x| $read(x)),
                DType::F16 => each!($from, f16, |x| f16::from_f32($read(x))),
                DType::BF16 => each!($from, bf16, |x| bf16::from_f32($read(x))),
                _ => unreachable!("a float becomes a float, not {wanted:?}"),
            }
        };
    }
    macro_rules! integer_to {
        ($from:ty) => {
            match wanted {
                DType::I64 => each!($from, i64, |x| x as i64),
                DType::I32 => each!($from, i32, |x| x as i32),
                DType::I16 => each!($from, i16, |x| x as i16),
                DType::I8 => each!($from, i8, |x| x as i8),
                DType::U64 => each!($from, u64, |x| x as u64),
                DType::U32 => each!($from, u32, |x| x as u32),
                DType::U16 => each!($from, u16, |x| x as u16),
                DType::U8 => each!($from, u8, |x| x as u8),
                _ => unreachable!("an integer becomes an integer, not {wanted:?}"),
            }
        };
    }
    match stored {
        DType::F64 => float_to!(f64, |x: f64| x as f32),
        DType::F32 => float_to!(f32, |x: f32| x),
        DType::F16 => float_to!(f16, f16::to_f32),
        DType::BF16 => float_to!(bf16, bf16::to_f32),
        DType::I64 => integer_to!(i64),
        DType::I32 => integer_to!(i32),
        DType::I16 => integer_to!(i16),
        DType::I8 => integer_to!(i8),
        DType::U64 => integer_to!(u64),
        DType::U32 => integer_to!(u32),
        DType::U16 => integer_to!(u16),
        DType::U8 => integer_to!(u8),
        DType::Bool(_) if wanted.size() == 1 => out.copy_from_slice(bytes),
        DType::Bool(_) => each!(u8, u32, |x| u32::from(x != 0)),
        _ => unreachable!("elements of type {stored:?} are not read from files"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_to_the_nearest_and_others_keep_their_value() {
        let f32s = [1.0f32, -2.5, 1.0 + f32::EPSILON, 65504.0];
        let bytes: Vec<u8> = f32s.iter().flat_map(|x| x.to_le_bytes()).collect();
        let out = to_vec(&bytes, DType::F32, DType::BF16);
        let expected: Vec<u8> = f32s
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_ne_bytes())
            .collect();
        assert_eq!(out, expected);
        let back = to_vec(&out, DType::BF16, DType::F64);
        let (back, _) = back.as_chunks::<8>();
        assert_eq!(f64::from_ne_bytes(back[1]), -2.5);

        let bytes: Vec<u8> = [-3i64, 70_000]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let out = to_vec(&bytes, DType::I64, DType::I32);
        assert_eq!(
            out,
            [(-3i32).to_ne_bytes(), 70_000i32.to_ne_bytes()].concat()
        );
    }
}
