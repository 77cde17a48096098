//! The images: see README.md here.

use burn::{
    data::dataloader::batcher::Batcher,
    tensor::{Int, Tensor, TensorData, backend::Backend},
};
use flate2::read::GzDecoder;

/// Rows of an image, and columns.
const SIDE: usize = 8;
/// The darkest.
const DARKEST: f32 = 16.0;

static CSV: &[u8] = include_bytes!("digits.csv.gz");

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("digits.csv.gz: {0}")]
    Csv(#[from] csv::Error),
    #[error(
        "digits.csv.gz, line {line}: {columns} numbers where 64 pixels and a digit are expected"
    )]
    Columns { line: usize, columns: usize },
}

/// An image and what it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    /// From 0 to 16.
    pixels: Vec<f32>,
    digit: i32,
}

/// Images `[batch, 8, 8]`, and digits `[batch]`.
#[derive(Clone, Debug)]
pub struct Batch<B: Backend> {
    pub images: Tensor<B, 3>,
    pub digits: Tensor<B, 1, Int>,
}

/// The first half, to train on, and the second.
pub fn read() -> Result<[Vec<Digit>; 2], DataError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(GzDecoder::new(CSV));
    let mut digits = Vec::new();
    for (at, row) in reader.deserialize::<Vec<f32>>().enumerate() {
        let mut pixels = row?;
        let columns = pixels.len();
        match pixels.pop() {
            Some(digit) if pixels.len() == SIDE * SIDE => digits.push(Digit {
                pixels,
                digit: digit as i32,
            }),
            _ => {
                let line = at + 1;
                return Err(DataError::Columns { line, columns });
            }
        }
    }
    let second = digits.split_off(digits.len() / 2);
    Ok([digits, second])
}

#[derive(Clone)]
pub struct Batches;

impl<B: Backend> Batcher<B, Digit, Batch<B>> for Batches {
    fn batch(&self, items: Vec<Digit>, device: &B::Device) -> Batch<B> {
        let count = items.len();
        let digits: Vec<i32> = items.iter().map(|item| item.digit).collect();
        let pixels: Vec<f32> = items.into_iter().flat_map(|item| item.pixels).collect();
        let images = TensorData::new(pixels, [count, SIDE, SIDE]);
        Batch {
            images: Tensor::<B, 3>::from_data(images, device) / DARKEST - 0.5,
            digits: Tensor::from_data(TensorData::new(digits, [count]), device),
        }
    }
}
