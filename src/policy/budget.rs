//! The cap a policy obeys, and sizes as configuration files write them.

use std::fmt;

use bytesize::ByteSize;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::PolicyError;

/// How many bytes of parameters may be where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// At most this many bytes are offloaded. A parameter that does not fit what is left stays
    /// resident, and a smaller one after it may still be offloaded.
    Host(ByteSize),
    /// At most this many bytes stay resident. A parameter that does not fit what is left is
    /// offloaded, and a smaller one after it may still stay.
    ///
    /// Parameters that are never offloaded (kept, or not selected) count against it too.
    Device(ByteSize),
    /// Every parameter is offloaded, whatever its name.
    Everything,
    /// No parameter is offloaded.
    Nothing,
}

/// The memory a [`Budget`] caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Device,
}

/// A size as a configuration file has it: bytes, or a text still to be parsed.
///
/// Parsing waits until the field is known, so that the error can name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RawSize {
    Bytes(u64),
    Text(String),
}

impl RawSize {
    pub(super) fn parse(self, field: &'static str) -> Result<ByteSize, PolicyError> {
        let text = match self {
            Self::Bytes(bytes) => return Ok(ByteSize::b(bytes)),
            Self::Text(text) => text,
        };
        let trimmed = text.trim();
        match trimmed.parse::<ByteSize>() {
            // `ByteSize` saturates where a number and its unit overflow.
            Ok(size) if size.as_u64() == u64::MAX && trimmed.parse::<u64>().is_err() => {
                Err(PolicyError::SizeTooLarge { field, text })
            }
            Ok(size) => Ok(size),
            Err(_) => Err(PolicyError::BadSize { field, text }),
        }
    }
}

impl From<ByteSize> for RawSize {
    fn from(size: ByteSize) -> Self {
        Self::Bytes(size.as_u64())
    }
}

impl Serialize for RawSize {
    /// TOML integers end at `i64::MAX`; above it the digits are written as a string, which parses
    /// back exactly.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) if i64::try_from(*bytes).is_ok() => serializer.serialize_u64(*bytes),
            Self::Bytes(bytes) => serializer.collect_str(bytes),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for RawSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = RawSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size: a whole number of bytes, or text such as \"20GiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<RawSize, E> {
                Ok(RawSize::Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<RawSize, E> {
                Ok(u64::try_from(bytes)
                    .map_or_else(|_| RawSize::Text(bytes.to_string()), RawSize::Bytes))
            }

            // `{:?}` keeps the point or the exponent, which `RawSize::parse` then refuses.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<RawSize, E> {
                Ok(RawSize::Text(format!("{number:?}")))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<RawSize, E> {
                Ok(RawSize::Text(value.to_string()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawSize, E> {
                Ok(RawSize::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, PolicyError> {
        RawSize::Text(text.to_owned())
            .parse("host_budget")
            .map(|size| size.as_u64())
    }

    #[test]
    fn sizes_in_words() {
        let gib = 1u64 << 30;
        for (text, bytes) in [
            ("0", 0),
            ("20GiB", 20 * gib),
            ("20 GiB", 20 * gib),
            (" 20 gib ", 20 * gib),
            ("20GB", 20_000_000_000),
            ("512 MiB", 512 << 20),
            ("1.5 KiB", 1536),
            ("9007199254740993 B", 9_007_199_254_740_993),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_size() {
        for text in [
            "",
            "lots",
            "GiB",
            "-5",
            "-5 GiB",
            "1e9",
            "1.5",
            "1.2.3 GiB",
            "NaN",
            "5 parsecs",
            "２０GiB",
        ] {
            assert!(
                matches!(
                    parse(text),
                    Err(PolicyError::BadSize { field: "host_budget", text: named }) if named == text
                ),
                "{text}"
            );
        }
        for text in ["16 EiB", "99999999999 TiB"] {
            assert!(
                matches!(parse(text), Err(PolicyError::SizeTooLarge { .. })),
                "{text}"
            );
        }
    }
}
