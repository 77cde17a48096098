use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn_backend::{
    AutodiffBackend, Backend,
    tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor},
};

// With the feature, Burn's `Autodiff` is a backend for gradients only over one that has collectives.
#[cfg(not(feature = "distributed"))]
use burn_backend::Backend as Differentiable;
#[cfg(feature = "distributed")]
use burn_backend::distributed::DistributedBackend as Differentiable;

use crate::{
    backend::{Offloaded, OffloadedTensor},
    target::{Bool, Float, Int, OffloadTarget, Quantized},
};

/// A backend whose tensors are [`Offloaded`]'s: that itself, or `Autodiff` over it.
pub trait OffloadBackend: Backend {
    /// The wrapped backend.
    type Target: OffloadTarget<Device = Self::Device>;

    /// The offloaded tensor in a float tensor.
    fn float_inner(tensor: FloatTensor<Self>) -> OffloadedTensor<Self::Target, Float>;
    /// A float tensor of an offloaded one, outside any graph.
    fn float_from_inner(tensor: OffloadedTensor<Self::Target, Float>) -> FloatTensor<Self>;
    /// The offloaded tensor in an integer tensor.
    fn int_inner(tensor: IntTensor<Self>) -> OffloadedTensor<Self::Target, Int>;
    /// An integer tensor of an offloaded one.
    fn int_from_inner(tensor: OffloadedTensor<Self::Target, Int>) -> IntTensor<Self>;
    /// The offloaded tensor in a boolean tensor.
    fn bool_inner(tensor: BoolTensor<Self>) -> OffloadedTensor<Self::Target, Bool>;
    /// A boolean tensor of an offloaded one.
    fn bool_from_inner(tensor: OffloadedTensor<Self::Target, Bool>) -> BoolTensor<Self>;
    /// The offloaded tensor in a quantized tensor.
    fn quantized_inner(tensor: QuantizedTensor<Self>) -> OffloadedTensor<Self::Target, Quantized>;
    /// A quantized tensor of an offloaded one.
    fn quantized_from_inner(
        tensor: OffloadedTensor<Self::Target, Quantized>,
    ) -> QuantizedTensor<Self>;
}

macro_rules! identity {
    ($($kind:ident, $tensor:ident, $inner:ident, $from_inner:ident;)*) => {$(
        fn $inner(tensor: $tensor<Self>) -> OffloadedTensor<B, $kind> {
            tensor
        }
        fn $from_inner(tensor: OffloadedTensor<B, $kind>) -> $tensor<Self> {
            tensor
        }
    )*};
}

impl<B: OffloadTarget> OffloadBackend for Offloaded<B> {
    type Target = B;

    identity! {
        Float, FloatTensor, float_inner, float_from_inner;
        Int, IntTensor, int_inner, int_from_inner;
        Bool, BoolTensor, bool_inner, bool_from_inner;
        Quantized, QuantizedTensor, quantized_inner, quantized_from_inner;
    }
}

impl<B: OffloadTarget + Differentiable, C: CheckpointStrategy> OffloadBackend
    for Autodiff<Offloaded<B>, C>
{
    type Target = B;

    fn float_inner(tensor: FloatTensor<Self>) -> OffloadedTensor<B, Float> {
        <Self as AutodiffBackend>::inner(tensor)
    }
    fn float_from_inner(tensor: OffloadedTensor<B, Float>) -> FloatTensor<Self> {
        <Self as AutodiffBackend>::from_inner(tensor)
    }

    identity! {
        Int, IntTensor, int_inner, int_from_inner;
        Bool, BoolTensor, bool_inner, bool_from_inner;
        Quantized, QuantizedTensor, quantized_inner, quantized_from_inner;
    }
}
