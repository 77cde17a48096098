//! `ModuleOps`, and `TransactionOps`.

use super::case::*;
use Input::{Float, Fraction, Int, Ints};
use burn::tensor::{
    backend::Backend,
    ops::{
        AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
        InterpolateMode, InterpolateOptions, TransactionPrimitive, UnfoldOptions,
    },
    read_sync,
};

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let f = |dims: &[usize]| Float(dims.to_vec());
    fn conv<const N: usize>() -> ConvOptions<N> {
        ConvOptions::new([1; N], [1; N], [1; N], 1)
    }
    fn transposed<const N: usize>() -> ConvTransposeOptions<N> {
        ConvTransposeOptions::new([1; N], [0; N], [0; N], [1; N], 1)
    }
    fn deform() -> DeformConvOptions<2> {
        DeformConvOptions::new([1; 2], [1; 2], [1; 2], 1, 1)
    }
    fn interpolate() -> InterpolateOptions {
        InterpolateOptions::new(InterpolateMode::Bilinear)
    }
    cases! { c:
        embedding [f(&[6, 4]), Int(vec![2, 3], 6)] |a| Float(B::embedding(a.f(), a.i()));
        embedding_backward [f(&[6, 4]), f(&[2, 3, 4]), Int(vec![2, 3], 6)] |a| Float(
            B::embedding_backward(a.f(), a.f(), a.i()));
        linear [f(&[2, 3]), f(&[3, 4]), f(&[4])] |a| Float(B::linear(a.f(), a.f(), Some(a.f())));
        linear_x_backward [f(&[3, 4]), f(&[2, 4])] |a| Float(B::linear_x_backward(a.f(), a.f()));
        linear_weight_backward [f(&[2, 3]), f(&[2, 4])] |a| Float(B::linear_weight_backward(a.f(), a.f()));
        linear_bias_backward [f(&[2, 4])] |a| Float(B::linear_bias_backward(a.f()));
        conv1d [f(&[1, 2, 6]), f(&[3, 2, 3]), f(&[3])] |a| Float(
            B::conv1d(a.f(), a.f(), Some(a.f()), conv::<1>()));
        conv1d_x_backward [f(&[1, 2, 6]), f(&[3, 2, 3]), f(&[1, 3, 6])] |a| Float(
            B::conv1d_x_backward(a.f(), a.f(), a.f(), conv::<1>()));
        conv1d_weight_backward [f(&[1, 2, 6]), f(&[3, 2, 3]), f(&[1, 3, 6])] |a| Float(
            B::conv1d_weight_backward(a.f(), a.f(), a.f(), conv::<1>()));
        conv1d_bias_backward [f(&[1, 2, 6]), f(&[3]), f(&[1, 3, 6])] |a| Float(
            B::conv1d_bias_backward(a.f(), a.f(), a.f()));
        conv2d [f(&[1, 2, 5, 5]), f(&[3, 2, 3, 3]), f(&[3])] |a| Float(
            B::conv2d(a.f(), a.f(), Some(a.f()), conv::<2>()));
        conv2d_x_backward [f(&[1, 2, 5, 5]), f(&[3, 2, 3, 3]), f(&[1, 3, 5, 5])] |a| Float(
            B::conv2d_x_backward(a.f(), a.f(), a.f(), conv::<2>()));
        conv2d_weight_backward [f(&[1, 2, 5, 5]), f(&[3, 2, 3, 3]), f(&[1, 3, 5, 5])] |a| Float(
            B::conv2d_weight_backward(a.f(), a.f(), a.f(), conv::<2>()));
        conv2d_bias_backward [f(&[1, 2, 5, 5]), f(&[3]), f(&[1, 3, 5, 5])] |a| Float(
            B::conv2d_bias_backward(a.f(), a.f(), a.f()));
        deform_conv2d [f(&[1, 2, 4, 4]), f(&[1, 18, 4, 4]), f(&[3, 2, 3, 3]), f(&[1, 9, 4, 4]), f(&[3])] |a| Float(
            B::deform_conv2d(a.f(), a.f(), a.f(), Some(a.f()), Some(a.f()), deform()));
        conv3d [f(&[1, 2, 3, 3, 3]), f(&[2, 2, 3, 3, 3]), f(&[2])] |a| Float(
            B::conv3d(a.f(), a.f(), Some(a.f()), conv::<3>()));
        conv3d_x_backward [f(&[1, 2, 3, 3, 3]), f(&[2, 2, 3, 3, 3]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv3d_x_backward(a.f(), a.f(), a.f(), conv::<3>()));
        conv3d_weight_backward [f(&[1, 2, 3, 3, 3]), f(&[2, 2, 3, 3, 3]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv3d_weight_backward(a.f(), a.f(), a.f(), conv::<3>()));
        conv3d_bias_backward [f(&[1, 2, 3, 3, 3]), f(&[2]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv3d_bias_backward(a.f(), a.f(), a.f()));
        conv_transpose1d [f(&[1, 2, 5]), f(&[2, 3, 3]), f(&[3])] |a| Float(
            B::conv_transpose1d(a.f(), a.f(), Some(a.f()), transposed::<1>()));
        conv_transpose1d_x_backward [f(&[2, 3, 3]), f(&[1, 3, 7])] |a| Float(
            B::conv_transpose1d_x_backward(a.f(), a.f(), transposed::<1>()));
        conv_transpose1d_weight_backward [f(&[1, 2, 5]), f(&[2, 3, 3]), f(&[1, 3, 7])] |a| Float(
            B::conv_transpose1d_weight_backward(a.f(), a.f(), a.f(), transposed::<1>()));
        conv_transpose1d_bias_backward [f(&[1, 2, 5]), f(&[3]), f(&[1, 3, 7])] |a| Float(
            B::conv_transpose1d_bias_backward(a.f(), a.f(), a.f()));
        conv_transpose2d [f(&[1, 2, 4, 4]), f(&[2, 3, 3, 3]), f(&[3])] |a| Float(
            B::conv_transpose2d(a.f(), a.f(), Some(a.f()), transposed::<2>()));
        conv_transpose2d_x_backward [f(&[2, 3, 3, 3]), f(&[1, 3, 6, 6])] |a| Float(
            B::conv_transpose2d_x_backward(a.f(), a.f(), transposed::<2>()));
        conv_transpose2d_weight_backward [f(&[1, 2, 4, 4]), f(&[2, 3, 3, 3]), f(&[1, 3, 6, 6])] |a| Float(
            B::conv_transpose2d_weight_backward(a.f(), a.f(), a.f(), transposed::<2>()));
        conv_transpose2d_bias_backward [f(&[1, 2, 4, 4]), f(&[3]), f(&[1, 3, 6, 6])] |a| Float(
            B::conv_transpose2d_bias_backward(a.f(), a.f(), a.f()));
        conv_transpose3d [f(&[1, 2, 2, 2, 2]), f(&[2, 2, 2, 2, 2]), f(&[2])] |a| Float(
            B::conv_transpose3d(a.f(), a.f(), Some(a.f()), transposed::<3>()));
        conv_transpose3d_x_backward [f(&[2, 2, 2, 2, 2]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv_transpose3d_x_backward(a.f(), a.f(), transposed::<3>()));
        conv_transpose3d_weight_backward [f(&[1, 2, 2, 2, 2]), f(&[2, 2, 2, 2, 2]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv_transpose3d_weight_backward(a.f(), a.f(), a.f(), transposed::<3>()));
        conv_transpose3d_bias_backward [f(&[1, 2, 2, 2, 2]), f(&[2]), f(&[1, 2, 3, 3, 3])] |a| Float(
            B::conv_transpose3d_bias_backward(a.f(), a.f(), a.f()));
        unfold4d [f(&[1, 2, 4, 4])] |a| Float(
            B::unfold4d(a.f(), [2, 2], UnfoldOptions::new([1, 1], [0, 0], [1, 1])));
        avg_pool1d [f(&[1, 2, 6])] |a| Float(B::avg_pool1d(a.f(), 2, 2, 0, true, false));
        avg_pool1d_backward [f(&[1, 2, 6]), f(&[1, 2, 3])] |a| Float(
            B::avg_pool1d_backward(a.f(), a.f(), 2, 2, 0, true, false));
        avg_pool2d [f(&[1, 2, 4, 4])] |a| Float(B::avg_pool2d(a.f(), [2, 2], [2, 2], [0, 0], true, false));
        avg_pool2d_backward [f(&[1, 2, 4, 4]), f(&[1, 2, 2, 2])] |a| Float(
            B::avg_pool2d_backward(a.f(), a.f(), [2, 2], [2, 2], [0, 0], true, false));
        adaptive_avg_pool2d [f(&[1, 2, 4, 4])] |a| Float(B::adaptive_avg_pool2d(a.f(), [2, 2]));
        adaptive_avg_pool2d_backward [f(&[1, 2, 4, 4]), f(&[1, 2, 2, 2])] |a| Float(
            B::adaptive_avg_pool2d_backward(a.f(), a.f()));
        adaptive_avg_pool1d [f(&[1, 2, 6])] |a| Float(B::adaptive_avg_pool1d(a.f(), 3));
        adaptive_avg_pool1d_backward [f(&[1, 2, 6]), f(&[1, 2, 3])] |a| Float(
            B::adaptive_avg_pool1d_backward(a.f(), a.f()));
        max_pool1d [f(&[1, 2, 6])] |a| Float(B::max_pool1d(a.f(), 2, 2, 0, 1, false));
        max_pool2d [f(&[1, 2, 4, 4])] |a| Float(B::max_pool2d(a.f(), [2, 2], [2, 2], [0, 0], [1, 1], false));
        max_pool1d_with_indices_backward [f(&[1, 2, 6]), f(&[1, 2, 3]), Int(vec![1, 2, 3], 6)] |a| Float(
            B::max_pool1d_with_indices_backward(a.f(), 2, 2, 0, 1, false, a.f(), a.i()).x_grad);
        max_pool2d_with_indices_backward [f(&[1, 2, 4, 4]), f(&[1, 2, 2, 2]), Int(vec![1, 2, 2, 2], 16)] |a| Float(
            B::max_pool2d_with_indices_backward(
                a.f(), [2, 2], [2, 2], [0, 0], [1, 1], false, a.f(), a.i()).x_grad);
        interpolate [f(&[1, 2, 3, 3])] |a| Float(B::interpolate(a.f(), [6, 6], interpolate()));
        interpolate_backward [f(&[1, 2, 3, 3]), f(&[1, 2, 6, 6])] |a| Float(
            B::interpolate_backward(a.f(), a.f(), [6, 6], InterpolateOptions::new(InterpolateMode::Nearest)));
        attention [f(&[1, 2, 4, 8]), f(&[1, 2, 4, 8]), f(&[1, 2, 4, 8]), Input::Bool(vec![1, 2, 4, 4]),
                   f(&[1, 2, 4, 4])] |a| Float({
            let (q, k, v) = (a.f(), a.f(), a.f());
            let (mask, bias) = (a.b(), a.f());
            B::attention(q, k, v, Some(mask), Some(bias), AttentionModuleOptions::default())
        });
        layer_norm [f(&[2, 4]), f(&[4]), f(&[4])] |a| Float(B::layer_norm(a.f(), a.f(), Some(a.f()), 1e-5));
        ctc_loss [f(&[4, 1, 3]), Ints2(), Ints(vec![4]), Ints(vec![2])] |a| Float({
            let p = a.f();
            B::ctc_loss(p, a.i(), a.i(), a.i(), 0)
        });
        has_ctc_loss_backward [] |a| Text({
            let _ = &a.types;
            format!("{}", B::has_ctc_loss_backward())
        });
        ctc_loss_backward [f(&[4, 1, 3]), Ints2(), Ints(vec![4]), Ints(vec![2]), Fraction(vec![1])] |a| Float({
            let p = a.f();
            B::ctc_loss_backward(p, a.i(), a.i(), a.i(), a.f(), 0)
        });
        irfft [f(&[2, 5]), f(&[2, 5])] |a| Float(B::irfft(a.f(), a.f(), 1, None));
    }
    cases! { c, many:
        max_pool1d_with_indices [f(&[1, 2, 6])] |a| {
            let out = B::max_pool1d_with_indices(a.f(), 2, 2, 0, 1, false);
            vec![Value::Float(out.output), Value::Int(out.indices)]
        };
        max_pool2d_with_indices [f(&[1, 2, 4, 4])] |a| {
            let out = B::max_pool2d_with_indices(a.f(), [2, 2], [2, 2], [0, 0], [1, 1], false);
            vec![Value::Float(out.output), Value::Int(out.indices)]
        };
        deform_conv2d_backward [f(&[1, 2, 4, 4]), f(&[1, 18, 4, 4]), f(&[3, 2, 3, 3]), f(&[1, 9, 4, 4]), f(&[3]),
                                f(&[1, 3, 4, 4])] |a| {
            let out = B::deform_conv2d_backward(
                a.f(), a.f(), a.f(), Some(a.f()), Some(a.f()), a.f(), deform());
            let all = [Some(out.x_grad), Some(out.offset_grad), Some(out.weight_grad), out.mask_grad, out.bias_grad];
            all.into_iter().flatten().map(Value::Float).collect()
        };
        rfft [f(&[2, 8])] |a| {
            let (re, im) = B::rfft(a.f(), 1, None);
            vec![Value::Float(re), Value::Float(im)]
        };
        tr_execute [f(&[2, 3]), Int(vec![3], 5), Input::Bool(vec![4]), f(&[1])] |a| {
            let (x, i, b, y) = (a.f(), a.i(), a.b(), a.f());
            let all = TransactionPrimitive::<B>::new(vec![x, y], vec![], vec![i], vec![b]);
            let data = read_sync(B::tr_execute(all)).expect("it can be read");
            let read = [data.read_floats, data.read_ints, data.read_bools].concat();
            vec![Value::Text(format!("{read:?}"))]
        };
    }
    c
}

/// Two labels of a sequence.
#[allow(non_snake_case)]
fn Ints2() -> Input {
    Int(vec![1, 2], 2)
}
