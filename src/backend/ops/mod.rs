//! Burn's operation traits, forwarded to the wrapped backend: one file a trait.
//!
//! Every method is listed, those with default bodies too, so that the wrapped backend's own faster
//! versions are used. The lists are Burn's signatures; `forward!` turns each into a call with every
//! tensor argument read ([`Lower`]) and every tensor result taken in ([`Lift`]).

mod activation;
mod bool;
mod convert;
#[cfg(feature = "distributed")]
#[allow(unsafe_code)]
mod distributed;
mod float;
mod int;
mod module;
mod quantized;
mod transaction;

use convert::{Lift, Lower};

/// Operations that the wrapped backend does. They read their operands' bytes about once, if nothing
/// else is said: `reads Often:` for products, `reads Rows:` for those that pick some;
/// `random:` for those whose result a model may be initialised with.
macro_rules! forward {
    (@ $reuse:ident, $watch:path: $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {$(
        #[inline]
        fn $name($($arg: $ty),*) -> $ret {
            if watch::is_quiet() {
                // Made where it is returned.
                return Lift::lift(B::$name($(Lower::lower($arg, Reuse::$reuse)),*));
            }
            let op = Op::enter();
            let output = B::$name($(Lower::lower($arg, Reuse::$reuse)),*);
            drop(op);
            $watch(Lift::lift(output))
        }
    )*};
    (reads $reuse:ident: $($operations:tt)*) => { forward! { @ $reuse, Lift::watch: $($operations)* } };
    (random: $($operations:tt)*) => {
        forward! { @ Once, OffloadedTensor::watch_made: $($operations)* }
    };
    ($($operations:tt)*) => { forward! { reads Once: $($operations)* } };
}

/// An operation that moves no bytes. Of an offloaded tensor it is put off until that is read.
macro_rules! views {
    ($(fn $name:ident($tensor:ident: $ty:ty $(, $arg:ident: $arg_ty:ty)*) => $view:expr;)*) => {$(
        #[inline]
        fn $name($tensor: $ty $(, $arg: $arg_ty)*) -> $ty {
            match $tensor.into_plain() {
                Ok(tensor) if watch::is_quiet() => <$ty>::plain(B::$name(tensor $(, $arg)*)),
                Ok(tensor) => {
                    let op = Op::enter();
                    let output = B::$name(tensor $(, $arg)*);
                    drop(op);
                    OffloadedTensor::adopt(output)
                }
                Err(tensor) => tensor.view($view),
            }
        }
    )*};
}

use {forward, views};

mod prelude {
    pub(super) use super::{Lift, Lower, forward, views};
    pub(super) use crate::{
        access::Reuse,
        backend::{Offloaded, OffloadedTensor},
        host::{Op, watch},
        target::{Kind, OffloadTarget, View},
    };
    pub(super) use burn_backend::{
        BoolDType, Distribution, ExecutionError, FloatDType, IntDType, Scalar, Shape, Slice,
        TensorData, TensorPrimitive, ops::*, quantization::*, tensor::*,
    };
    pub(super) use std::ops::Range;
}
