use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Bool as BoolKind, Element, Int as IntKind, Tensor, TensorPrimitive},
};
use burn_backend::{Backend, DType, Shape};
use regex::Regex;

use crate::{
    backend::{DeviceState, Offloaded, OffloadedTensor, Order, Placed, convert},
    error::OffloadError,
    host::{MemoryKind, Record, Role},
    policy::{Decision, OffloadPolicy, ParamInfo, Placement},
    report::Report,
    target::{Kind, Layout},
};

use super::{
    checkpoint::{Checkpoint, Stored},
    error::LoadError,
};
use crate::module::{backend::OffloadBackend, path::Path};

/// Whose way of storing parameters a checkpoint follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convention {
    /// PyTorch's, as on Hugging Face: linear weights are `[output, input]`, and the parameters of norms
    /// are called `weight` and `bias`.
    #[default]
    PyTorch,
    /// Burn's: names and shapes are those of the module.
    Burn,
}

/// How far loading has come.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The parameter that was just loaded.
    pub name: &'a str,
    /// Where it went.
    pub placement: Placement,
    /// The kind of host memory, when offloaded.
    pub memory: Option<MemoryKind>,
    /// Parameters loaded so far.
    pub parameters: usize,
    /// Parameters of the module.
    pub all_parameters: usize,
    /// Bytes loaded so far.
    pub bytes: u64,
    /// Bytes of the module.
    pub all_bytes: u64,
}

type Callback<'a> = Box<dyn FnMut(&Progress<'_>) + 'a>;

/// Loads a [`Checkpoint`] into modules.
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    rules: Vec<(String, String)>,
    prefix: String,
    ignored: Vec<String>,
    dtype: Option<DType>,
    convention: Convention,
    progress: Option<Callback<'a>>,
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("checkpoint", &self.checkpoint.path())
            .field("rules", &self.rules)
            .field("prefix", &self.prefix)
            .field("ignored", &self.ignored)
            .field("dtype", &self.dtype)
            .field("convention", &self.convention)
            .finish_non_exhaustive()
    }
}

