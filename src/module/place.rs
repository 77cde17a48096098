use std::{any::Any, collections::HashMap, fmt, sync::Arc};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter},
    tensor::{Bool as BoolKind, Int as IntKind, Tensor, TensorPrimitive},
};
use burn_backend::Backend;

use crate::{
    backend::{DeviceState, Directive, Offloaded, OffloadedTensor, Placed, with_directive},
    error::OffloadError,
    host::{Record, Role},
    policy::{Budget, OffloadPolicy, ParamInfo, Placement, Used},
    report::Report,
    target::Kind,
};

use super::{backend::OffloadBackend, path::Path};

/// Placing stopped: what went wrong, and the module, whole and usable. What was moved before stays
/// where it went.
#[derive(Debug)]
pub struct PlaceError<M> {
    /// The module.
    pub module: M,
    /// What went wrong.
    pub error: OffloadError,
}

impl<M> fmt::Display for PlaceError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: fmt::Debug> std::error::Error for PlaceError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<PlaceError<M>> for OffloadError {
    fn from(err: PlaceError<M>) -> Self {
        err.error
    }
}

/// Places a module's parameters, float, integer, boolean and quantized, by name.
///
/// The names are the paths of the fields, as in `layers.3.mlp.up.weight`, under `prefix` (empty for
/// none). Parameters that are not initialised yet are initialised straight into their place; the
/// others are moved where the policy wants them elsewhere. The budget counts what the device holds
/// besides this module, so several modules can be placed under one; parameters that still wait on the
/// device for their names do not count until they are placed. A parameter that several fields share is
/// stored and counted once.
///
/// The policy is this call's own: it may differ from the one the device was configured with, whose budget
/// then has no say. How the memory is read (`access`, `staging_budget`, `prefetch`, `uva`, `pin`) is the
/// device's, as it was configured. Clones share their parameters' places and names with the module.
///
/// A device that was never configured gets its host memory by this policy, and offloads nothing by
/// itself.
///
/// Returns the module and the places of its parameters.
///
/// # Errors
///
/// [`PlaceError`], with the module in it: when a selector matches no parameter, when the parameters
/// that must stay do not fit the device budget, or when the system refuses memory.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn_flex::Flex;
/// use burn_offload::{OffloadPolicy, Offloaded, place};
///
/// let linear = LinearConfig::new(64, 64).init::<Offloaded<Flex>>(&Default::default());
/// let policy = OffloadPolicy::host_budget(bytesize::ByteSize::mib(1)).with_params(["weight"]);
/// let (linear, report) = place(linear, "head", &policy)?;
/// assert_eq!(report.offloaded_bytes(), 64 * 64 * 4);
/// assert_eq!(report.parameters[0].name.as_deref(), Some("head.weight"));
/// # Ok::<(), burn_offload::OffloadError>(())
/// ```
pub fn place<B: OffloadBackend, M: Module<B>>(
    module: M,
    prefix: &str,
    policy: &OffloadPolicy,
) -> Result<(M, Report), PlaceError<M>> {
    let mut survey = Survey::<B> {
        path: Path::new(prefix),
        names: Vec::new(),
        devices: Vec::new(),
    };
    module.visit(&mut survey);
    if let Err(error) = survey.prepare(policy) {
        return Err(PlaceError { module, error });
    }
    let mut placer = Placer::<B> {
        path: Path::new(prefix),
        policy: Arc::new(policy.clone()),
        found: Vec::new(),
        seen: HashMap::new(),
        backend: std::marker::PhantomData,
    };
    let module = module.map(&mut placer);
    let placed = placer.settle();
    for device in &survey.devices {
        // Parameters that were made on the device and moved leave their memory with the backend.
        B::memory_cleanup(device);
    }
    match placed {
        Ok(records) => {
            let device = survey.devices.first();
            let report = match device.and_then(DeviceState::get) {
                Some(state) => Report::of(&state, records),
                None => Report::empty(String::new()),
            };
            report.log();
            Ok((module, report))
        }
        Err(error) => Err(PlaceError { module, error }),
    }
}

/// Looks at a module without initialising anything.
struct Survey<B: Backend> {
    path: Path,
    names: Vec<String>,
    devices: Vec<B::Device>,
}

impl<B: OffloadBackend> Survey<B> {
    fn see(&mut self, device: B::Device) {
        self.names.push(self.path.name());
        if !self.devices.contains(&device) {
            self.devices.push(device);
        }
    }

