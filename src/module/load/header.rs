//! The header of a safetensors file, and other JSON from files that nobody vouches for.

use std::{fmt, marker::PhantomData, ops::Range};

use safetensors::tensor::{Dtype, TensorInfo};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::error::HeaderError;

/// As much as the safetensors library reads.
pub const MOST_HEADER: u64 = 100_000_000;

const LENGTH: u64 = size_of::<u64>() as u64;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub bytes: Range<u64>,
}

/// The length of the header, from the first bytes of a file of `len` bytes.
pub fn length(start: &[u8], len: u64) -> Result<u64, HeaderError> {
    let Some((length, _)) = start.split_first_chunk() else {
        return Err(HeaderError::NoLength { len });
    };
    let length = u64::from_le_bytes(*length);
    let left = len.saturating_sub(LENGTH);
    if length > MOST_HEADER {
        return Err(HeaderError::TooLong {
            len: length,
            most: MOST_HEADER,
        });
    }
    if length > left {
        return Err(HeaderError::Truncated { len: length, left });
    }
    Ok(length)
}

/// The tensors of a file of `len` bytes, by its header, in the order of their bytes.
pub fn tensors(header: &[u8], len: u64) -> Result<Vec<Tensor>, HeaderError> {
    let json = |err: serde_json::Error| HeaderError::Json {
        reason: err.to_string(),
    };
    let Pairs(pairs) = serde_json::from_slice::<Pairs<Entry>>(header).map_err(json)?;
    let start = LENGTH + header.len() as u64;
    let data = len.saturating_sub(start);
    let mut tensors = Vec::with_capacity(pairs.len());
    let mut names = std::collections::HashSet::with_capacity(pairs.len());
    for (name, entry) in pairs {
        if !names.insert(name.clone()) {
            return Err(HeaderError::Duplicate { name });
        }
        let info = match entry {
            Entry::Tensor(info) => info,
            Entry::Other if name == "__metadata__" => continue,
            Entry::Other => {
                return Err(HeaderError::Json {
                    reason: format!("`{name}` has no known `dtype`, `shape` and `data_offsets`"),
                });
            }
        };
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if from > to || to > data {
            return Err(HeaderError::OutOfRange {
                name,
                from,
                to,
                len: data,
            });
        }
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |bits, size| bits.checked_mul(*size));
        if bits.map(|bits| bits as u64) != (to - from).checked_mul(8) {
            return Err(HeaderError::Size {
                name,
                dtype: format!("{:?}", info.dtype),
                shape: info.shape,
                found: to - from,
                expected: match bits {
                    Some(bits) => (bits as f64 / 8.0).to_string(),
                    None => "more than there can be".into(),
                },
            });
        }
        tensors.push(Tensor {
            name,
            dtype: info.dtype,
            shape: info.shape,
            bytes: start + from..start + to,
        });
    }
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    let mut end = start;
    let mut last = "";
    for tensor in &tensors {
        if tensor.bytes.start < end {
            return Err(HeaderError::Overlap {
                first: last.into(),
                second: tensor.name.clone(),
            });
        }
        hole(start, end, tensor.bytes.start)?;
        end = tensor.bytes.end;
        last = &tensor.name;
    }
    hole(start, end, len)?;
    Ok(tensors)
}

fn hole(start: u64, from: u64, to: u64) -> Result<(), HeaderError> {
    if from < to {
        return Err(HeaderError::Hole {
            from: from - start,
            to: to - start,
        });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(TensorInfo),
    #[serde(deserialize_with = "ignored")]
    Other,
}

fn ignored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(deserializer).map(drop)
}

/// A JSON object as it is written: a name may come twice.
pub struct Pairs<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Collect<V> {
            type Value = Pairs<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}}"#;

    fn read(header: &[u8], data: u64) -> Result<Vec<Tensor>, HeaderError> {
        tensors(header, LENGTH + header.len() as u64 + data)
    }

    #[test]
    fn a_sound_header_gives_its_tensors_in_order() {
        let found = read(GOOD.as_bytes(), 14).unwrap();
        let start = LENGTH + GOOD.len() as u64;
        assert_eq!(found[0].bytes, start..start + 8);
        assert_eq!(
            (found[1].name.as_str(), &found[1].shape[..]),
            ("b", &[1, 3][..])
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_crash(bytes: Vec<u8>, len: u64) {
            let _any = length(&bytes, len).is_ok();
            let _any = tensors(&bytes, len).is_ok();
        }

        // Every accepted header describes its file completely and without overlap.
        #[test]
        fn a_changed_header_is_refused_or_still_covers_its_file(
            changes in prop::collection::vec((0..GOOD.len(), any::<u8>()), 1..4),
            data in prop_oneof![Just(14u64), any::<u64>()],
        ) {
            let mut header = GOOD.as_bytes().to_vec();
            for (at, byte) in changes {
                header[at] = byte;
            }
            let len = (LENGTH + header.len() as u64).saturating_add(data);
            if let Ok(found) = tensors(&header, len) {
                let mut end = LENGTH + header.len() as u64;
                for tensor in found {
                    prop_assert_eq!(tensor.bytes.start, end);
                    end = tensor.bytes.end;
                }
                prop_assert_eq!(end, len);
            }
        }

        #[test]
        fn any_numbers_in_a_sound_form_are_no_crash(
            shape: Vec<u64>, from: u64, to: u64, data: u64,
        ) {
            let header = format!(
                r#"{{"a":{{"dtype":"F64","shape":{shape:?},"data_offsets":[{from},{to}]}}}}"#
            );
            let len = (LENGTH + header.len() as u64).saturating_add(data);
            if let Ok(found) = tensors(header.as_bytes(), len) {
                prop_assert_eq!(found[0].bytes.end - found[0].bytes.start, data);
            }
        }
    }
}