impl<'a> Loader<'a> {
    /// A loader that takes names and types as the checkpoint has them.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            rules: Vec::new(),
            prefix: String::new(),
            ignored: Vec::new(),
            dtype: None,
            convention: Convention::default(),
            progress: None,
        }
    }

    /// Loads only the tensors under `prefix` (segments joined by dots), whose names lose it.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.trim_matches('.').to_string();
        self
    }

    /// Renames the checkpoint's tensors, after the prefix is gone: every match of the regular expression
    /// `pattern` becomes `replacement`, in which `$1` is what the first group matched. Rules apply one
    /// after the other.
    pub fn with_rename(mut self, pattern: &str, replacement: &str) -> Self {
        self.rules.push((pattern.into(), replacement.into()));
        self
    }

    /// Leaves out tensors whose name (as the file has it) the regular expression matches, where the
    /// module has no place for them.
    pub fn with_ignored(mut self, pattern: &str) -> Self {
        self.ignored.push(pattern.into());
        self
    }

    /// Converts floats to this type. By default they keep the type of the file.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Says how the checkpoint stores parameters.
    pub fn with_convention(mut self, convention: Convention) -> Self {
        self.convention = convention;
        self
    }

    /// Calls `progress` after every parameter.
    pub fn with_progress(mut self, progress: impl FnMut(&Progress<'_>) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Replaces the module's parameters by the checkpoint's, and places them by `policy`, whose
    /// selectors see the paths under `prefix`, as in [`place`](crate::place). Parameters that were
    /// not initialised are never initialised. A device that was never configured gets its host
    /// memory by this policy.
    ///
    /// The budget may be more than the machine's memory: what stays in the file takes none for good.
    ///
    /// Returns the module and the places of its parameters.
    ///
    /// # Errors
    ///
    /// [`LoadError`], before anything is loaded wherever that can be known.
    pub fn load<B: OffloadBackend, M: Module<B>>(
        mut self,
        module: M,
        prefix: &str,
        policy: &OffloadPolicy,
    ) -> Result<(M, Report), LoadError> {
        let tensors = self.renamed()?;
        let mut survey = Survey::<B> {
            loader: &self,
            tensors: &tensors,
            walk: Path::new(""),
            prefix: prefix.to_string(),
            wanted: Vec::new(),
            seen: HashMap::new(),
            used: BTreeSet::new(),
            error: None,
        };
        module.visit(&mut survey);
        let Survey {
            wanted,
            used,
            error,
            ..
        } = survey;
        if let Some(error) = error {
            return Err(error);
        }
        self.check_all_used(&tensors, &used)?;
        let plan = plan::<B>(&wanted, policy)?;

        let mut fill = Fill::<B> {
            policy,
            loaded: Vec::new(),
            seen: HashMap::new(),
            progress: self.progress.take(),
            bytes: 0,
            all_bytes: wanted.iter().map(|w| w.bytes).sum(),
            all_parameters: wanted.len(),
            error: None,
            todo: wanted.into_iter().zip(plan),
        };
        let module = module.map(&mut fill);
        if let Some(error) = fill.error {
            return Err(error);
        }
        let state = fill.loaded.iter().find_map(|loaded| loaded.slot.state());
        let records = fill.loaded.iter().filter_map(|loaded| {
            let mut record: Record = loaded.slot.record()?;
            if loaded.again {
                record.shares = record.name.replace(loaded.name.clone());
            }
            Some(record)
        });
        let report = match state {
            Some(state) => Report::of(&state, records.collect()),
            None => Report::empty(String::new()),
        };
        report.log();
        Ok((module, report))
    }

    /// The checkpoint's tensors by the names that the module is to know them by.
    fn renamed(&self) -> Result<BTreeMap<String, Stored>, LoadError> {
        let rules = self
            .rules
            .iter()
            .map(|(pattern, with)| Ok((regex(pattern)?, with.as_str())))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let mut tensors: BTreeMap<String, Stored> = BTreeMap::new();
        for stored in self.checkpoint.stored() {
            let original = &stored.tensor.name;
            let Some(name) = self.under_prefix(original) else {
                continue;
            };
            let name = rules
                .iter()
                .fold(name.to_string(), |name, (pattern, with)| {
                    pattern.replace_all(&name, *with).into_owned()
                });
            if let Some(first) = tensors.insert(name.clone(), stored.clone()) {
                return Err(LoadError::Renamed {
                    first: first.tensor.name,
                    second: original.clone(),
                    name,
                });
            }
        }
        Ok(tensors)
    }

    fn under_prefix<'n>(&self, name: &'n str) -> Option<&'n str> {
        if self.prefix.is_empty() {
            return Some(name);
        }
        name.strip_prefix(&self.prefix)?.strip_prefix('.')
    }

    fn check_all_used(
        &self,
        tensors: &BTreeMap<String, Stored>,
        used: &BTreeSet<String>,
    ) -> Result<(), LoadError> {
        let ignored = self.ignored.iter().map(|pattern| regex(pattern));
        let ignored = ignored.collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = tensors
            .iter()
            .filter(|(name, _)| !used.contains(*name))
            .map(|(_, stored)| stored.tensor.name.clone())
            .filter(|name| !ignored.iter().any(|pattern| pattern.is_match(name)))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(LoadError::Unwanted {
            path: self.checkpoint.path().to_owned(),
            names,
        })
    }
}

fn regex(pattern: &str) -> Result<Regex, LoadError> {
    Regex::new(pattern).map_err(|err| LoadError::Pattern {
        pattern: pattern.into(),
        reason: err.to_string(),
    })
}

/// One parameter, and what it is to become.
struct Wanted<D> {
    /// Its path, under the prefix that the policy sees.
    name: String,
    source: Source,
    /// Whether the file has the matrix the other way round.
    turned: bool,
    dtype: DType,
    bytes: u64,
    by_rows: bool,
    device: D,
}

enum Source {
    File(Stored),
    /// The parameter of the same id that came before: the file has it once, or twice with the same bytes.
    Tied,
}

/// Compares a module's parameters with a checkpoint's tensors, up to the first error. Initialises nothing.
struct Survey<'a, B: Backend> {
    loader: &'a Loader<'a>,
    tensors: &'a BTreeMap<String, Stored>,
    walk: Path,
    prefix: String,
    wanted: Vec<Wanted<B::Device>>,
    /// The file's tensor of a parameter, and whether it is turned.
    seen: HashMap<ParamId, (Stored, bool)>,
    used: BTreeSet<String>,
    error: Option<LoadError>,
}

