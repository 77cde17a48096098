//! `QTensorOps`.

use super::case::*;
use Input::{Float, Int, Ints, Quantized};
use burn::tensor::{
    Scalar, Slice, TensorPrimitive,
    backend::Backend,
    quantization::{QuantLevel, QuantizationParametersPrimitive},
};

fn scalar(value: f64) -> Scalar {
    Scalar::Float(value)
}

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let m = || Quantized(vec![4, 8]);
    macro_rules! unary {
        ($($name:ident)*) => { cases! { c, many: $($name [m()] |a| either(B::$name(a.q()));)* } };
    }
    macro_rules! along {
        ($($name:ident)*) => { cases! { c, many: $($name [m()] |a| either(B::$name(a.q(), 1));)* } };
    }
    macro_rules! binary {
        ($($name:ident)*) => {
            cases! { c, many: $($name [m(), m()] |a| either(B::$name(a.q(), a.q()));)* }
        };
    }
    macro_rules! with_scalar {
        ($($name:ident)*) => {
            cases! { c, many: $($name [m()] |a| either(B::$name(a.q(), scalar(0.75)));)* }
        };
    }
    unary! { q_neg q_recip q_sum q_prod q_mean q_exp q_log q_log1p q_sqrt q_cos q_sin q_tan q_cosh
    q_sinh q_tanh q_erf }
    along! { q_sum_dim q_prod_dim q_mean_dim q_cumsum q_cumprod q_cummin q_cummax }
    binary! { q_add q_sub q_mul q_div q_powf }
    with_scalar! { q_add_scalar q_sub_scalar q_mul_scalar q_div_scalar q_clamp_min q_clamp_max
    q_powf_scalar }
    cases! { c:
        q_from_data [m()] |a| Quantized(a.q());
        q_into_data [m()] |a| Quantized(a.q());
        q_device [m()] |a| Text(format!("{:?}", B::q_device(&a.q())));
        q_to_device [m()] |a| Quantized(B::q_to_device(a.q(), &a.device));
        quantize [Float(vec![4, 8]), Input::Fraction(vec![4])] |a| Quantized({
            let (tensor, scales) = (a.f(), a.f());
            // One for the tensor, or one for each block of eight.
            let scales = match a.types.scheme.level {
                QuantLevel::Tensor => B::float_slice(scales, &[Slice::new(0, Some(1), 1)]),
                QuantLevel::Block(_) => scales,
            };
            B::quantize(tensor, &a.types.scheme, QuantizationParametersPrimitive { scales })
        });
        quantize_dynamic [Float(vec![4, 8])] |a| Quantized(B::quantize_dynamic(a.f(), &a.types.scheme));
        dequantize [m()] |a| Float(B::dequantize(a.q(), a.types.float));
        q_detach [m()] |a| Quantized(B::q_detach(a.q()));
        q_set_require_grad [m()] |a| Quantized(B::q_set_require_grad(a.q(), true));
        q_is_require_grad [m()] |a| Text(format!("{}", B::q_is_require_grad(&a.q())));
        q_reshape [m()] |a| Quantized(B::q_reshape(a.q(), shape(&[8, 4])));
        q_expand [m()] |a| Quantized(B::q_expand(a.q(), shape(&[2, 4, 8])));
        q_transpose [m()] |a| Quantized(B::q_transpose(a.q()));
        q_swap_dims [m()] |a| Quantized(B::q_swap_dims(a.q(), 0, 1));
        q_permute [m()] |a| Quantized(B::q_permute(a.q(), &[1, 0]));
        q_slice [m()] |a| Quantized(B::q_slice(a.q(), &[Slice::new(1, Some(3), 1), Slice::full()]));
        q_abs [m()] |a| Quantized(B::q_abs(a.q()));
        q_flip [m()] |a| Quantized(B::q_flip(a.q(), &[0]));
        q_repeat_dim [m()] |a| Quantized(B::q_repeat_dim(a.q(), 0, 2));
        q_select [m(), Ints(vec![2, 0])] |a| Quantized(B::q_select(a.q(), 0, a.i()));
        q_gather [m(), Int(vec![2, 8], 4)] |a| Quantized(B::q_gather(0, a.q(), a.i()));
        q_cat [m(), m()] |a| Quantized(B::q_cat(vec![a.q(), a.q()], 0));
        q_max [m()] |a| Quantized(B::q_max(a.q()));
        q_max_dim [m()] |a| Quantized(B::q_max_dim(a.q(), 1));
        q_min [m()] |a| Quantized(B::q_min(a.q()));
        q_min_dim [m()] |a| Quantized(B::q_min_dim(a.q(), 1));
        q_max_abs [m()] |a| Quantized(B::q_max_abs(a.q()));
        q_max_abs_dim [m()] |a| Quantized(B::q_max_abs_dim(a.q(), 1));
        q_sort [m()] |a| Quantized(B::q_sort(a.q(), 1, true));
        q_topk [m()] |a| Quantized(B::q_topk(a.q(), 1, 2));
        q_argmax [m()] |a| Int(B::q_argmax(a.q(), 1, a.types.int));
        q_argmin [m()] |a| Int(B::q_argmin(a.q(), 1, a.types.int));
        q_argtopk [m()] |a| Int(B::q_argtopk(a.q(), 1, 2, a.types.int));
        q_argsort [m()] |a| Int(B::q_argsort(a.q(), 1, true, a.types.int));
        q_any [m()] |a| Bool(B::q_any(a.q(), a.types.bool));
        q_any_dim [m()] |a| Bool(B::q_any_dim(a.q(), 1, a.types.bool));
        q_all [m()] |a| Bool(B::q_all(a.q(), a.types.bool));
        q_all_dim [m()] |a| Bool(B::q_all_dim(a.q(), 1, a.types.bool));
    }
    cases! { c, many:
        q_clamp [m()] |a| either(B::q_clamp(a.q(), scalar(-0.5), scalar(0.5)));
        q_powi [m(), Int(vec![4, 8], 3)] |a| either(B::q_powi(a.q(), a.i()));
        q_powi_scalar [m()] |a| either(B::q_powi_scalar(a.q(), Scalar::Int(3)));
        q_max_dim_with_indices [m()] |a| pair(B::q_max_dim_with_indices(a.q(), 1, a.types.int));
        q_min_dim_with_indices [m()] |a| pair(B::q_min_dim_with_indices(a.q(), 1, a.types.int));
        q_sort_with_indices [m()] |a| pair(B::q_sort_with_indices(a.q(), 1, true, a.types.int));
        q_matmul [m(), Quantized(vec![8, 4])] |a| either({
            let (lhs, rhs) = (TensorPrimitive::QFloat(a.q()), TensorPrimitive::QFloat(a.q()));
            B::q_matmul(lhs, rhs)
        });
        q_matmul [Float(vec![2, 4]), m()] |a| either({
            let (lhs, rhs) = (TensorPrimitive::Float(a.f()), TensorPrimitive::QFloat(a.q()));
            B::q_matmul(lhs, rhs)
        });
    }
    c
}

/// What an operation on quantized tensors returns is quantized or not, as its propagation says.
fn either<B: Backend>(out: TensorPrimitive<B>) -> Vec<Value<B>> {
    match out {
        TensorPrimitive::Float(t) => vec![Value::Float(t)],
        TensorPrimitive::QFloat(t) => vec![Value::Quantized(t)],
    }
}

fn pair<B: Backend>(
    (values, indices): (
        burn::tensor::ops::QuantizedTensor<B>,
        burn::tensor::ops::IntTensor<B>,
    ),
) -> Vec<Value<B>> {
    vec![Value::Quantized(values), Value::Int(indices)]
}
