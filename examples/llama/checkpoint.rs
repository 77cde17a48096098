//! Folders in the layout of Hugging Face: `config.json`, and weights in one safetensors file or several.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, FloatDType, Tensor, backend::Backend},
};
use burn_offload::{
    OffloadPolicy, Report,
    load::{self, LoadError, Loader, Progress, TensorInfo},
    module::OffloadBackend,
};
use safetensors::{Dtype, SafeTensorError, tensor::TensorView};

use super::{
    config::{ConfigError, LlamaConfig},
    elements,
    model::Llama,
    walk::Walk,
};

pub const CONFIG: &str = "config.json";
pub const GENERATION: &str = "generation_config.json";
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
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("cannot read parameter `{name}` back from the device: {why}")]
    Device { name: String, why: String },
}

/// A checkpoint, open for reading.
#[derive(Debug)]
pub struct Checkpoint {
    config: LlamaConfig,
    weights: load::Checkpoint,
}

impl Checkpoint {
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(CONFIG);
        let text = fs::read_to_string(&path).map_err(|source| CheckpointError::Read {
            path: path.clone(),
            source,
        })?;
        let mut config = LlamaConfig::from_json(&text)
            .map_err(|source| CheckpointError::Config { path, source })?;
        // Chat models have more tokens that end a text there.
        let path = folder.join(GENERATION);
        match fs::read_to_string(&path) {
            Ok(text) => config
                .add_generation(&text)
                .map_err(|source| CheckpointError::Config { path, source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(CheckpointError::Read { path, source }),
        }
        let weights = load::Checkpoint::open(folder)?;
        Ok(Self { config, weights })
    }

    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The type of the embedding in the file, and so of what is computed; None if there is none that Burn has.
    pub fn dtype(&self) -> Option<FloatDType> {
        let of = |info: TensorInfo| match info.dtype.as_str() {
            "F64" => Some(FloatDType::F64),
            "F32" => Some(FloatDType::F32),
            "F16" => Some(FloatDType::F16),
            "BF16" => Some(FloatDType::BF16),
            _ => None,
        };
        let name = "model.embed_tokens.weight";
        self.weights.tensors().find(|t| t.name == name).and_then(of)
    }

    /// The model, in `dtype` or as the file has it, each weight placed by `policy`.
    pub fn load<B: OffloadBackend>(
        &self,
        dtype: Option<DType>,
        device: &B::Device,
        policy: &OffloadPolicy,
        progress: impl FnMut(&Progress<'_>),
    ) -> Result<(Llama<B>, Report), CheckpointError> {
        // What says only what the rest of the checkpoint says: some exporters write it.
        let mut loader = Loader::new(&self.weights)
            .with_ignored(r"\.rotary_emb\.inv_freq$")
            .with_progress(progress);
        if self.config.tie_word_embeddings {
            loader = loader.with_ignored(r"^lm_head\.weight$");
        }
        if let Some(dtype) = dtype {
            loader = loader.with_dtype(dtype);
        }
        Ok(loader.load(Llama::new(&self.config, device), "", policy)?)
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
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::BF16, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(weights)?;
    let note = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(note), &part).map_err(weights)?;
    fs::rename(&part, &path).map_err(|source| CheckpointError::Write { path, source })
}

/// A name, a shape and the bytes in the file.
type Encoded = (String, Vec<usize>, Vec<u8>);

/// Reads parameters back as they are to be in the file, up to the first error.
struct Collect {
    walk: Walk,
    tensors: Result<Vec<Encoded>, CheckpointError>,
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
        // The file has linear weights `[output, input]`, and Burn has them `[input, output]`.
        if self.walk.is_linear_weight(D) {
            value = value.transpose();
        }
        let shape = value.shape().to_vec();
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