impl<B: OffloadBackend> Survey<'_, B> {
    fn full(&self, name: &str) -> String {
        let mut path = Path::new(&self.prefix);
        path.enter(name, self.walk.container());
        path.name()
    }

    fn see(
        &mut self,
        id: ParamId,
        shape: Shape,
        device: B::Device,
        dtype: impl Fn(DType) -> DType,
    ) {
        if self.error.is_none()
            && let Err(error) = self.find(id, shape, device, dtype)
        {
            self.error = Some(error);
        }
    }

    fn find(
        &mut self,
        id: ParamId,
        shape: Shape,
        device: B::Device,
        dtype: impl Fn(DType) -> DType,
    ) -> Result<(), LoadError> {
        let name = self.walk.name();
        let pytorch = self.loader.convention == Convention::PyTorch;
        let container = self.walk.container();
        let stored = self.tensors.get_key_value(&name).or_else(|| {
            let (parent, last) = name.rsplit_once('.').unwrap_or(("", &name));
            let last = match last {
                "gamma" if pytorch && container.ends_with("Norm") => "weight",
                "beta" if pytorch && container.ends_with("Norm") => "bias",
                _ => return None,
            };
            let other = match parent {
                "" => last.to_string(),
                _ => format!("{parent}.{last}"),
            };
            self.tensors.get_key_value(&other)
        });
        let Some((key, stored)) = stored else {
            if self.seen.contains_key(&id) {
                self.tie(&name, device);
                return Ok(());
            }
            return Err(LoadError::Missing {
                path: self.loader.checkpoint.path().to_owned(),
                name,
                shape: shape.to_vec(),
            });
        };
        self.used.insert(key.clone());
        let file_shape = &stored.tensor.shape;
        let wrong_type = |wanted: String| LoadError::Dtype {
            path: stored.path(),
            name: name.clone(),
            found: format!("{:?}", stored.tensor.dtype),
            wanted,
        };
        let Some(from) = stored.dtype() else {
            return Err(wrong_type("an element type that tensors have".into()));
        };
        let to = dtype(from);
        if !convert::is_possible(from, to) {
            return Err(wrong_type(to.name().into()));
        }
        if !B::supports_dtype(&device, to) {
            return Err(LoadError::Unsupported {
                name,
                dtype: to.name().into(),
            });
        }
        let turned = pytorch && container == "Struct:Linear" && shape.rank() == 2;
        let mut expected = shape.to_vec();
        if turned {
            expected.reverse();
        }
        // Of a linear layer that keeps its weight by columns, it is known only when it is made which way
        // round its shape is.
        let fits = *file_shape == expected || turned && *file_shape == shape.to_vec();
        if !fits {
            return Err(LoadError::Shape {
                path: stored.path(),
                name,
                found: file_shape.clone(),
                wanted: expected,
            });
        }
        if let Some((first, first_turned)) = self.seen.get(&id) {
            // Some exporters write a tied parameter under each of its names.
            if *first_turned == turned && stored.is_same(first)? {
                self.tie(&name, device);
                return Ok(());
            }
        } else {
            self.seen.insert(id, (stored.clone(), turned));
        }
        self.wanted.push(Wanted {
            turned,
            dtype: to,
            bytes: shape.num_elements() as u64 * to.size() as u64,
            source: Source::File(stored.clone()),
            name: self.full(&name),
            by_rows: self.walk.is_read_by_rows(),
            device,
        });
        Ok(())
    }
}

impl<B: OffloadBackend> Survey<'_, B> {
    fn tie(&mut self, name: &str, device: B::Device) {
        self.wanted.push(Wanted {
            name: self.full(name),
            source: Source::Tied,
            turned: false,
            dtype: DType::F32,
            bytes: 0,
            by_rows: false,
            device,
        });
    }
}

impl<B: OffloadBackend> ModuleVisitor<B> for Survey<'_, B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.walk.enter(name, container);
    }
    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.walk.exit();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let wanted = self.loader.dtype;
        self.see(
            param.id,
            param.lazy_shape(),
            param.lazy_device(),
            |stored| {
                let is_float = convert::is_possible(stored, DType::F32);
                wanted.unwrap_or(if is_float { stored } else { DType::F32 })
            },
        );
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, IntKind>>) {
        self.see(param.id, param.lazy_shape(), param.lazy_device(), |_| {
            B::IntElem::dtype()
        });
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, BoolKind>>) {
        self.see(param.id, param.lazy_shape(), param.lazy_device(), |_| {
            B::BoolElem::dtype()
        });
    }
}

