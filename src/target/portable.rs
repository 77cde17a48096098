//! The backends that need no more than the portable way.

#[cfg(any(feature = "flex", feature = "ndarray"))]
use super::OffloadTarget;

#[cfg(feature = "flex")]
impl OffloadTarget for burn_flex::Flex {}

#[cfg(feature = "ndarray")]
impl<E, I, Q> OffloadTarget for burn_ndarray::NdArray<E, I, Q>
where
    burn_ndarray::NdArrayTensor: From<burn_ndarray::SharedArray<E>>,
    burn_ndarray::NdArrayTensor: From<burn_ndarray::SharedArray<I>>,
    E: burn_ndarray::FloatNdArrayElement,
    I: burn_ndarray::IntNdArrayElement,
    Q: burn_ndarray::QuantElement,
{
}
