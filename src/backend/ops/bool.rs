//! Operations on boolean tensors.

use super::prelude::*;

impl<B: OffloadTarget> BoolTensorOps<Self> for Offloaded<B> {
    fn bool_from_data(data: TensorData, device: &Device<Self>) -> BoolTensor<Self> {
        OffloadedTensor::from_data(data, device)
    }

    async fn bool_into_data(tensor: BoolTensor<Self>) -> Result<TensorData, ExecutionError> {
        tensor.into_data().await
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        tensor.device()
    }

    fn bool_to_device(tensor: BoolTensor<Self>, device: &Device<Self>) -> BoolTensor<Self> {
        tensor.moved_to(device)
    }

    async fn bool_argwhere(tensor: BoolTensor<Self>, out_dtype: IntDType) -> IntTensor<Self> {
        let future = {
            let _op = Op::enter();
            B::bool_argwhere(tensor.read(), out_dtype)
        };
        OffloadedTensor::adopt(Op::enter_future(future).await)
    }

    views! {
        fn bool_reshape(tensor: BoolTensor<Self>, shape: Shape) => View::Reshape(shape);
        fn bool_slice(tensor: BoolTensor<Self>, slices: &[Slice]) => View::Slice(slices.to_vec());
        fn bool_transpose(tensor: BoolTensor<Self>) => View::Transpose;
        fn bool_swap_dims(tensor: BoolTensor<Self>, dim1: usize, dim2: usize) => View::SwapDims(dim1, dim2);
        fn bool_permute(tensor: BoolTensor<Self>, axes: &[usize]) => View::Permute(axes.to_vec());
        fn bool_expand(tensor: BoolTensor<Self>, shape: Shape) => View::Expand(shape);
    }

    forward! {
        fn bool_empty(shape: Shape, device: &Device<Self>, dtype: BoolDType) -> BoolTensor<Self>;
        fn bool_zeros(shape: Shape, device: &Device<Self>, dtype: BoolDType) -> BoolTensor<Self>;
        fn bool_ones(shape: Shape, device: &Device<Self>, dtype: BoolDType) -> BoolTensor<Self>;
        fn bool_into_int(tensor: BoolTensor<Self>, out_dtype: IntDType) -> IntTensor<Self>;
        fn bool_into_float(tensor: BoolTensor<Self>, out_dtype: FloatDType) -> FloatTensor<Self>;
        fn bool_slice_assign(
            tensor: BoolTensor<Self>,
            slices: &[Slice],
            value: BoolTensor<Self>,
        ) -> BoolTensor<Self>;
        fn bool_mask_where(
            tensor: BoolTensor<Self>,
            mask: BoolTensor<Self>,
            value: BoolTensor<Self>,
        ) -> BoolTensor<Self>;
        fn bool_mask_fill(
            tensor: BoolTensor<Self>,
            mask: BoolTensor<Self>,
            value: Scalar,
        ) -> BoolTensor<Self>;
        fn bool_scatter_or(
            dim: usize,
            tensor: BoolTensor<Self>,
            indices: IntTensor<Self>,
            value: BoolTensor<Self>,
        ) -> BoolTensor<Self>;
        fn bool_select_or(
            tensor: BoolTensor<Self>,
            dim: usize,
            indices: IntTensor<Self>,
            value: BoolTensor<Self>,
        ) -> BoolTensor<Self>;
        fn bool_repeat_dim(tensor: BoolTensor<Self>, dim: usize, times: usize) -> BoolTensor<Self>;
        fn bool_cat(tensors: Vec<BoolTensor<Self>>, dim: usize) -> BoolTensor<Self>;
        fn bool_equal(lhs: BoolTensor<Self>, rhs: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_not_equal(lhs: BoolTensor<Self>, rhs: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_equal_elem(lhs: BoolTensor<Self>, rhs: Scalar) -> BoolTensor<Self>;
        fn bool_not_equal_elem(lhs: BoolTensor<Self>, rhs: Scalar) -> BoolTensor<Self>;
        fn bool_not(tensor: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_and(lhs: BoolTensor<Self>, rhs: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_or(lhs: BoolTensor<Self>, rhs: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_xor(lhs: BoolTensor<Self>, rhs: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_flip(tensor: BoolTensor<Self>, axes: &[usize]) -> BoolTensor<Self>;
        fn bool_any(tensor: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_any_dim(tensor: BoolTensor<Self>, dim: usize) -> BoolTensor<Self>;
        fn bool_all(tensor: BoolTensor<Self>) -> BoolTensor<Self>;
        fn bool_all_dim(tensor: BoolTensor<Self>, dim: usize) -> BoolTensor<Self>;
        fn bool_unfold(
            tensor: BoolTensor<Self>,
            dim: usize,
            size: usize,
            step: usize,
        ) -> BoolTensor<Self>;
    }

    forward! { reads Rows:
        fn bool_gather(
            dim: usize,
            tensor: BoolTensor<Self>,
            indices: IntTensor<Self>,
        ) -> BoolTensor<Self>;
        fn bool_select(
            tensor: BoolTensor<Self>,
            dim: usize,
            indices: IntTensor<Self>,
        ) -> BoolTensor<Self>;
    }
}