    /// Checks the policy against the names, and opens the devices.
    fn prepare(&self, policy: &OffloadPolicy) -> Result<(), OffloadError> {
        let names = self.names.iter().map(|name| ParamInfo::new(name, 0));
        policy.plan(&names.collect::<Vec<_>>(), Used::default())?;
        for device in &self.devices {
            if DeviceState::get(device).is_none() {
                let quiet = OffloadPolicy::nothing()
                    .with_access(policy.access)
                    .with_prefetch(policy.prefetch)
                    .with_uva(policy.uva)
                    .with_pin(policy.pin);
                let quiet = match policy.staging_budget {
                    Some(budget) => quiet.with_staging_budget(budget),
                    None => quiet,
                };
                Offloaded::<B::Target>::configure(device, quiet)?;
            }
            Offloaded::<B::Target>::check_budget(policy)?;
        }
        Ok(())
    }
}

impl<B: OffloadBackend> ModuleVisitor<B> for Survey<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.see(param.lazy_device());
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, IntKind>>) {
        self.see(param.lazy_device());
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, BoolKind>>) {
        self.see(param.lazy_device());
    }
}

/// Gives every parameter a slot, initialising those that are not.
struct Placer<B: Backend> {
    path: Path,
    policy: Arc<OffloadPolicy>,
    found: Vec<Found>,
    /// Parameters by id: those with one id may be tied.
    seen: HashMap<ParamId, Vec<Seen>>,
    backend: std::marker::PhantomData<B>,
}

struct Found {
    name: String,
    slot: Arc<dyn Placed>,
    /// Whether operations read some rows of it at a time.
    by_rows: bool,
    /// Whether the same slot came before, under another name.
    again: bool,
}

/// A parameter that was found, as the backend has it.
struct Seen {
    slot: Arc<dyn Placed>,
    tensor: Box<dyn Any>,
}

impl<B: OffloadBackend> Placer<B> {
    fn initialise<T: Parameter>(&self, param: &Param<T>) {
        if !param.is_initialized() {
            let directive = Directive {
                name: Some(self.path.name()),
                policy: self.policy.clone(),
            };
            with_directive(directive, || drop(param.val()));
        }
    }

