//! `ActivationOps`.

use super::case::*;
use Input::{Float, Fraction};
use burn::tensor::{Scalar, backend::Backend};

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let m = || Float(vec![3, 4]);
    cases! { c:
        leaky_relu [m()] |a| Float(B::leaky_relu(a.f(), Scalar::Float(0.1)));
        relu [m()] |a| Float(B::relu(a.f()));
        relu_backward [m(), m()] |a| Float(B::relu_backward(a.f(), a.f()));
        gelu [m()] |a| Float(B::gelu(a.f()));
        prelu [m(), m()] |a| Float(B::prelu(a.f(), a.f()));
        gelu_backward [m(), m()] |a| Float(B::gelu_backward(a.f(), a.f()));
        sigmoid [m()] |a| Float(B::sigmoid(a.f()));
        sigmoid_backward [Fraction(vec![3, 4]), m()] |a| Float(B::sigmoid_backward(a.f(), a.f()));
        hard_sigmoid [m()] |a| Float(B::hard_sigmoid(a.f(), Scalar::Float(0.2), Scalar::Float(0.5)));
        log_sigmoid [m()] |a| Float(B::log_sigmoid(a.f()));
        softmax [m()] |a| Float(B::softmax(a.f(), 1));
        log_softmax [m()] |a| Float(B::log_softmax(a.f(), 1));
        softmin [m()] |a| Float(B::softmin(a.f(), 1));
        log_sigmoid_backward [m(), m()] |a| Float(B::log_sigmoid_backward(a.f(), a.f()));
    }
    c
}
