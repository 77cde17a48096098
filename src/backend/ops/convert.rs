use std::ops::Range;

use burn_backend::{
    BoolDType, Distribution, FloatDType, IntDType, Scalar, Shape, TensorPrimitive,
    ops::{
        AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
        DeformConvOptions, GridSampleOptions, InterpolateOptions, MaxPool1dBackward,
        MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices, UnfoldOptions,
    },
    tensor::IndexingUpdateOp,
};

use crate::{
    access::Reuse,
    backend::{Offloaded, OffloadedTensor},
    target::{Kind, OffloadTarget},
};

/// An argument, as the wrapped backend takes it.
pub trait Lower {
    /// The wrapped backend's type.
    type Inner;
    /// Reads the tensors in it, for an operation that reads their bytes so often.
    fn lower(self, reuse: Reuse) -> Self::Inner;
}

/// A result, from what the wrapped backend gave.
pub trait Lift {
    /// The wrapped backend's type.
    type Inner;
    /// Takes in the tensors in it.
    fn lift(inner: Self::Inner) -> Self;
    /// Has the tensors in it be watched: they may be parameters.
    fn watch(self) -> Self;
}

impl<B: OffloadTarget, K: Kind<B>> Lower for OffloadedTensor<B, K> {
    type Inner = K::Primitive;
    #[inline]
    fn lower(self, reuse: Reuse) -> Self::Inner {
        self.read_for(reuse)
    }
}

impl<B: OffloadTarget, K: Kind<B>> Lift for OffloadedTensor<B, K> {
    type Inner = K::Primitive;
    #[inline]
    fn lift(inner: Self::Inner) -> Self {
        Self::plain(inner)
    }
    fn watch(self) -> Self {
        OffloadedTensor::watch(self)
    }
}

impl<B: OffloadTarget> Lower for TensorPrimitive<Offloaded<B>> {
    type Inner = TensorPrimitive<B>;
    #[inline]
    fn lower(self, reuse: Reuse) -> Self::Inner {
        match self {
            Self::Float(tensor) => TensorPrimitive::Float(tensor.lower(reuse)),
            Self::QFloat(tensor) => TensorPrimitive::QFloat(tensor.lower(reuse)),
        }
    }
}

impl<B: OffloadTarget> Lift for TensorPrimitive<Offloaded<B>> {
    type Inner = TensorPrimitive<B>;
    #[inline]
    fn lift(inner: Self::Inner) -> Self {
        match inner {
            TensorPrimitive::Float(tensor) => Self::Float(Lift::lift(tensor)),
            TensorPrimitive::QFloat(tensor) => Self::QFloat(Lift::lift(tensor)),
        }
    }
    fn watch(self) -> Self {
        match self {
            Self::Float(tensor) => Self::Float(tensor.watch()),
            Self::QFloat(tensor) => Self::QFloat(tensor.watch()),
        }
    }
}

impl<T: Lower> Lower for Option<T> {
    type Inner = Option<T::Inner>;
    #[inline]
    fn lower(self, reuse: Reuse) -> Self::Inner {
        self.map(|t| t.lower(reuse))
    }
}

impl<T: Lift> Lift for Option<T> {
    type Inner = Option<T::Inner>;
    #[inline]
    fn lift(inner: Self::Inner) -> Self {
        inner.map(T::lift)
    }
    fn watch(self) -> Self {
        self.map(T::watch)
    }
}

impl<T: Lower> Lower for Vec<T> {
    type Inner = Vec<T::Inner>;
    fn lower(self, reuse: Reuse) -> Self::Inner {
        self.into_iter().map(|t| t.lower(reuse)).collect()
    }
}

impl<T: Lift, U: Lift> Lift for (T, U) {
    type Inner = (T::Inner, U::Inner);
    fn lift((t, u): Self::Inner) -> Self {
        (T::lift(t), U::lift(u))
    }
    fn watch(self) -> Self {
        (self.0.watch(), self.1.watch())
    }
}

macro_rules! lift_struct {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl<B: OffloadTarget> Lift for $name<Offloaded<B>> {
            type Inner = $name<B>;
            fn lift(inner: Self::Inner) -> Self {
                Self { $($field: Lift::lift(inner.$field)),* }
            }
            fn watch(self) -> Self {
                Self { $($field: Lift::watch(self.$field)),* }
            }
        }
    )*};
}

lift_struct! {
    MaxPool1dWithIndices { output, indices }
    MaxPool1dBackward { x_grad }
    MaxPool2dWithIndices { output, indices }
    MaxPool2dBackward { x_grad }
    DeformConv2dBackward { x_grad, offset_grad, weight_grad, mask_grad, bias_grad }
}

impl Lift for bool {
    type Inner = bool;
    fn lift(inner: bool) -> bool {
        inner
    }
    fn watch(self) -> Self {
        self
    }
}

/// Slices, schemes, devices: nothing with a tensor in it is passed by reference.
impl<'a, T: ?Sized> Lower for &'a T {
    type Inner = &'a T;
    #[inline(always)]
    fn lower(self, _: Reuse) -> &'a T {
        self
    }
}

macro_rules! lower_as_it_is {
    ($($ty:ty),* $(,)?) => {$(
        impl Lower for $ty {
            type Inner = $ty;
            #[inline(always)]
            fn lower(self, _: Reuse) -> $ty {
                self
            }
        }
    )*};
}

lower_as_it_is! {
    bool, f64, usize, [usize; 2], Range<i64>, Scalar, Shape, Distribution,
    BoolDType, FloatDType, IntDType, IndexingUpdateOp,
    AttentionModuleOptions, GridSampleOptions, InterpolateOptions, UnfoldOptions,
    ConvOptions<1>, ConvOptions<2>, ConvOptions<3>, DeformConvOptions<2>,
    ConvTransposeOptions<1>, ConvTransposeOptions<2>, ConvTransposeOptions<3>,
}