/// Where each parameter goes. Opens the devices.
fn plan<B: OffloadBackend>(
    wanted: &[Wanted<B::Device>],
    policy: &OffloadPolicy,
) -> Result<Vec<Decision>, OffloadError> {
    let mut decisions: Vec<Option<Decision>> = vec![None; wanted.len()];
    for first in 0..wanted.len() {
        if decisions[first].is_some() {
            continue;
        }
        let device = &wanted[first].device;
        let state = open_device::<B>(device, policy)?;
        let here: Vec<usize> = (first..wanted.len())
            .filter(|at| wanted[*at].device == *device)
            .collect();
        let params: Vec<ParamInfo> = here
            .iter()
            .map(|at| {
                let Wanted {
                    name,
                    bytes,
                    by_rows,
                    ..
                } = &wanted[*at];
                ParamInfo::new(name, *bytes).with_rows(*by_rows)
            })
            .collect();
        let mut used = state.ledger.used();
        // What is on its way back to the system is free by the time it is needed.
        used.offloaded = used
            .offloaded
            .saturating_sub(state.ledger.retiring(Role::Parameter));
        for (at, decision) in here.into_iter().zip(policy.plan(&params, used)?) {
            decisions[at] = Some(decision);
        }
    }
    Ok(decisions.into_iter().flatten().collect())
}

fn open_device<B: OffloadBackend>(
    device: &B::Device,
    policy: &OffloadPolicy,
) -> Result<Arc<DeviceState>, OffloadError> {
    if let Some(state) = DeviceState::get(device) {
        return Ok(state);
    }
    let quiet = OffloadPolicy::nothing()
        .with_uva(policy.uva)
        .with_pin(policy.pin);
    Offloaded::<B::Target>::configure(device, quiet)?;
    Ok(DeviceState::get(device).expect("the device was configured just now"))
}

type Slot = Arc<dyn Placed>;

/// A parameter that was loaded.
struct Loaded {
    name: String,
    slot: Arc<dyn Placed>,
    /// Whether the same slot came before, under another name.
    again: bool,
}

/// Replaces parameters by those of a checkpoint that was compared with the module.
struct Fill<'a, B: Backend> {
    todo: std::iter::Zip<std::vec::IntoIter<Wanted<B::Device>>, std::vec::IntoIter<Decision>>,
    policy: &'a OffloadPolicy,
    loaded: Vec<Loaded>,
    /// Parameters by id, for those that are tied.
    seen: HashMap<ParamId, (Slot, Box<dyn Any>)>,
    progress: Option<Callback<'a>>,
    bytes: u64,
    all_bytes: u64,
    all_parameters: usize,
    error: Option<LoadError>,
}

