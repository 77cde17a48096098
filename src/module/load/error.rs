use std::path::PathBuf;

use crate::{error::OffloadError, host::FileError};

/// What is wrong with a safetensors header.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file has no room for the header's length.
    #[error("the file has {len} bytes, and its first 8 must be the length of the header")]
    NoLength {
        /// The file's length.
        len: u64,
    },
    /// The header is longer than any that is made.
    #[error("the header is {len} bytes long, and at most {most} are read")]
    TooLong {
        /// The header's length, as the file has it.
        len: u64,
        /// The most that are read.
        most: u64,
    },
    /// The header does not fit into the file.
    #[error("the header is {len} bytes long, and the file has {left} after its first 8")]
    Truncated {
        /// The header's length, as the file has it.
        len: u64,
        /// What the file has.
        left: u64,
    },
    /// The header is not the JSON it must be.
    #[error("the header is not as safetensors has it: {reason}")]
    Json {
        /// What is wrong, and where.
        reason: String,
    },
    /// Two tensors have one name.
    #[error("the name `{name}` comes twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A tensor's bytes are not in the file.
    #[error("`{name}` has bytes {from} to {to} of the data, and the file has {len} bytes of data")]
    OutOfRange {
        /// The tensor.
        name: String,
        /// The first byte, from the end of the header.
        from: u64,
        /// The end of the bytes.
        to: u64,
        /// The bytes after the header.
        len: u64,
    },
    /// Two tensors have bytes in common.
    #[error("`{first}` and `{second}` overlap in the file")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// Bytes of the file belong to no tensor.
    #[error("bytes {from} to {to} of the data belong to no tensor; the file may be cut or damaged")]
    Hole {
        /// The first byte, from the end of the header.
        from: u64,
        /// The end of the bytes.
        to: u64,
    },
    /// A tensor has not the bytes of its shape.
    #[error("`{name}` has {found} bytes, and its type and shape {dtype} {shape:?} make {expected}")]
    Size {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The bytes it has in the file.
        found: u64,
        /// The bytes it must have, or that there are too many.
        expected: String,
    },
}

/// Why a checkpoint was not loaded. The module it was for is gone; make another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read, or has changed.
    #[error(transparent)]
    File(#[from] FileError),

    /// A file has no bytes.
    #[error("{} is empty; the download may have failed", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },

    /// A folder has neither of the files that are looked for.
    #[error(
        "{} has neither `model.safetensors` nor `model.safetensors.index.json`; other formats are \
         to be converted to safetensors",
        folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },

    /// A file is not a sound safetensors file.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<HeaderError>,
    },

    /// An index is not as Hugging Face has it.
    #[error("{} is not an index of safetensors files: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },

    /// An index names a file outside its folder.
    #[error("{}: `{name}` is to be in {file:?}, which is no name of a file beside it", path.display())]
    IndexPath {
        /// The index.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What it says.
        file: String,
    },

    /// An index names a file that is not there.
    #[error("{}: the file {} is not there; download it", path.display(), shard.display())]
    NoShard {
        /// The index.
        path: PathBuf,
        /// The file.
        shard: PathBuf,
    },

    /// An index names a tensor that its file has not.
    #[error("{}: the tensor `{name}` is not in {}", path.display(), shard.display())]
    NotInShard {
        /// The index.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The file.
        shard: PathBuf,
    },

    /// A file has a tensor that the index does not say is there.
    #[error("{}: the tensor `{name}` is in {}, and the index does not say so", path.display(), shard.display())]
    NotInIndex {
        /// The index.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The file.
        shard: PathBuf,
    },

    /// A pattern is not a regular expression.
    #[error("the pattern {pattern:?} is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        reason: String,
    },

    /// Two tensors have one name once they are renamed.
    #[error("`{first}` and `{second}` are both renamed to `{name}`")]
    Renamed {
        /// One tensor, as the file has it.
        first: String,
        /// Another.
        second: String,
        /// What both become.
        name: String,
    },

    /// The checkpoint lacks a parameter.
    #[error("{} has no tensor for the parameter `{name}`, {shape:?} in this model", path.display())]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// The shape it has in the model.
        shape: Vec<usize>,
    },

    /// The checkpoint has tensors that the module has no place for.
    #[error(
        "{} has {} that this model has no place for: {}; ignore what may be left out with `with_ignored`",
        path.display(),
        if names.len() == 1 { "a tensor".into() } else { format!("{} tensors", names.len()) },
        in_short(names)
    )]
    Unwanted {
        /// The checkpoint.
        path: PathBuf,
        /// The tensors, as the file has them.
        names: Vec<String>,
    },

    /// A tensor has not the shape of its parameter.
    #[error("`{name}` is {found:?} in {}, and {wanted:?} in this model", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the file must have.
        wanted: Vec<usize>,
    },

    /// A tensor's type cannot become the parameter's.
    #[error("`{name}` is of type {found} in {}, which does not become {wanted}", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// The type in the file.
        found: String,
        /// What is wanted.
        wanted: String,
    },

    /// The device cannot compute with the type of a parameter.
    #[error(
        "this device does not know the type {dtype} of `{name}`; load it as another with `with_dtype`"
    )]
    Unsupported {
        /// The parameter.
        name: String,
        /// The type.
        dtype: String,
    },

    /// The policy does not fit, or the system refused memory.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

fn in_short(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
