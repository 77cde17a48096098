//! Folders in the layout of Hugging Face: `config.json` and `model.safetensors`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Tensor, backend::Backend},
};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};

use super::{
    config::{ConfigError, LlamaConfig},
    elements,
    model::Llama,
};

pub const CONFIG: &str = "config.json";
pub const WEIGHTS: &str = "model.safetensors";
pub const TOKENIZER: &str = "tokenizer.json";

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error("{}: {source}", path.display())]
    Weights {
        path: PathBuf,
        source: SafeTensorError,
    },
    #[error(
        "{} is split into several files, and only a single {WEIGHTS} is supported",
        folder.display()
    )]
    Split { folder: PathBuf },
    #[error("{} has no tensor `{name}`, {shape} in this model", path.display())]
    Missing {
        path: PathBuf,
        name: String,
        shape: Sizes,
    },
    #[error(
        "{} has {} that this model has no place for: {}",
        path.display(),
        if names.len() == 1 { "a tensor".into() } else { format!("{} tensors", names.len()) },
        in_short(names)
    )]
    Unwanted { path: PathBuf, names: Vec<String> },
    #[error(
        "`{name}` is {found} ({found_bytes} bytes) in {}, and {wanted} ({wanted_bytes} bytes) in this \
         model",
        path.display()
    )]
    Shape {
        path: PathBuf,
        name: String,
        found: Sizes,
        found_bytes: usize,
        wanted: Sizes,
        wanted_bytes: usize,
    },
    #[error("`{name}` is of type {dtype} in {}; F32, F16 and BF16 are supported", path.display())]
    Dtype {
        path: PathBuf,
        name: String,
        dtype: String,
    },
    #[error("cannot read parameter `{name}` back from the device: {why}")]
    Device { name: String, why: String },
}

/// The sizes of a tensor's axes, as in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes(Vec<usize>);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "{}", sizes.join("x"))
    }
}

/// A checkpoint, open for reading.
#[derive(Debug)]
pub struct Checkpoint {
    config: LlamaConfig,
    weights: Arc<Weights>,
}

impl Checkpoint {
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(CONFIG);
        let text = fs::read_to_string(&path).map_err(|source| CheckpointError::Read {
            path: path.clone(),
            source,
        })?;
        let config = LlamaConfig::from_json(&text)
            .map_err(|source| CheckpointError::Config { path, source })?;

        let path = folder.join(WEIGHTS);
        if !path.exists() && folder.join("model.safetensors.index.json").exists() {
            let folder = folder.to_owned();
            return Err(CheckpointError::Split { folder });
        }
        let weights = Arc::new(Weights::open(path)?);
        Ok(Self { config, weights })
    }

    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The model, in `dtype` or as the file has it. No weight is read yet: each of its parameters reads
    /// its own when it is first used, or placed. All there is to find wrong is found here.
    pub fn load<B: Backend>(
        &self,
        dtype: Option<DType>,
        device: &B::Device,
    ) -> Result<Llama<B>, CheckpointError> {
        let model = Llama::new(&self.config, device);

        let mut check = Check {
            weights: &self.weights,
            walk: Walk::default(),
            wanted: BTreeSet::new(),
            error: None,
        };
        model.visit(&mut check);
        if let Some(error) = check.error {
            return Err(error);
        }
        let unwanted = |name: &&String| !check.wanted.contains(*name) && !self.is_redundant(name);
        let names: Vec<String> = self
            .weights
            .entries
            .keys()
            .filter(unwanted)
            .cloned()
            .collect();
        if !names.is_empty() {
            let path = self.weights.path.clone();
            return Err(CheckpointError::Unwanted { path, names });
        }

        Ok(model.map(&mut Fill {
            weights: &self.weights,
            walk: Walk::default(),
            dtype,
        }))
    }

    /// Whether a tensor says only what the rest of the checkpoint says: some exporters write them.
    fn is_redundant(&self, name: &str) -> bool {
        name.ends_with(".rotary_emb.inv_freq")
            || (self.config.tie_word_embeddings && name == "lm_head.weight")
    }
}

/// A mapped safetensors file.
struct Weights {
    path: PathBuf,
    map: Mmap,
    entries: BTreeMap<String, Entry>,
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// One tensor of it.
#[derive(Debug, Clone)]
struct Entry {
    dtype: Dtype,
    shape: Sizes,
    bytes: Range<usize>,
}

impl Weights {
    fn open(path: PathBuf) -> Result<Self, CheckpointError> {
        let read = |source| CheckpointError::Read {
            path: path.clone(),
            source,
        };
        let file = fs::File::open(&path).map_err(read)?;
        // SAFETY: the map is only read, and only as bytes. That no one shortens or rewrites the file while
        // it is in use cannot be enforced; it is asked of whoever keeps checkpoints.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|source| CheckpointError::Weights {
                path: path.clone(),
                source,
            })?;
        // Eight bytes for the header's length, the header, and then the tensors.
        let start = size_of::<u64>() + header;
        let entries = metadata.tensors().into_iter().map(|(name, info)| {
            let (from, to) = info.data_offsets;
            let entry = Entry {
                dtype: info.dtype,
                shape: Sizes(info.shape.clone()),
                bytes: start + from..start + to,
            };
            (name, entry)
        });
        Ok(Self {
            entries: entries.collect(),
            map,
            path,
        })
    }

    /// The entry of a parameter, if it is what the model needs.
    fn entry(&self, name: &str, wanted: Sizes) -> Result<&Entry, CheckpointError> {
        let path = || self.path.clone();
        let name = name.to_owned();
        let Some(entry) = self.entries.get(&name) else {
            return Err(CheckpointError::Missing {
                path: path(),
                name,
                shape: wanted,
            });
        };
        if float(entry.dtype).is_none() {
            return Err(CheckpointError::Dtype {
                path: path(),
                name,
                dtype: format!("{:?}", entry.dtype),
            });
        }
        if entry.shape != wanted {
            let element = entry.dtype.bitsize() / 8;
            return Err(CheckpointError::Shape {
                path: path(),
                name,
                found: entry.shape.clone(),
                found_bytes: entry.bytes.len(),
                wanted_bytes: wanted
                    .0
                    .iter()
                    .fold(element, |bytes, size| bytes.saturating_mul(*size)),
                wanted,
            });
        }
        Ok(entry)
    }
}

