//! A case: an operation on some tensors, the same for every backend.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Shape, TensorData,
    backend::Backend,
    ops::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor},
    quantization::QuantScheme,
    read_sync,
};

/// A tensor of any kind.
pub enum Value<B: Backend> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
    Bool(BoolTensor<B>),
    Quantized(QuantizedTensor<B>),
    /// What is no tensor, as text.
    Text(String),
}

impl<B: Backend> Clone for Value<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Float(t) => Self::Float(t.clone()),
            Self::Int(t) => Self::Int(t.clone()),
            Self::Bool(t) => Self::Bool(t.clone()),
            Self::Quantized(t) => Self::Quantized(t.clone()),
            Self::Text(text) => Self::Text(text.clone()),
        }
    }
}

/// What a value is, for comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Tensor(TensorData),
    Text(String),
}

impl<B: Backend> Value<B> {
    pub fn read(self) -> Data {
        let data = match self {
            Self::Float(t) => read_sync(B::float_into_data(t)),
            Self::Int(t) => read_sync(B::int_into_data(t)),
            Self::Bool(t) => read_sync(B::bool_into_data(t)),
            Self::Quantized(t) => read_sync(B::q_into_data(t)),
            Self::Text(text) => return Data::Text(text),
        };
        Data::Tensor(data.expect("it can be read"))
    }
}

/// An operand.
#[derive(Clone, Debug)]
pub enum Input {
    /// Of both signs, about 1.
    Float(Vec<usize>),
    /// From 0.1 to 0.9.
    Fraction(Vec<usize>),
    /// From 0 up to the number, less one.
    Int(Vec<usize>, i64),
    /// These integers, in one dimension.
    Ints(Vec<i64>),
    Bool(Vec<usize>),
    Quantized(Vec<usize>),
}

/// The element types a case is run with.
#[derive(Clone, Copy, Debug)]
pub struct Types {
    pub float: FloatDType,
    pub int: IntDType,
    pub bool: BoolDType,
    pub scheme: QuantScheme,
}

impl Input {
    /// The operand's data. `seed` tells operands of one case apart.
    pub fn data(&self, seed: usize, types: Types) -> TensorData {
        let numbers = |shape: &[usize]| -> Vec<u64> {
            let count = shape.iter().product();
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ ((seed as u64 + 1) << 20);
            let next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state >> 16
            };
            std::iter::repeat_with(next).take(count).collect()
        };
        let floats = |shape: &[usize], low: f32, high: f32| {
            let unit = |n: u64| (n % 10_007) as f32 / 10_007.0;
            let values: Vec<f32> = numbers(shape)
                .into_iter()
                .map(|n| low + unit(n) * (high - low))
                .collect();
            TensorData::new(values, shape.to_vec())
        };
        match self {
            Self::Float(shape) | Self::Quantized(shape) => {
                floats(shape, -1.5, 1.5).convert_dtype(types.float.into())
            }
            Self::Fraction(shape) => floats(shape, 0.1, 0.9).convert_dtype(types.float.into()),
            Self::Int(shape, below) => {
                let values: Vec<i64> = numbers(shape)
                    .into_iter()
                    .map(|n| (n % *below as u64) as i64)
                    .collect();
                TensorData::new(values, shape.clone()).convert_dtype(types.int.into())
            }
            Self::Ints(values) => {
                TensorData::new(values.clone(), [values.len()]).convert_dtype(types.int.into())
            }
            Self::Bool(shape) => {
                let values: Vec<bool> = numbers(shape).into_iter().map(|n| n % 3 == 0).collect();
                TensorData::new(values, shape.clone()).convert_dtype(types.bool.into())
            }
        }
    }

    /// The operand on a backend, of data that `B` made of a quantized one.
    pub fn value<B: Backend>(&self, data: TensorData, device: &B::Device) -> Value<B> {
        match self {
            Self::Float(_) | Self::Fraction(_) => Value::Float(B::float_from_data(data, device)),
            Self::Int(..) | Self::Ints(_) => Value::Int(B::int_from_data(data, device)),
            Self::Bool(_) => Value::Bool(B::bool_from_data(data, device)),
            Self::Quantized(_) => Value::Quantized(B::q_from_data(data, device)),
        }
    }
}

/// The operands of a case, to be taken in order.
pub struct Args<B: Backend> {
    pub values: std::vec::IntoIter<Value<B>>,
    pub types: Types,
    pub device: B::Device,
}

macro_rules! take {
    ($($name:ident, $kind:ident, $tensor:ident;)*) => {$(
        pub fn $name(&mut self) -> $tensor<B> {
            match self.values.next() {
                Some(Value::$kind(tensor)) => tensor,
                _ => panic!("the case has no such operand here"),
            }
        }
    )*};
}

impl<B: Backend> Args<B> {
    take! {
        f, Float, FloatTensor;
        i, Int, IntTensor;
        b, Bool, BoolTensor;
        q, Quantized, QuantizedTensor;
    }
}

pub type Run<B> = Box<dyn Fn(&mut Args<B>) -> Vec<Value<B>>>;

/// An operation and its operands.
pub struct Case<B: Backend> {
    /// The method's name.
    pub name: &'static str,
    pub inputs: Vec<Input>,
    pub run: Run<B>,
}

/// One trait's cases.
pub type Cases<B> = Vec<Case<B>>;

pub fn shape(dims: &[usize]) -> Shape {
    Shape::from(dims.to_vec())
}

/// `case!(out, cases, B, method, [inputs], |a| expression)`: the method's name is the case's.
#[macro_export]
macro_rules! cases {
    ($cases:ident: $($name:ident [$($input:expr),*] |$a:ident| $kind:ident($body:expr);)*) => {$(
        $cases.push(Case {
            name: stringify!($name),
            inputs: vec![$($input),*],
            run: Box::new(|$a| vec![Value::$kind($body)]),
        });
    )*};
    ($cases:ident, many: $($name:ident [$($input:expr),*] |$a:ident| $body:expr;)*) => {$(
        $cases.push(Case {
            name: stringify!($name),
            inputs: vec![$($input),*],
            run: Box::new(|$a| $body),
        });
    )*};
}
