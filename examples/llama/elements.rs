//! Numbers as a checkpoint has them, and as tensors do.

use std::{num::NonZero, thread};

use burn::tensor::{DType, Element, ElementConversion, Shape, TensorData, bf16, f16};

/// The tensor of the given shape and `dtype` that `bytes` are, as numbers of type `stored` in little-endian
/// order; or the transpose of the matrix that they are.
pub fn decode(
    bytes: &[u8],
    stored: DType,
    dtype: DType,
    shape: Shape,
    transposed: bool,
) -> TensorData {
    match dtype {
        DType::BF16 => decode_as::<bf16>(bytes, stored, shape, transposed),
        DType::F16 => decode_as::<f16>(bytes, stored, shape, transposed),
        _ => decode_as::<f32>(bytes, stored, shape, transposed),
    }
}

/// The bytes of a tensor's numbers as bf16.
pub fn encode(data: TensorData) -> Vec<u8> {
    data.iter::<bf16>().flat_map(bf16::to_le_bytes).collect()
}

fn decode_as<E: Element>(
    bytes: &[u8],
    stored: DType,
    shape: Shape,
    transposed: bool,
) -> TensorData {
    // The width of a row in the file is the height of the tensor where they are transposed.
    let width = if transposed { shape[0] } else { 1 };
    let elements = match stored {
        DType::BF16 => gather(bytes, width, |number| {
            bf16::from_le_bytes(number).elem::<E>()
        }),
        DType::F16 => gather(bytes, width, |number| {
            f16::from_le_bytes(number).elem::<E>()
        }),
        _ => gather(bytes, width, |number| {
            f32::from_le_bytes(number).elem::<E>()
        }),
    };
    TensorData::new(elements, shape)
}

/// Columns of the file that are gathered together: at least a cache line of each row is used at once.
const COLUMNS: usize = 32;
/// Rows of the file that are.
const ROWS: usize = 128;
/// Fewer bytes than this are no work for another thread.
const BYTES_PER_THREAD: usize = 1 << 20;

/// Decodes numbers of `N` bytes in rows of `width`, column by column: with a width of 1 in their own order.
fn gather<E: Element, const N: usize>(
    bytes: &[u8],
    width: usize,
    decode: impl Fn([u8; N]) -> E + Sync,
) -> Vec<E> {
    let (numbers, _) = bytes.as_chunks::<N>();
    let mut elements = vec![E::from_elem(0.0f32); numbers.len()];
    if elements.is_empty() {
        return elements;
    }
    let threads = (bytes.len() / BYTES_PER_THREAD)
        .min(thread::available_parallelism().map_or(1, NonZero::get))
        .max(1);

    if width == 1 {
        let share = numbers.len().div_ceil(threads);
        thread::scope(|scope| {
            for (from, to) in numbers.chunks(share).zip(elements.chunks_mut(share)) {
                let decode = &decode;
                scope.spawn(move || {
                    for (from, to) in from.iter().zip(to) {
                        *to = decode(*from);
                    }
                });
            }
        });
        return elements;
    }

    let height = numbers.len() / width;
    let share = width.div_ceil(threads).next_multiple_of(COLUMNS);
    thread::scope(|scope| {
        for (index, columns) in elements.chunks_mut(share * height).enumerate() {
            let decode = &decode;
            scope.spawn(move || {
                for (part, columns) in columns.chunks_mut(COLUMNS * height).enumerate() {
                    let first = index * share + part * COLUMNS;
                    for row in (0..height).step_by(ROWS) {
                        let rows = row..(row + ROWS).min(height);
                        for (at, column) in columns.chunks_mut(height).enumerate() {
                            for row in rows.clone() {
                                column[row] = decode(numbers[row * width + first + at]);
                            }
                        }
                    }
                }
            });
        }
    });
    elements
}