    /// Notes a parameter, and gives it a slot if it has none. A parameter that has the id and the data
    /// of an earlier one is tied to that, and becomes it.
    fn find<K: Kind<B::Target>, T: Clone + 'static>(
        &mut self,
        id: ParamId,
        tensor: T,
        inner: fn(T) -> OffloadedTensor<B::Target, K>,
        outer: impl FnOnce(OffloadedTensor<B::Target, K>) -> T,
    ) -> T {
        let (name, by_rows) = (self.path.name(), self.path.is_read_by_rows());
        let mine = inner(tensor.clone());
        let seen = self.seen.entry(id).or_default();
        let twin = seen.iter().find_map(|seen| {
            let theirs = seen.tensor.downcast_ref::<T>()?;
            let own = mine.slot();
            let one = own.is_some_and(|own| Arc::ptr_eq(&own, &seen.slot));
            if one {
                // It may have another view of the slot.
                return Some((seen.slot.clone(), tensor.clone()));
            }
            let tied = mine.same_data(&inner(theirs.clone()));
            tied.then(|| (seen.slot.clone(), theirs.clone()))
        });
        if let Some((slot, tensor)) = twin {
            self.found.push(Found {
                name,
                slot,
                by_rows,
                again: true,
            });
            return tensor;
        }
        let had_slot = mine.slot().is_some();
        let (placed, slot) = mine.into_param();
        // What has its place keeps its node in the autodiff graph.
        let tensor = if had_slot { tensor } else { outer(placed) };
        seen.push(Seen {
            slot: slot.clone(),
            tensor: Box::new(tensor.clone()),
        });
        // A slot can have several ids, where a parameter was cloned into one of a new id.
        let again = self.found.iter().any(|f| Arc::ptr_eq(&f.slot, &slot));
        self.found.push(Found {
            name,
            slot,
            by_rows,
            again,
        });
        tensor
    }

    /// Plans for each device, and moves what is not where the plan wants it.
    fn settle(&self) -> Result<Vec<Record>, OffloadError> {
        let mut first_error = None;
        for state in self.devices() {
            let here: Vec<&Found> = self
                .found
                .iter()
                .filter(|f| !f.again && f.slot.state().is_some_and(|s| Arc::ptr_eq(&s, &state)))
                .collect();
            if let Err(err) = self.settle_device(&state, &here) {
                first_error.get_or_insert(err);
            }
        }
        match first_error {
            Some(err) => Err(err),
            None => Ok(self.records()),
        }
    }

    fn settle_device(&self, state: &DeviceState, here: &[&Found]) -> Result<(), OffloadError> {
        // Opens the books for those that are not in them, so that all are counted before they are
        // taken out of what else the device holds.
        for found in here {
            found
                .slot
                .annotate(&mut |r| r.name = Some(found.name.clone()));
        }
        let mut used = state.ledger.used();
        let mut params = Vec::with_capacity(here.len());
        for found in here {
            let record = found.slot.record();
            let bytes = record.as_ref().map_or(0, |r| r.bytes);
            if let Some(record) = record.filter(|r| !r.is_waiting()) {
                let side = match record.decision.placement {
                    Placement::Resident => &mut used.resident,
                    Placement::Offloaded => &mut used.offloaded,
                };
                *side = side.saturating_sub(bytes);
            }
            params.push(ParamInfo::new(&found.name, bytes).with_rows(found.by_rows));
        }
        // What is on its way back to the system is free by the time it is needed.
        used.offloaded = used
            .offloaded
            .saturating_sub(state.ledger.retiring(Role::Parameter));
        let plan = self.policy.plan(&params, used)?;
        // Room is made before it is taken.
        let order = match self.policy.budget {
            Budget::Device(_) => [Placement::Offloaded, Placement::Resident],
            _ => [Placement::Resident, Placement::Offloaded],
        };
        for first in order {
            for (found, decision) in here.iter().zip(&plan) {
                if decision.placement == first {
                    found.slot.move_to(decision.clone(), &self.policy)?;
                }
            }
        }
        Ok(())
    }

    fn devices(&self) -> Vec<Arc<DeviceState>> {
        let mut states: Vec<Arc<DeviceState>> = Vec::new();
        for state in self.found.iter().filter_map(|f| f.slot.state()) {
            if !states.iter().any(|s| Arc::ptr_eq(s, &state)) {
                states.push(state);
            }
        }
        states
    }

    /// A line for every name. A name whose slot has another name too is tied to that.
    fn records(&self) -> Vec<Record> {
        let lines = self.found.iter().filter_map(|found| {
            let mut record = found.slot.record()?;
            if found.again {
                record.shares = record.name.replace(found.name.clone());
            }
            Some(record)
        });
        lines.collect()
    }

    fn float<const D: usize>(&mut self, id: ParamId, tensor: Tensor<B, D>) -> Tensor<B, D> {
        let require_grad = tensor.is_require_grad();
        let primitive = match tensor.into_primitive() {
            TensorPrimitive::Float(primitive) => {
                TensorPrimitive::Float(self.find(id, primitive, B::float_inner, |placed| {
                    B::float_set_require_grad(B::float_from_inner(placed), require_grad)
                }))
            }
            TensorPrimitive::QFloat(primitive) => TensorPrimitive::QFloat(self.find(
                id,
                primitive,
                B::quantized_inner,
                B::quantized_from_inner,
            )),
        };
        Tensor::from_primitive(primitive)
    }
}

impl<B: OffloadBackend> ModuleMapper<B> for Placer<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.initialise(&param);
        let (id, tensor, mapper) = param.consume();
        let tensor = self.float(id, tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }
    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, IntKind>>,
    ) -> Param<Tensor<B, D, IntKind>> {
        self.initialise(&param);
        let (id, tensor, mapper) = param.consume();
        let placed = self.find(id, tensor.into_primitive(), B::int_inner, B::int_from_inner);
        Param::from_mapped_value(id, Tensor::from_primitive(placed), mapper)
    }
    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, BoolKind>>,
    ) -> Param<Tensor<B, D, BoolKind>> {
        self.initialise(&param);
        let (id, tensor, mapper) = param.consume();
        let placed = self.find(
            id,
            tensor.into_primitive(),
            B::bool_inner,
            B::bool_from_inner,
        );
        Param::from_mapped_value(id, Tensor::from_primitive(placed), mapper)
    }
}
