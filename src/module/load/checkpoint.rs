use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use burn_backend::DType;
use burn_std::BoolStore;
use safetensors::tensor::Dtype;
use serde::Deserialize;

use crate::host::{FileError, FileSlice, OpenFile};

use super::{
    error::{HeaderError, LoadError},
    header::{self, Pairs},
};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The most that is read of an index.
const MOST_INDEX: u64 = 100_000_000;

/// A checkpoint, open for reading: one safetensors file, or several with an index. Only the headers have
/// been read.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

/// What a checkpoint says of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The name, as the file has it.
    pub name: String,
    /// The shape, as the file has it.
    pub shape: Vec<usize>,
    /// The element type, as safetensors calls it.
    pub dtype: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// A tensor and where it lies.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    file: Arc<OpenFile>,
    pub tensor: header::Tensor,
}

impl Stored {
    /// Maps the tensor's bytes.
    pub fn slice(&self) -> Result<FileSlice, FileError> {
        self.file.slice(self.tensor.bytes.clone())
    }

    /// Whether the other tensor has the same type, shape and bytes.
    pub fn is_same(&self, other: &Self) -> Result<bool, FileError> {
        let (mine, theirs) = (&self.tensor, &other.tensor);
        if mine.dtype != theirs.dtype || mine.shape != theirs.shape {
            return Ok(false);
        }
        Ok(self.slice()?.bytes() == other.slice()?.bytes())
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// The type of the elements, if it is one that tensors have.
    pub fn dtype(&self) -> Option<DType> {
        Some(match self.tensor.dtype {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            Dtype::I16 => DType::I16,
            Dtype::I8 => DType::I8,
            Dtype::U64 => DType::U64,
            Dtype::U32 => DType::U32,
            Dtype::U16 => DType::U16,
            Dtype::U8 => DType::U8,
            Dtype::BOOL => DType::Bool(BoolStore::Native),
            _ => return None,
        })
    }
}

impl Checkpoint {
    /// Opens a safetensors file, an index (`*.index.json`), or a folder with `model.safetensors` or
    /// `model.safetensors.index.json` in it.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when a file cannot be read, is damaged, or does not fit the index.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        if path.is_dir() {
            let (single, index) = (path.join(SINGLE), path.join(INDEX));
            // Of both, the index may be left from an earlier download.
            return if single.exists() {
                Self::open_single(&single)
            } else if index.exists() {
                Self::open_index(&index)
            } else {
                Err(LoadError::NoWeights {
                    folder: path.to_owned(),
                })
            };
        }
        if path
            .extension()
            .is_some_and(|it| it.eq_ignore_ascii_case("json"))
        {
            Self::open_index(path)
        } else {
            Self::open_single(path)
        }
    }

    /// What was opened: the file, or the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.tensors
            .values()
            .map(|Stored { tensor, .. }| TensorInfo {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                dtype: format!("{:?}", tensor.dtype),
                bytes: tensor.bytes.end - tensor.bytes.start,
            })
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.tensors.values()
    }

    fn open_single(path: &Path) -> Result<Self, LoadError> {
        let stored = read_file(path)?;
        Ok(Self {
            path: path.to_owned(),
            tensors: stored.map(|s| (s.tensor.name.clone(), s)).collect(),
        })
    }

    fn open_index(path: &Path) -> Result<Self, LoadError> {
        let weight_map = read_index(path)?;
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, file) in &weight_map {
            let is_name = Path::new(file)
                .file_name()
                .is_some_and(|name| name == file.as_str());
            if !is_name {
                return Err(LoadError::IndexPath {
                    path: path.to_owned(),
                    name: name.clone(),
                    file: file.clone(),
                });
            }
            shards.entry(file).or_default().push(name);
        }
        let mut tensors = BTreeMap::new();
        for (file, names) in shards {
            let shard = path.with_file_name(file);
            if !shard.try_exists().unwrap_or(true) {
                return Err(LoadError::NoShard {
                    path: path.to_owned(),
                    shard,
                });
            }
            let mut found: HashMap<String, Stored> = read_file(&shard)?
                .map(|s| (s.tensor.name.clone(), s))
                .collect();
            for name in names {
                let Some(stored) = found.remove(name) else {
                    return Err(LoadError::NotInShard {
                        path: path.to_owned(),
                        name: name.into(),
                        shard,
                    });
                };
                tensors.insert(name.into(), stored);
            }
            if let Some(name) = found.into_keys().min() {
                return Err(LoadError::NotInIndex {
                    path: path.to_owned(),
                    name,
                    shard,
                });
            }
        }
        Ok(Self {
            path: path.to_owned(),
            tensors,
        })
    }
}

fn read_file(path: &Path) -> Result<impl Iterator<Item = Stored>, LoadError> {
    let broken = |source: HeaderError| LoadError::Header {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let file = OpenFile::open(path)?;
    if file.is_empty() {
        return Err(LoadError::Empty {
            path: path.to_owned(),
        });
    }
    let start = file.slice(0..file.len().min(8))?;
    let length = header::length(start.bytes(), file.len()).map_err(broken)?;
    let header = file.slice(8..8 + length)?;
    // A copy: one that somebody else may write meanwhile would be no text to trust.
    let header = header.bytes().to_vec();
    let tensors = header::tensors(&header, file.len()).map_err(broken)?;
    Ok(tensors.into_iter().map(move |tensor| Stored {
        file: file.clone(),
        tensor,
    }))
}

/// The file of each tensor.
fn read_index(path: &Path) -> Result<Vec<(String, String)>, LoadError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Pairs<String>,
    }
    let wrong = |reason: String| LoadError::Index {
        path: path.to_owned(),
        reason,
    };
    let file = OpenFile::open(path)?;
    if file.is_empty() {
        return Err(LoadError::Empty {
            path: path.to_owned(),
        });
    }
    if file.len() > MOST_INDEX {
        return Err(wrong(format!(
            "it has {} bytes, and at most {MOST_INDEX} are read",
            file.len()
        )));
    }
    let text = file.slice(0..file.len())?;
    let index: Index =
        serde_json::from_slice(text.bytes()).map_err(|err| wrong(err.to_string()))?;
    let Pairs(pairs) = index.weight_map;
    if pairs.is_empty() {
        return Err(wrong("`weight_map` names no tensor".into()));
    }
    let mut names = std::collections::HashSet::new();
    if let Some((name, _)) = pairs.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(wrong(format!("the name `{name}` comes twice")));
    }
    Ok(pairs)
}