impl<B: OffloadBackend> Fill<'_, B> {
    /// The next parameter to load; none once there was an error.
    fn next(&mut self) -> Option<(Wanted<B::Device>, Decision)> {
        if self.error.is_some() {
            return None;
        }
        self.todo.next()
    }

    /// The tensor of a parameter, in its place.
    fn make<K: Kind<B::Target>>(
        &mut self,
        wanted: &Wanted<B::Device>,
        decision: Decision,
    ) -> Result<(OffloadedTensor<B::Target, K>, Slot), LoadError> {
        let Source::File(stored) = &wanted.source else {
            unreachable!("a tied parameter is not made")
        };
        let state = open_device::<B>(&wanted.device, self.policy)?;
        let mut shape = stored.tensor.shape.clone();
        if wanted.turned {
            shape.reverse();
        }
        let layout = Layout {
            shape: Shape::from(shape),
            dtype: wanted.dtype,
            transposed: wanted.turned,
        };
        let from = stored.dtype().expect("types were checked");
        let tensor = OffloadedTensor::from_file(
            stored.slice()?,
            from,
            layout,
            &wanted.device,
            Order {
                name: &wanted.name,
                decision,
                policy: self.policy,
                state: &state,
            },
        )?;
        let (tensor, slot) = tensor.into_param();
        Ok((tensor, slot))
    }

    /// Notes that a parameter is in its place.
    fn done(&mut self, wanted: &Wanted<B::Device>, slot: Arc<dyn Placed>, again: bool) {
        self.bytes += wanted.bytes;
        let record = slot.record();
        self.loaded.push(Loaded {
            name: wanted.name.clone(),
            slot,
            again,
        });
        if let Some(progress) = &mut self.progress {
            let placement = record.as_ref().map(|r| r.decision.placement);
            progress(&Progress {
                name: &wanted.name,
                placement: placement.unwrap_or(Placement::Resident),
                memory: record.and_then(|r| r.memory),
                parameters: self.loaded.len(),
                all_parameters: self.all_parameters,
                bytes: self.bytes,
                all_bytes: self.all_bytes,
            });
        }
    }

    /// The parameter that this one is tied to.
    fn tied<T: Clone + 'static>(&mut self, id: ParamId, wanted: &Wanted<B::Device>) -> Option<T> {
        let (slot, tensor) = self.seen.get(&id)?;
        let tensor = tensor.downcast_ref::<T>()?.clone();
        let slot = slot.clone();
        self.done(wanted, slot, true);
        Some(tensor)
    }

    fn float<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D>>,
        wanted: Wanted<B::Device>,
        decision: Decision,
    ) -> Result<Param<Tensor<B, D>>, LoadError> {
        let id = param.id;
        if matches!(wanted.source, Source::Tied) {
            return Ok(match self.tied::<Tensor<B, D>>(id, &wanted) {
                Some(tensor) => param.transform_for_load(tensor, id),
                None => param,
            });
        }
        let loaded = if wanted.turned {
            // A weight that the layer keeps by columns is turned by the layer's own hook. Only trying it
            // shows whether there is one.
            let unmade = !param.is_initialized();
            let mut shape = param.lazy_shape().to_vec();
            let probe = Tensor::zeros([1; D], &wanted.device).repeat_dim(D - 1, 2);
            let (id, probe, mapper) = param.transform_for_load(probe, id).consume();
            if unmade && probe.dims()[0] == 2 {
                shape.reverse();
            }
            shape.reverse();
            if let Source::File(stored) = &wanted.source
                && stored.tensor.shape != shape
            {
                return Err(LoadError::Shape {
                    path: stored.path(),
                    name: wanted.name,
                    found: stored.tensor.shape.clone(),
                    wanted: shape,
                });
            }
            let (tensor, slot) = self.make(&wanted, decision)?;
            let tensor =
                Tensor::from_primitive(TensorPrimitive::Float(B::float_from_inner(tensor)));
            let tensor = tensor.set_require_grad(probe.is_require_grad());
            self.seen
                .insert(id, (slot.clone(), Box::new(tensor.clone())));
            self.done(&wanted, slot, false);
            Param::from_mapped_value(id, tensor, mapper)
        } else {
            let (tensor, slot) = self.make(&wanted, decision)?;
            let tensor: Tensor<B, D> =
                Tensor::from_primitive(TensorPrimitive::Float(B::float_from_inner(tensor)));
            self.seen
                .insert(id, (slot.clone(), Box::new(tensor.clone())));
            self.done(&wanted, slot, false);
            param.transform_for_load(tensor, id)
        };
        Ok(loaded)
    }
}

macro_rules! map {
    ($map:ident, $kind:ty, $inner:ident) => {
        fn $map<const D: usize>(
            &mut self,
            param: Param<Tensor<B, D, $kind>>,
        ) -> Param<Tensor<B, D, $kind>> {
            let Some((wanted, decision)) = self.next() else {
                return param;
            };
            let id = param.id;
            if matches!(wanted.source, Source::Tied) {
                return match self.tied::<Tensor<B, D, $kind>>(id, &wanted) {
                    Some(tensor) => param.transform_for_load(tensor, id),
                    None => param,
                };
            }
            match self.make(&wanted, decision) {
                Ok((tensor, slot)) => {
                    let tensor = Tensor::<B, D, $kind>::from_primitive(B::$inner(tensor));
                    self.seen
                        .insert(id, (slot.clone(), Box::new(tensor.clone())));
                    self.done(&wanted, slot, false);
                    param.transform_for_load(tensor, id)
                }
                Err(error) => {
                    self.error = Some(error);
                    param
                }
            }
        }
    };
}

impl<B: OffloadBackend> ModuleMapper<B> for Fill<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some((wanted, decision)) = self.next() else {
            return param;
        };
        // An error ends loading, and the module with it: any parameter will do in this one's place.
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        match self.float(param, wanted, decision) {
            Ok(param) => param,
            Err(error) => {
                self.error = Some(error);
                Param::uninitialized(
                    id,
                    move |device, _| Tensor::zeros([0; D], device),
                    device,
                    false,
                    shape,
                )
            }
        }
    }
    map!(map_int, IntKind, int_from_inner);
    map!(map_bool, BoolKind, bool_from_inner);
}