/// The type of numbers, if it is one that weights may have.
fn float(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// Where a walk through a module is: each step's name, and the type it is a field of.
#[derive(Default)]
struct Walk(Vec<(String, String)>);

impl Walk {
    fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn name(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Whether the file keeps this parameter transposed: it has linear weights `[output, input]`, and Burn
    /// has them `[input, output]`.
    fn is_transposed(&self) -> bool {
        self.0
            .last()
            .is_some_and(|(_, container)| container == "Struct:Linear")
    }

    /// The shape of a parameter in the file, or from the file in the model.
    fn turned(&self, shape: &[usize]) -> Sizes {
        let mut sizes = shape.to_vec();
        if self.is_transposed() {
            sizes.reverse();
        }
        Sizes(sizes)
    }
}

/// Compares a model's parameters with a file's tensors, up to the first error.
struct Check<'a> {
    weights: &'a Weights,
    walk: Walk,
    wanted: BTreeSet<String>,
    error: Option<CheckpointError>,
}

impl<B: Backend> ModuleVisitor<B> for Check<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.walk.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.walk.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.walk.name();
        let wanted = self.walk.turned(&param.lazy_shape());
        if let Err(error) = self.weights.entry(&name, wanted) {
            self.error.get_or_insert(error);
        }
        self.wanted.insert(name);
    }
}

/// Replaces parameters by ones that read their values from a checked file.
struct Fill<'a> {
    weights: &'a Arc<Weights>,
    walk: Walk,
    dtype: Option<DType>,
}

impl<B: Backend> ModuleMapper<B> for Fill<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.walk.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.walk.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let entry = self.weights.entries.get(&self.walk.name());
        let Some((entry, stored)) = entry.and_then(|entry| Some((entry, float(entry.dtype)?)))
        else {
            return param;
        };
        let weights = self.weights.clone();
        let bytes = entry.bytes.clone();
        let dtype = self.dtype.unwrap_or(stored);
        let transposed = self.walk.is_transposed();
        let shape = param.lazy_shape();
        let target = shape.clone();
        Param::uninitialized(
            param.id,
            move |device, require_grad| {
                let bytes = &weights.map[bytes.clone()];
                let data = elements::decode(bytes, stored, dtype, target.clone(), transposed);
                // Burn's mark of a parameter's allocation.
                B::memory_persistent_allocations(device, data, |data| {
                    Tensor::from_data(data, (device, dtype)).set_require_grad(require_grad)
                })
            },
            param.lazy_device(),
            true,
            shape,
        )
    }
}

/// Writes a model: `config.json` and, in bf16, `model.safetensors`.
pub fn save<B: Backend>(
    model: &Llama<B>,
    config: &LlamaConfig,
    folder: &Path,
) -> Result<(), CheckpointError> {
    let mut collect = Collect {
        walk: Walk::default(),
        tensors: Ok(Vec::new()),
    };
    model.visit(&mut collect);
    let tensors = collect.tensors?;

    fs::create_dir_all(folder).map_err(|source| CheckpointError::Write {
        path: folder.to_owned(),
        source,
    })?;
    let path = folder.join(CONFIG);
    let text = config
        .to_json("bfloat16")
        .map_err(|source| CheckpointError::Config {
            path: path.clone(),
            source,
        })?;
    fs::write(&path, text).map_err(|source| CheckpointError::Write { path, source })?;

    // Under another name until it is whole.
    let path = folder.join(WEIGHTS);
    let part = folder.join(format!("{WEIGHTS}.part"));
    let weights = |source| CheckpointError::Weights {
        path: path.clone(),
        source,
    };
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((name, TensorView::new(Dtype::BF16, shape.0.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(weights)?;
    let note = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(note), &part).map_err(weights)?;
    fs::rename(&part, &path).map_err(|source| CheckpointError::Write { path, source })
}

/// Reads parameters back as they are to be in the file, up to the first error.
struct Collect {
    walk: Walk,
    tensors: Result<Vec<(String, Sizes, Vec<u8>)>, CheckpointError>,
}

impl<B: Backend> ModuleVisitor<B> for Collect {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.walk.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.walk.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Ok(tensors) = &mut self.tensors else {
            return;
        };
        let name = self.walk.name();
        let mut value = param.val();
        if self.walk.is_transposed() {
            value = value.transpose();
        }
        let shape = Sizes(value.shape().to_vec());
        match value.try_into_data() {
            Ok(data) => tensors.push((name, shape, elements::encode(data))),
            Err(error) => {
                self.tensors = Err(CheckpointError::Device {
                    name,
                    why: format!("{error:?}"),
                });
            }
        }
    }
}

fn in_short(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
