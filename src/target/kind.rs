use std::{fmt, future::Future};

use burn_backend::{
    BackendTypes, ExecutionError, Shape, Slice, SliceOps, TensorData, TensorMetadata,
};
use burn_ir::{BackendIr, HandleKind, TensorHandle};

use super::Layout;

/// A change of a tensor's metadata that moves no bytes.
#[derive(Clone, Debug)]
pub enum View {
    /// Another shape over the same elements.
    Reshape(Shape),
    /// The last two dimensions swapped.
    Transpose,
    /// Two dimensions swapped.
    SwapDims(usize, usize),
    /// The dimensions in another order.
    Permute(Vec<usize>),
    /// A part of the elements.
    Slice(Vec<Slice>),
    /// Dimensions of size one repeated.
    Expand(Shape),
}

impl View {
    /// The shape that comes of it. `None` where the request does not fit `shape`, so that the
    /// backend's own method may say what is wrong.
    pub fn shape(&self, shape: &Shape) -> Option<Shape> {
        let rank = shape.rank();
        match self {
            Self::Reshape(to) => (to.num_elements() == shape.num_elements()).then(|| to.clone()),
            Self::Transpose if rank < 2 => None,
            Self::Transpose => shape.clone().swapped(rank - 2, rank - 1).ok(),
            Self::SwapDims(a, b) => shape.clone().swapped(*a, *b).ok(),
            Self::Permute(axes) => shape.clone().permuted(axes).ok(),
            Self::Slice(slices) => shape.clone().slice(slices).ok(),
            Self::Expand(to) => shape.expand(to.clone()).ok(),
        }
    }
}

/// One of Burn's kinds of tensor, as a type: what is the same for all of them, under one name.
pub trait Kind<B: BackendIr>: Clone + Copy + fmt::Debug + Send + Sync + 'static {
    /// The wrapped backend's tensor.
    type Primitive: TensorMetadata + 'static;

    /// Whether views of an offloaded tensor may wait until the tensor is read. Not where a view
    /// changes the element type, as with block-quantized tensors.
    const LAZY_VIEWS: bool;

    /// The tensor behind a handle.
    fn from_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive;
    /// The tensor, its kind as a value.
    fn erase(tensor: Self::Primitive) -> HandleKind<B>;
    /// A tensor from host data.
    fn from_data(data: TensorData, device: &B::Device) -> Self::Primitive;
    /// A tensor from host data that lies as `layout` says.
    fn from_stored(data: TensorData, layout: &Layout, device: &B::Device) -> Self::Primitive {
        let tensor = Self::from_data(data, device);
        match layout.transposed {
            true => Self::view(tensor, View::Transpose),
            false => tensor,
        }
    }
    /// A tensor's data, on the host.
    fn into_data(
        tensor: Self::Primitive,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send;
    /// The tensor's device.
    fn device(tensor: &Self::Primitive) -> B::Device;
    /// The tensor on another device.
    fn to_device(tensor: Self::Primitive, device: &B::Device) -> Self::Primitive;
    /// A view of the tensor, by the wrapped backend's own method.
    fn view(tensor: Self::Primitive, view: View) -> Self::Primitive;
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, $primitive:ident, lazy: $lazy:literal, $from_handle:ident,
     $from_data:ident, $into_data:ident, $device:ident, $to_device:ident, $reshape:ident,
     $transpose:ident, $swap_dims:ident, $permute:ident, $slice:ident, $expand:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $kind;

        impl<B: BackendIr> Kind<B> for $kind {
            type Primitive = <B as BackendTypes>::$primitive;
            const LAZY_VIEWS: bool = $lazy;

            fn from_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive {
                B::$from_handle(handle)
            }
            fn erase(tensor: Self::Primitive) -> HandleKind<B> {
                HandleKind::$kind(tensor)
            }
            fn from_data(data: TensorData, device: &B::Device) -> Self::Primitive {
                B::$from_data(data, device)
            }
            fn into_data(
                tensor: Self::Primitive,
            ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
                B::$into_data(tensor)
            }
            fn device(tensor: &Self::Primitive) -> B::Device {
                B::$device(tensor)
            }
            fn to_device(tensor: Self::Primitive, device: &B::Device) -> Self::Primitive {
                B::$to_device(tensor, device)
            }
            #[inline]
            fn view(tensor: Self::Primitive, view: View) -> Self::Primitive {
                match view {
                    View::Reshape(shape) => B::$reshape(tensor, shape),
                    View::Transpose => B::$transpose(tensor),
                    View::SwapDims(a, b) => B::$swap_dims(tensor, a, b),
                    View::Permute(axes) => B::$permute(tensor, &axes),
                    View::Slice(slices) => B::$slice(tensor, &slices),
                    View::Expand(shape) => B::$expand(tensor, shape),
                }
            }
        }
    };
}

kind!(
    /// Tensors of floating point elements.
    Float, FloatTensorPrimitive, lazy: true, float_tensor, float_from_data, float_into_data,
    float_device, float_to_device, float_reshape, float_transpose, float_swap_dims, float_permute,
    float_slice, float_expand
);
kind!(
    /// Tensors of integers.
    Int, IntTensorPrimitive, lazy: true, int_tensor, int_from_data, int_into_data, int_device,
    int_to_device, int_reshape, int_transpose, int_swap_dims, int_permute, int_slice, int_expand
);
kind!(
    /// Tensors of booleans.
    Bool, BoolTensorPrimitive, lazy: true, bool_tensor, bool_from_data, bool_into_data,
    bool_device, bool_to_device, bool_reshape, bool_transpose, bool_swap_dims, bool_permute,
    bool_slice, bool_expand
);
kind!(
    /// Tensors of quantized floating point elements.
    Quantized, QuantizedTensorPrimitive, lazy: false, quantized_tensor, q_from_data, q_into_data,
    q_device, q_to_device, q_reshape, q_transpose, q_swap_dims, q_permute, q_slice, q_expand
);
