//! `IntTensorOps`.

use super::case::*;
use Input::{Int, Ints};
use burn::tensor::{Distribution, IndexingUpdateOp, Scalar, Slice, backend::Backend};

fn scalar(value: i64) -> Scalar {
    Scalar::Int(value)
}

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let m = || Int(vec![3, 4], 9);
    // Above zero: a sum of an even number and one.
    macro_rules! unary {
        ($($name:ident)*) => { cases! { c: $($name [m()] |a| Int(B::$name(a.i()));)* } };
    }
    macro_rules! along {
        ($($name:ident)*) => { cases! { c: $($name [m()] |a| Int(B::$name(a.i(), 1));)* } };
    }
    macro_rules! binary {
        ($($name:ident)*) => { cases! { c: $($name [m(), m()] |a| Int(B::$name(a.i(), a.i()));)* } };
    }
    macro_rules! binary_positive {
        ($($name:ident)*) => {
            cases! { c: $($name [m(), Int(vec![3, 4], 2)] |a| Int({
                let (lhs, rhs) = (a.i(), a.i());
                B::$name(lhs, B::int_add_scalar(rhs, scalar(1)))
            });)* }
        };
    }
    macro_rules! with_scalar {
        ($($name:ident)*) => { cases! { c: $($name [m()] |a| Int(B::$name(a.i(), scalar(2)));)* } };
    }
    macro_rules! compare {
        ($($name:ident)*) => {
            cases! { c: $($name [m(), m()] |a| Bool(B::$name(a.i(), a.i(), a.types.bool));)* }
        };
    }
    macro_rules! compare_scalar {
        ($($name:ident)*) => {
            cases! { c: $($name [m()] |a| Bool(B::$name(a.i(), scalar(4), a.types.bool));)* }
        };
    }
    unary! { int_transpose int_sum int_prod int_mean int_max int_max_abs int_min int_abs int_sign bitwise_not }
    // The products fit eight bits.
    cases! { c: int_cumprod [Int(vec![3, 4], 3)] |a| Int(B::int_cumprod(a.i(), 1)); }
    cases! { c: int_neg [m()] |a| Int(B::int_neg(a.i())); }
    along! { int_sum_dim int_prod_dim int_mean_dim int_cumsum int_cummin int_cummax int_argmax
    int_argmin int_max_dim int_max_abs_dim int_min_dim }
    binary! { int_add int_mul bitwise_and bitwise_or bitwise_xor }
    binary_positive! { int_sub int_div int_remainder int_powi bitwise_left_shift bitwise_right_shift }
    with_scalar! { int_add_scalar int_powi_scalar int_powi_scalar_impl int_clamp_min int_clamp_max
    int_sub_scalar int_mul_scalar int_div_scalar int_remainder_scalar bitwise_and_scalar
    bitwise_or_scalar bitwise_xor_scalar bitwise_left_shift_scalar bitwise_right_shift_scalar }
    compare! { int_equal int_not_equal int_greater int_greater_equal int_lower int_lower_equal }
    compare_scalar! { int_equal_elem int_not_equal_elem int_greater_elem int_greater_equal_elem
    int_lower_elem int_lower_equal_elem }
    cases! { c:
        int_from_data [] |a| Int(B::int_from_data(Int(vec![3, 4], 9).data(9, a.types), &a.device));
        int_into_data [m()] |a| Int(a.i());
        int_device [m()] |a| Text(format!("{:?}", B::int_device(&a.i())));
        int_to_device [m()] |a| Int(B::int_to_device(a.i(), &a.device));
        int_reshape [m()] |a| Int(B::int_reshape(a.i(), shape(&[2, 6])));
        int_slice [m()] |a| Int(B::int_slice(a.i(), &[Slice::new(1, Some(3), 1), Slice::full()]));
        int_swap_dims [Int(vec![2, 3, 4], 5)] |a| Int(B::int_swap_dims(a.i(), 0, 2));
        int_permute [Int(vec![2, 3, 4], 5)] |a| Int(B::int_permute(a.i(), &[2, 0, 1]));
        int_expand [Int(vec![1, 4], 5)] |a| Int(B::int_expand(a.i(), shape(&[2, 3, 4])));
        int_empty [] |a| Text(format!("{:?}", burn::tensor::TensorMetadata::shape(
            &B::int_empty(shape(&[3, 4]), &a.device, a.types.int))));
        int_zeros [] |a| Int(B::int_zeros(shape(&[3, 0]), &a.device, a.types.int));
        int_ones [] |a| Int(B::int_ones(shape(&[3, 4]), &a.device, a.types.int));
        int_full [] |a| Int(B::int_full(shape(&[3, 4]), scalar(5), &a.device, a.types.int));
        int_random [] |a| Int({
            B::seed(&a.device, 7);
            B::int_random(shape(&[3, 4]), Distribution::Uniform(0.0, 9.0), &a.device, a.types.int)
        });
        int_arange_step [] |a| Int(B::int_arange_step(0..9, 2, &a.device, a.types.int));
        int_arange [] |a| Int(B::int_arange(0..9, &a.device, a.types.int));
        int_slice_assign [m(), Int(vec![2, 4], 9)] |a| Int(
            B::int_slice_assign(a.i(), &[Slice::new(1, Some(3), 1), Slice::full()], a.i()));
        int_into_float [m()] |a| Float(B::int_into_float(a.i(), a.types.float));
        int_mask_where [m(), Input::Bool(vec![3, 4]), m()] |a| Int(B::int_mask_where(a.i(), a.b(), a.i()));
        int_mask_fill [m(), Input::Bool(vec![3, 4])] |a| Int(B::int_mask_fill(a.i(), a.b(), scalar(7)));
        int_scatter_add [m(), Int(vec![2, 4], 3), Int(vec![2, 4], 9)] |a| Int({
            let (t, i, v) = (a.i(), a.i(), a.i());
            B::int_scatter_add(0, t, i, v)
        });
        int_scatter_nd [Int(vec![5], 9), Int(vec![3, 1], 5), Int(vec![3], 9)] |a| Int({
            let (t, i, v) = (a.i(), a.i(), a.i());
            B::int_scatter_nd(t, i, v, IndexingUpdateOp::Add)
        });
        int_select_add [m(), Ints(vec![2, 0]), Int(vec![2, 4], 9)] |a| Int({
            let (t, i, v) = (a.i(), a.i(), a.i());
            B::int_select_add(t, 0, i, v)
        });
        int_gather [m(), Int(vec![2, 4], 3)] |a| Int(B::int_gather(0, a.i(), a.i()));
        int_gather_nd [m(), Int(vec![5, 1], 3)] |a| Int(B::int_gather_nd(a.i(), a.i()));
        int_select [m(), Ints(vec![2, 0, 2])] |a| Int(B::int_select(a.i(), 0, a.i()));
        int_repeat_dim [m()] |a| Int(B::int_repeat_dim(a.i(), 1, 3));
        int_cat [m(), m(), m()] |a| Int(B::int_cat(vec![a.i(), a.i(), a.i()], 1));
        int_clamp [m()] |a| Int(B::int_clamp(a.i(), scalar(2), scalar(5)));
        int_argtopk [m()] |a| Int(B::int_argtopk(a.i(), 1, 2));
        int_topk [m()] |a| Int(B::int_topk(a.i(), 1, 2));
        int_flip [m()] |a| Int(B::int_flip(a.i(), &[0, 1]));
        int_any [m()] |a| Bool(B::int_any(a.i(), a.types.bool));
        int_any_dim [m()] |a| Bool(B::int_any_dim(a.i(), 1, a.types.bool));
        int_all [m()] |a| Bool(B::int_all(a.i(), a.types.bool));
        int_all_dim [m()] |a| Bool(B::int_all_dim(a.i(), 1, a.types.bool));
        int_sort [m()] |a| Int(B::int_sort(a.i(), 1, true));
        int_argsort [m()] |a| Int(B::int_argsort(a.i(), 1, false));
        int_cast [m()] |a| Int(B::int_cast(a.i(), burn::tensor::IntDType::I16));
        int_unfold [m()] |a| Int(B::int_unfold(a.i(), 1, 2, 1));
        int_matmul [Int(vec![3, 4], 5), Int(vec![4, 2], 5)] |a| Int(B::int_matmul(a.i(), a.i()));
    }
    cases! { c, many:
        int_max_dim_with_indices [m()] |a| two(B::int_max_dim_with_indices(a.i(), 1));
        int_min_dim_with_indices [m()] |a| two(B::int_min_dim_with_indices(a.i(), 1));
        int_sort_with_indices [m()] |a| two(B::int_sort_with_indices(a.i(), 1, true));
    }
    c
}

fn two<B: Backend>(
    (values, indices): (
        burn::tensor::ops::IntTensor<B>,
        burn::tensor::ops::IntTensor<B>,
    ),
) -> Vec<Value<B>> {
    vec![Value::Int(values), Value::Int(indices)]
}
