//! `FloatTensorOps`.

use super::case::*;
use Input::{Float, Fraction, Int, Ints};
use burn::tensor::{
    Distribution, IndexingUpdateOp, Scalar, Slice, backend::Backend, ops::GridSampleOptions,
};

fn scalar(value: f64) -> Scalar {
    Scalar::Float(value)
}

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let m = || Float(vec![3, 4]);
    let p = || Fraction(vec![3, 4]);
    macro_rules! unary {
        ($input:ident: $($name:ident)*) => { cases! { c: $($name [$input()] |a| Float(B::$name(a.f()));)* } };
    }
    macro_rules! along {
        ($($name:ident)*) => { cases! { c: $($name [m()] |a| Float(B::$name(a.f(), 1));)* } };
    }
    macro_rules! binary {
        ($input:ident: $($name:ident)*) => {
            cases! { c: $($name [$input(), $input()] |a| Float(B::$name(a.f(), a.f()));)* }
        };
    }
    macro_rules! with_scalar {
        ($($name:ident)*) => { cases! { c: $($name [p()] |a| Float(B::$name(a.f(), scalar(0.75)));)* } };
    }
    macro_rules! compare {
        ($($name:ident)*) => {
            cases! { c: $($name [m(), m()] |a| Bool(B::$name(a.f(), a.f(), a.types.bool));)* }
        };
    }
    macro_rules! compare_scalar {
        ($($name:ident)*) => {
            cases! { c: $($name [m()] |a| Bool(B::$name(a.f(), scalar(0.25), a.types.bool));)* }
        };
    }
    unary! { m: float_detach float_transpose float_neg float_sum float_prod float_mean float_exp float_abs
    float_cos float_sin float_tan float_cosh float_sinh float_tanh float_asinh float_atan float_round
    float_floor float_ceil float_trunc float_erf float_max float_min float_max_abs float_sign }
    unary! { p: float_recip float_log float_log1p float_sqrt float_acos float_asin float_atanh }
    cases! { c: float_acosh [p()] |a| Float(B::float_acosh(B::float_add_scalar(a.f(), scalar(1.5)))); }
    along! { float_sum_dim float_prod_dim float_mean_dim float_cumsum float_cumprod float_cummin
    float_cummax float_max_dim float_min_dim float_max_abs_dim }
    binary! { m: float_add float_sub float_mul float_div float_atan2 }
    binary! { p: float_remainder float_powf }
    with_scalar! { float_add_scalar float_sub_scalar float_mul_scalar float_div_scalar
    float_remainder_scalar float_clamp_min float_clamp_max float_powf_scalar float_powf_scalar_impl }
    compare! { float_equal float_not_equal float_greater float_greater_equal float_lower float_lower_equal }
    compare_scalar! { float_equal_elem float_not_equal_elem float_greater_elem float_greater_equal_elem
    float_lower_elem float_lower_equal_elem }
    cases! { c:
        float_from_data [] |a| Float(B::float_from_data(Float(vec![3, 4]).data(9, a.types), &a.device));
        float_into_data [m()] |a| Float(a.f());
        float_device [m()] |a| Text(format!("{:?}", B::float_device(&a.f())));
        float_to_device [m()] |a| Float(B::float_to_device(a.f(), &a.device));
        float_set_require_grad [m()] |a| Float(B::float_set_require_grad(a.f(), true));
        float_is_require_grad [m()] |a| Text(format!("{}", B::float_is_require_grad(&a.f())));
        float_swap_dims [Float(vec![2, 3, 4])] |a| Float(B::float_swap_dims(a.f(), 0, 2));
        float_permute [Float(vec![2, 1, 3, 2, 2, 1])] |a| Float(B::float_permute(a.f(), &[3, 0, 5, 2, 1, 4]));
        float_reshape [m()] |a| Float(B::float_reshape(a.f(), shape(&[2, 6])));
        float_slice [Float(vec![5, 4])] |a| Float(B::float_slice(a.f(), &[Slice::new(1, Some(4), 2), Slice::full()]));
        float_expand [Float(vec![1, 4])] |a| Float(B::float_expand(a.f(), shape(&[2, 3, 4])));
        float_random [] |a| Float({
            B::seed(&a.device, 7);
            B::float_random(shape(&[3, 4]), Distribution::Default, &a.device, a.types.float)
        });
        float_zeros [] |a| Float(B::float_zeros(shape(&[3, 0]), &a.device, a.types.float));
        float_ones [] |a| Float(B::float_ones(shape(&[3, 4]), &a.device, a.types.float));
        float_full [] |a| Float(B::float_full(shape(&[3, 4]), scalar(1.5), &a.device, a.types.float));
        float_empty [] |a| Text(format!("{:?}", burn::tensor::TensorMetadata::shape(
            &B::float_empty(shape(&[3, 4]), &a.device, a.types.float))));
        float_into_int [m()] |a| Int(B::float_into_int(a.f(), a.types.int));
        float_repeat_dim [m()] |a| Float(B::float_repeat_dim(a.f(), 1, 3));
        float_clamp [m()] |a| Float(B::float_clamp(a.f(), scalar(-0.5), scalar(0.5)));
        float_flip [m()] |a| Float(B::float_flip(a.f(), &[0, 1]));
        float_scatter_add [m(), Int(vec![2, 4], 3), Float(vec![2, 4])] |a| Float({
            let (t, i, v) = (a.f(), a.i(), a.f());
            B::float_scatter_add(0, t, i, v)
        });
        float_scatter_nd [Float(vec![5]), Int(vec![3, 1], 5), Float(vec![3])] |a| Float({
            let (t, i, v) = (a.f(), a.i(), a.f());
            B::float_scatter_nd(t, i, v, IndexingUpdateOp::Add)
        });
        float_gather_nd [m(), Int(vec![5, 1], 3)] |a| Float(B::float_gather_nd(a.f(), a.i()));
        float_gather [m(), Int(vec![2, 4], 3)] |a| Float(B::float_gather(0, a.f(), a.i()));
        float_select [m(), Ints(vec![2, 0, 2])] |a| Float(B::float_select(a.f(), 0, a.i()));
        float_select_add [m(), Ints(vec![2, 0]), Float(vec![2, 4])] |a| Float({
            let (t, i, v) = (a.f(), a.i(), a.f());
            B::float_select_add(t, 0, i, v)
        });
        float_slice_assign [m(), Float(vec![2, 4])] |a| Float(
            B::float_slice_assign(a.f(), &[Slice::new(1, Some(3), 1), Slice::full()], a.f()));
        float_mask_where [m(), Input::Bool(vec![3, 4]), m()] |a| Float(B::float_mask_where(a.f(), a.b(), a.f()));
        float_mask_fill [m(), Input::Bool(vec![3, 4])] |a| Float(B::float_mask_fill(a.f(), a.b(), scalar(7.0)));
        float_cast [m()] |a| Float(B::float_cast(a.f(), burn::tensor::FloatDType::F64));
        float_powi [p(), Int(vec![3, 4], 3)] |a| Float(B::float_powi(a.f(), a.i()));
        float_powi_scalar [m()] |a| Float(B::float_powi_scalar(a.f(), Scalar::Int(3)));
        float_powi_scalar_impl [p()] |a| Float(B::float_powi_scalar_impl(a.f(), Scalar::Int(3)));
        float_cat [m(), m(), m()] |a| Float(B::float_cat(vec![a.f(), a.f(), a.f()], 1));
        float_argmax [m()] |a| Int(B::float_argmax(a.f(), 1, a.types.int));
        float_argtopk [m()] |a| Int(B::float_argtopk(a.f(), 1, 2, a.types.int));
        float_topk [m()] |a| Float(B::float_topk(a.f(), 1, 2));
        float_argmin [m()] |a| Int(B::float_argmin(a.f(), 1, a.types.int));
        float_any [m()] |a| Bool(B::float_any(a.f(), a.types.bool));
        float_any_dim [m()] |a| Bool(B::float_any_dim(a.f(), 1, a.types.bool));
        float_all [m()] |a| Bool(B::float_all(a.f(), a.types.bool));
        float_all_dim [m()] |a| Bool(B::float_all_dim(a.f(), 1, a.types.bool));
        float_sort [m()] |a| Float(B::float_sort(a.f(), 1, true));
        float_argsort [m()] |a| Int(B::float_argsort(a.f(), 1, false, a.types.int));
        float_grid_sample_2d [Float(vec![1, 2, 4, 4]), Float(vec![1, 3, 3, 2])] |a| Float(
            B::float_grid_sample_2d(a.f(), a.f(), GridSampleOptions::default()));
        float_unfold [m()] |a| Float(B::float_unfold(a.f(), 1, 2, 1));
        float_is_nan [m()] |a| Bool(B::float_is_nan(a.f(), a.types.bool));
        float_is_inf [m()] |a| Bool(B::float_is_inf(a.f(), a.types.bool));
        float_matmul [Float(vec![2, 3, 4]), Float(vec![2, 4, 5])] |a| Float(B::float_matmul(a.f(), a.f()));
        float_cross [Float(vec![4, 3]), Float(vec![4, 3])] |a| Float(B::float_cross(a.f(), a.f(), 1));
    }
    cases! { c, many:
        float_max_dim_with_indices [m()] |a| pair(B::float_max_dim_with_indices(a.f(), 1, a.types.int));
        float_min_dim_with_indices [m()] |a| pair(B::float_min_dim_with_indices(a.f(), 1, a.types.int));
        float_sort_with_indices [m()] |a| pair(B::float_sort_with_indices(a.f(), 1, true, a.types.int));
    }
    // Nothing, a single number, and many dimensions.
    for dims in [vec![0], vec![3, 0], vec![], vec![2, 1, 2, 1, 2, 2]] {
        let input = || Float(dims.clone());
        cases! { c:
            float_add [input(), input()] |a| Float(B::float_add(a.f(), a.f()));
            float_neg [input()] |a| Float(B::float_neg(a.f()));
        }
    }
    c
}

pub fn pair<B: Backend>(
    (values, indices): (
        burn::tensor::ops::FloatTensor<B>,
        burn::tensor::ops::IntTensor<B>,
    ),
) -> Vec<Value<B>> {
    vec![Value::Float(values), Value::Int(indices)]
}
