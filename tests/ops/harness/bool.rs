//! `BoolTensorOps`.

use super::case::*;
use Input::{Bool, Int, Ints};
use burn::tensor::{Scalar, Slice, backend::Backend, read_sync};

pub fn cases<B: Backend>() -> Cases<B> {
    let mut c = Cases::<B>::new();
    let m = || Bool(vec![3, 4]);
    cases! { c:
        bool_from_data [] |a| Bool(B::bool_from_data(Bool(vec![3, 4]).data(9, a.types), &a.device));
        bool_into_data [m()] |a| Bool(a.b());
        bool_device [m()] |a| Text(format!("{:?}", B::bool_device(&a.b())));
        bool_to_device [m()] |a| Bool(B::bool_to_device(a.b(), &a.device));
        bool_argwhere [m()] |a| Int(read_sync(B::bool_argwhere(a.b(), a.types.int)));
        bool_reshape [m()] |a| Bool(B::bool_reshape(a.b(), shape(&[2, 6])));
        bool_slice [m()] |a| Bool(B::bool_slice(a.b(), &[Slice::new(1, Some(3), 1), Slice::full()]));
        bool_transpose [m()] |a| Bool(B::bool_transpose(a.b()));
        bool_swap_dims [Bool(vec![2, 3, 4])] |a| Bool(B::bool_swap_dims(a.b(), 0, 2));
        bool_permute [Bool(vec![2, 3, 4])] |a| Bool(B::bool_permute(a.b(), &[2, 0, 1]));
        bool_expand [Bool(vec![1, 4])] |a| Bool(B::bool_expand(a.b(), shape(&[2, 3, 4])));
        bool_empty [] |a| Text(format!("{:?}", burn::tensor::TensorMetadata::shape(
            &B::bool_empty(shape(&[3, 4]), &a.device, a.types.bool))));
        bool_zeros [] |a| Bool(B::bool_zeros(shape(&[3, 4]), &a.device, a.types.bool));
        bool_ones [] |a| Bool(B::bool_ones(shape(&[3, 4]), &a.device, a.types.bool));
        bool_into_int [m()] |a| Int(B::bool_into_int(a.b(), a.types.int));
        bool_into_float [m()] |a| Float(B::bool_into_float(a.b(), a.types.float));
        bool_slice_assign [m(), Bool(vec![2, 4])] |a| Bool(
            B::bool_slice_assign(a.b(), &[Slice::new(1, Some(3), 1), Slice::full()], a.b()));
        bool_mask_where [m(), m(), m()] |a| Bool(B::bool_mask_where(a.b(), a.b(), a.b()));
        bool_mask_fill [m(), m()] |a| Bool(B::bool_mask_fill(a.b(), a.b(), Scalar::Bool(true)));
        bool_scatter_or [m(), Int(vec![2, 4], 3), Bool(vec![2, 4])] |a| Bool({
            let (t, i, v) = (a.b(), a.i(), a.b());
            B::bool_scatter_or(0, t, i, v)
        });
        bool_select_or [m(), Ints(vec![2, 0]), Bool(vec![2, 4])] |a| Bool({
            let (t, i, v) = (a.b(), a.i(), a.b());
            B::bool_select_or(t, 0, i, v)
        });
        bool_gather [m(), Int(vec![2, 4], 3)] |a| Bool(B::bool_gather(0, a.b(), a.i()));
        bool_select [m(), Ints(vec![2, 0, 2])] |a| Bool(B::bool_select(a.b(), 0, a.i()));
        bool_repeat_dim [m()] |a| Bool(B::bool_repeat_dim(a.b(), 1, 3));
        bool_cat [m(), m()] |a| Bool(B::bool_cat(vec![a.b(), a.b()], 1));
        bool_equal [m(), m()] |a| Bool(B::bool_equal(a.b(), a.b()));
        bool_not_equal [m(), m()] |a| Bool(B::bool_not_equal(a.b(), a.b()));
        bool_equal_elem [m()] |a| Bool(B::bool_equal_elem(a.b(), Scalar::Bool(true)));
        bool_not_equal_elem [m()] |a| Bool(B::bool_not_equal_elem(a.b(), Scalar::Bool(true)));
        bool_not [m()] |a| Bool(B::bool_not(a.b()));
        bool_and [m(), m()] |a| Bool(B::bool_and(a.b(), a.b()));
        bool_or [m(), m()] |a| Bool(B::bool_or(a.b(), a.b()));
        bool_xor [m(), m()] |a| Bool(B::bool_xor(a.b(), a.b()));
        bool_flip [m()] |a| Bool(B::bool_flip(a.b(), &[0, 1]));
        bool_any [m()] |a| Bool(B::bool_any(a.b()));
        bool_any_dim [m()] |a| Bool(B::bool_any_dim(a.b(), 1));
        bool_all [m()] |a| Bool(B::bool_all(a.b()));
        bool_all_dim [m()] |a| Bool(B::bool_all_dim(a.b(), 1));
        bool_unfold [m()] |a| Bool(B::bool_unfold(a.b(), 1, 2, 1));
    }
    c
}
