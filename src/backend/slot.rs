//! A parameter's slot: the one place that says where its bytes are. Clones of a parameter, and the
//! views of an offloaded one, share the slot, so that moving the parameter moves them all.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use burn_backend::{Bytes, DType, TensorData, TensorMetadata};

use crate::{
    access::Hosted,
    error::OffloadError,
    host::{Admission, Charge, Entry, FileSlice, HostBuffer, MemoryKind, Op, Record, Role},
    policy::{Budget, Decision, OffloadPolicy, Placement, Reason, Used},
    target::{Kind, Layout, OffloadTarget},
};

use super::{
    convert,
    scope::{self, Directive},
    state::DeviceState,
};

/// A parameter on a device, whatever its kind and backend.
pub trait Placed: Send + Sync {
    /// Places a tensor that left a parameter scope alive, as the policy in force says. Returns the
    /// bytes that were moved from the device to the host.
    fn settle(&self) -> u64;
    /// The parameter's line in the books, if it has one.
    fn record(&self) -> Option<Record>;
    /// Changes the parameter's line in the books, opening one where there is none.
    fn annotate(&self, change: &mut dyn FnMut(&mut Record));
    /// Moves the parameter to where the decision says.
    ///
    /// # Errors
    ///
    /// [`OffloadError`], and the parameter stays where it is.
    fn move_to(&self, decision: Decision, policy: &OffloadPolicy) -> Result<bool, OffloadError>;
    /// The state of the parameter's device, if that was configured.
    fn state(&self) -> Option<Arc<DeviceState>>;
    /// How an offloaded parameter was placed, for one that is to take its place.
    fn directive(&self) -> Option<Directive>;
}

/// Where a parameter's bytes are.
pub enum Place<B: OffloadTarget, K: Kind<B>> {
    Resident(K::Primitive),
    Offloaded(Arc<Hosted<B, K>>),
}

impl<B: OffloadTarget, K: Kind<B>> Clone for Place<B, K> {
    fn clone(&self) -> Self {
        match self {
            Self::Resident(tensor) => Self::Resident(tensor.clone()),
            Self::Offloaded(hosted) => Self::Offloaded(hosted.clone()),
        }
    }
}

/// See the module's own text.
pub struct Slot<B: OffloadTarget, K: Kind<B>> {
    pub layout: Layout,
    pub device: B::Device,
    place: RwLock<Place<B, K>>,
    /// Serialises moves, so that the books and the place change together.
    moving: Mutex<()>,
    /// Shared with the one that takes over from a resident parameter.
    entry: OnceLock<Arc<Entry>>,
    /// The policy that put it where it is.
    placed_by: Mutex<Option<Arc<OffloadPolicy>>>,
    /// Where it is on the device only until the host memory it had, or as much, is free again.
    returns: AtomicBool,
}

impl<B: OffloadTarget, K: Kind<B>> Slot<B, K> {
    /// A slot for a tensor that is on the device, not yet in the books.
    pub fn resident(tensor: K::Primitive) -> Self {
        Self {
            layout: Layout::dense(tensor.shape(), tensor.dtype()),
            device: K::device(&tensor),
            place: RwLock::new(Place::Resident(tensor)),
            moving: Mutex::new(()),
            entry: OnceLock::new(),
            placed_by: Mutex::default(),
            returns: AtomicBool::new(false),
        }
    }

    /// A slot for bytes in host memory, in the books.
    fn offloaded(
        layout: Layout,
        device: &B::Device,
        hosted: Hosted<B, K>,
        entry: Entry,
        policy: Arc<OffloadPolicy>,
    ) -> Self {
        Self {
            layout,
            device: device.clone(),
            place: RwLock::new(Place::Offloaded(Arc::new(hosted))),
            moving: Mutex::new(()),
            entry: OnceLock::from(Arc::new(entry)),
            placed_by: Mutex::new(Some(policy)),
            returns: AtomicBool::new(false),
        }
    }

    /// Where the bytes are at this moment.
    pub fn place(&self) -> Place<B, K> {
        let place = self.place.read();
        place.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A span for one operation that reads an offloaded parameter.
    pub fn reading(&self) -> tracing::Span {
        if !tracing::enabled!(tracing::Level::TRACE) || !self.is_offloaded() {
            return tracing::Span::none();
        }
        tracing::trace_span!("read", parameter = self.name(), bytes = self.bytes())
    }

    /// The tensor, if it is resident and this was its only slot: the backend may then reuse its
    /// memory, as it would without the slot.
    pub fn into_place(self) -> Place<B, K> {
        let place = self.place.into_inner();
        place.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the bytes are in host memory at this moment.
    pub fn is_offloaded(&self) -> bool {
        let place = self.place.read();
        matches!(
            *place.unwrap_or_else(PoisonError::into_inner),
            Place::Offloaded(_)
        )
    }

    /// Whether the tensor has the parameter's shape and type.
    pub fn is_of(&self, tensor: &K::Primitive) -> bool {
        tensor.shape() == self.layout.shape && tensor.dtype() == self.layout.dtype
    }

    /// Called when an operation uses up the last of an offloaded parameter, as an optimizer's does: what
    /// comes of it is on the device. That is counted, and told once, unless it is about to be placed.
    pub fn note_displaced(&self) {
        if scope::directive().is_some() || !self.is_offloaded() {
            return;
        }
        let Some(state) = DeviceState::get(&self.device).filter(|s| !s.offloads_everything())
        else {
            return;
        };
        let bytes = self.bytes();
        if state.ledger.displace(bytes) {
            tracing::warn!(
                parameter = self.name(),
                bytes,
                "an operation's result takes an offloaded parameter's place and is on the device; if an \
                 optimizer does this, make it `.offloaded()`, else call `place` again (said once, the report \
                 counts all)"
            );
        }
    }

    /// A parameter made straight from host data: into host memory where the policy says so, without
    /// a trip through the device. `Err` gives the data back where it is to be resident.
    pub fn from_data(data: TensorData, device: &B::Device) -> Result<Self, Box<Returned>> {
        let layout = Layout::dense(data.shape.clone(), data.dtype);
        let quantized = matches!(data.dtype, DType::QFloat(_));
        let whole = quantized || data.bytes.len() as u64 == layout.bytes();
        let Some(state) = DeviceState::get(device).filter(|_| whole) else {
            // Data that is not of its own shape is the wrapped backend's to refuse.
            return Err(Returned::new(data, Declined::default()));
        };
        let orders = Orders::now(&state);
        let bytes = data.bytes.len() as u64;
        let Admission { decision, charge } = orders.admit(&state, bytes);
        let mut record = orders.record(&layout, bytes, decision, None);
        if record.decision.placement == Placement::Resident {
            return Err(Returned::new(data, Declined::new(record, Some(charge))));
        }
        let buffer = match fill(&state, &data.bytes, charge) {
            Ok(buffer) => buffer,
            Err(refused) => {
                warn_refused(orders.name.as_deref(), bytes, &refused);
                record.refused = Some(refused.to_string());
                return Err(Returned::new(data, Declined::new(record, None)));
            }
        };
        record.memory = Some(buffer.kind());
        let hosted = Hosted::new(buffer, layout.clone(), data.dtype, device.clone());
        let entry = state.ledger.open(record);
        Ok(Self::offloaded(
            layout,
            device,
            hosted,
            entry,
            orders.policy,
        ))
    }

    /// A parameter whose bytes lie in a file, put where `decision` says, if the budget still has room
    /// for it. Bytes of the wanted type are not copied when it is offloaded.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Refused`] when the system gives no memory for a copy.
    pub fn from_file(
        slice: FileSlice,
        stored: DType,
        layout: Layout,
        device: &B::Device,
        order: Order<'_>,
    ) -> Result<Self, OffloadError> {
        let Order {
            name,
            decision,
            policy,
            state,
        } = order;
        let bytes = layout.bytes();
        let _span = tracing::debug_span!("load", parameter = name, bytes).entered();
        let as_it_lies = convert::is_same(stored, layout.dtype)
            && (slice.bytes().as_ptr() as usize).is_multiple_of(layout.dtype.size());
        let admission = admit(state, bytes, |used| {
            within_budget(&decision, policy, bytes, used)
        });
        let Admission { decision, charge } = admission;
        if decision.placement == Placement::Resident {
            let data = TensorData {
                bytes: Bytes::from_bytes_vec(convert::to_vec(slice.bytes(), stored, layout.dtype)),
                shape: layout.stored_shape(),
                dtype: layout.dtype,
            };
            drop(slice);
            let make = |data| K::from_stored(data, &layout, device);
            let tensor = {
                let _op = Op::enter();
                B::memory_persistent_allocations(device, data, make)
            };
            if state.has_uploaded(bytes) {
                B::release_uploads(device);
            }
            let slot = Self::resident(tensor);
            let record = record_of(&slot.layout, bytes, Some(name.into()), decision, None);
            slot.declined(Declined::new(record, Some(charge)));
            return Ok(slot);
        }
        let allocator = state.host().allocator;
        let buffer = if as_it_lies {
            allocator.adopt(slice, charge)
        } else {
            let refused = |source| OffloadError::Refused {
                name: name.into(),
                bytes,
                source,
            };
            let mut memory = allocator
                .allocate(bytes as usize, charge)
                .map_err(refused)?;
            convert::fill(slice.bytes(), stored, memory.bytes_mut(), layout.dtype);
            HostBuffer::new(memory)
        };
        let record = record_of(
            &layout,
            bytes,
            Some(name.into()),
            decision,
            Some(buffer.kind()),
        );
        let dense = Layout::dense(layout.shape.clone(), layout.dtype);
        let hosted = Hosted::new(buffer, layout, dense.dtype, device.clone());
        let (entry, policy) = (state.ledger.open(record), Arc::new(policy.clone()));
        // Later copies to the host are dense.
        Ok(Self::offloaded(dense, device, hosted, entry, policy))
    }

    /// Opens the books for a resident slot, with what kept it from the host.
    pub fn declined(&self, declined: Declined) {
        if let (Some(mut record), Some(state)) = (declined.record, DeviceState::get(&self.device)) {
            record.bytes = self.bytes();
            record.decision.placement = Placement::Resident;
            // Only a slot that nobody else has seen is declined.
            self.entry
                .get_or_init(|| Arc::new(state.ledger.open(record)));
        }
    }

    fn bytes(&self) -> u64 {
        match self.place() {
            Place::Offloaded(hosted) => hosted.buffer().as_ref().len() as u64,
            Place::Resident(_) => self.layout.bytes(),
        }
    }

    fn set(&self, place: Place<B, K>) {
        drop(self.replace(place));
    }

    fn replace(&self, place: Place<B, K>) -> Place<B, K> {
        let mut slot = self.place.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *slot, place)
    }

    fn entry(&self, state: &DeviceState) -> &Arc<Entry> {
        self.entry.get_or_init(|| {
            let decision = Decision {
                placement: Placement::Resident,
                reason: Reason::Unnamed,
            };
            let record = record_of(&self.layout, self.bytes(), None, decision, None);
            Arc::new(state.ledger.open(record))
        })
    }

    /// What has to be moved for a resident tensor to be offloaded, and its size on the host. Only the
    /// backend knows how it packs a quantized tensor, so that is read before the budget is asked.
    fn outgoing(
        &self,
        tensor: K::Primitive,
    ) -> Result<(Outgoing<K::Primitive>, u64), OffloadError> {
        if !matches!(self.layout.dtype, DType::QFloat(_)) {
            return Ok((Outgoing::Tensor(tensor), self.layout.bytes()));
        }
        let data = read_data::<B, K>(tensor)?;
        let bytes = data.bytes.len() as u64;
        Ok((Outgoing::Data(data), bytes))
    }

    /// Copies a resident tensor's bytes to the host. The books are the caller's.
    fn host_copy(
        &self,
        state: &DeviceState,
        outgoing: Outgoing<K::Primitive>,
        charge: Charge,
    ) -> Result<Hosted<B, K>, OffloadError> {
        let bytes = self.layout.bytes();
        let _span = tracing::debug_span!("offload", parameter = self.name(), bytes).entered();
        let refused = |source| OffloadError::Refused {
            name: self.name(),
            bytes,
            source,
        };
        let (buffer, stored) = match outgoing {
            Outgoing::Data(data) => (
                fill(state, &data.bytes, charge).map_err(refused)?,
                data.dtype,
            ),
            Outgoing::Tensor(tensor) => {
                let bytes = self.layout.bytes() as usize;
                let allocator = state.host().allocator;
                let mut memory = allocator.allocate(bytes, charge).map_err(refused)?;
                B::download(K::erase(tensor), memory.bytes_mut())?;
                (HostBuffer::new(memory), self.layout.dtype)
            }
        };
        Ok(Hosted::new(
            buffer,
            self.layout.clone(),
            stored,
            self.device.clone(),
        ))
    }

    fn name(&self) -> String {
        self.record()
            .and_then(|r| r.name)
            .unwrap_or_else(|| "(unnamed)".into())
    }

    fn lock_placed_by(&self) -> MutexGuard<'_, Option<Arc<OffloadPolicy>>> {
        self.placed_by
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn offload(
        &self,
        state: &DeviceState,
        outgoing: Outgoing<K::Primitive>,
        charge: Charge,
        decision: Decision,
        policy: Arc<OffloadPolicy>,
    ) -> Result<(), OffloadError> {
        match self.host_copy(state, outgoing, charge) {
            Ok(hosted) => {
                *self.lock_placed_by() = Some(policy);
                let kind = hosted.buffer().kind();
                let bytes = hosted.buffer().as_ref().len() as u64;
                self.set(Place::Offloaded(Arc::new(hosted)));
                self.entry(state).update(|r| {
                    r.decision = decision;
                    r.memory = Some(kind);
                    r.bytes = bytes;
                    r.refused = None;
                });
                Ok(())
            }
            Err(err) => {
                let reason = err.to_string();
                self.entry(state).update(|r| {
                    r.decision.reason = decision.reason;
                    r.refused = Some(reason);
                });
                Err(err)
            }
        }
    }
}

/// A new value in a parameter's place, as an optimizer makes one, or in that of its state.
impl<B: OffloadTarget, K: Kind<B>> Slot<B, K> {
    /// Puts a new value of the same shape and type where the parameter is, which nobody else has: into
    /// the same host memory where that can be written, else into new. Where the system or the device
    /// fails the value stays on the device, and the books and the log say why.
    pub fn rewrite(&self, tensor: K::Primitive) {
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.replace(Place::Resident(tensor.clone()));
        let Some(state) = DeviceState::get(&self.device) else {
            return;
        };
        let Place::Offloaded(hosted) = old else {
            if self.returns.load(Ordering::Relaxed) {
                self.settle_anew(&state, tensor);
            }
            return;
        };
        let bytes = self.layout.bytes();
        let _span = tracing::debug_span!("rewrite", parameter = self.name(), bytes).entered();
        // The old bytes are read until then.
        let made = B::verify(K::erase(tensor.clone()), &self.device);
        let dense = !matches!(self.layout.dtype, DType::QFloat(_));
        let hosted = Arc::into_inner(hosted).filter(|_| dense);
        let buffer = hosted.map(Hosted::into_buffer);
        let written = buffer.and_then(|mut buffer| {
            let download = |bytes: &mut [u8]| B::download(K::erase(tensor.clone()), bytes);
            let written = buffer.rewrite(|bytes| made.and_then(|()| download(bytes)))?;
            Some(written.map(|()| buffer))
        });
        match written {
            Some(Ok(buffer)) => {
                let (layout, dtype) = (self.layout.clone(), self.layout.dtype);
                let hosted = Hosted::new(buffer, layout, dtype, self.device.clone());
                self.set(Place::Offloaded(Arc::new(hosted)));
            }
            Some(Err(err)) => self.stays(&state, &err),
            None => self.settle_anew(&state, tensor),
        }
    }

    /// A slot of its own for a new value that takes the place of this one's, which others still have.
    pub fn beside(&self, tensor: K::Primitive) -> Self {
        let slot = Self::resident(tensor.clone());
        let (Some(state), Some(record)) = (DeviceState::get(&self.device), self.record()) else {
            return slot;
        };
        let record = Record {
            shape: slot.layout.shape.to_vec(),
            dtype: slot.layout.dtype.name().to_string(),
            bytes: slot.layout.bytes(),
            ..record
        };
        let offloaded = record.decision.placement == Placement::Offloaded;
        slot.lock_placed_by().clone_from(&self.lock_placed_by());
        slot.entry
            .get_or_init(|| Arc::new(state.ledger.open(record)));
        if offloaded {
            slot.settle_anew(&state, tensor);
        }
        slot
    }

    /// A slot for a new value of a resident parameter, whose line in the books goes on.
    pub fn take_over(tensor: K::Primitive, line: Line) -> Self {
        let slot = Self::resident(tensor.clone());
        *slot.lock_placed_by() = line.placed_by;
        slot.entry.get_or_init(|| line.entry);
        if line.returns
            && let Some(state) = DeviceState::get(&slot.device)
        {
            slot.settle_anew(&state, tensor);
        }
        slot
    }

    /// A slot for optimizer state that has no place yet.
    pub fn optimizer_state(tensor: K::Primitive, place: &StatePlace) -> Self {
        let slot = Self::resident(tensor.clone());
        let Some(state) = DeviceState::get(&slot.device) else {
            return slot;
        };
        let decision = Decision {
            placement: Placement::Resident,
            reason: Reason::Unnamed,
        };
        let bytes = slot.layout.bytes();
        let record = Record {
            role: Role::OptimizerState,
            ..record_of(&slot.layout, bytes, place.name.clone(), decision, None)
        };
        *slot.lock_placed_by() = Some(place.policy.clone());
        slot.entry
            .get_or_init(|| Arc::new(state.ledger.open(record)));
        slot.settle_anew(&state, tensor);
        slot
    }

    /// The policy that put the parameter where it is.
    pub fn placed_by(&self) -> Option<Arc<OffloadPolicy>> {
        self.lock_placed_by().clone()
    }

    /// The line in the books of a resident tensor that nobody else has.
    pub fn line(&self) -> Option<Line> {
        let entry = self.entry.get().cloned();
        entry.map(|entry| Line {
            entry,
            placed_by: self.lock_placed_by().clone(),
            returns: self.returns.load(Ordering::Relaxed),
        })
    }

    /// Offloads a new value, where there is still room for what its line says.
    fn settle_anew(&self, state: &DeviceState, tensor: K::Primitive) {
        let entry = self.entry(state);
        let Record { decision, role, .. } = entry.record();
        let (outgoing, bytes) = match self.outgoing(tensor) {
            Ok(outgoing) => outgoing,
            Err(err) => return self.stays(state, &err),
        };
        let policy = self.lock_placed_by().clone();
        let policy = policy.unwrap_or_else(|| state.policy());
        // Until it lies in the memory that was reserved for it, it counts on that side alone.
        entry.update(|r| {
            r.decision.placement = Placement::Resident;
            r.decision.reason = Reason::Unnamed;
            r.memory = None;
        });
        let Admission { decision, charge } = match role {
            Role::OptimizerState => admit_state(state, bytes, &policy),
            Role::Parameter => {
                // What is to return was planned to be there.
                let planned = match policy.budget {
                    Budget::Host(_) => Decision::offloaded(Reason::WithinHostBudget),
                    _ => Decision {
                        placement: Placement::Offloaded,
                        ..decision
                    },
                };
                admit(state, bytes, |used| {
                    within_budget(&planned, &policy, bytes, used)
                })
            }
        };
        if decision.placement == Placement::Resident {
            entry.update(|r| r.decision = decision);
            self.returns.store(true, Ordering::Relaxed);
            return;
        }
        let offloaded = self.offload(state, outgoing, charge, decision, policy);
        self.returns.store(offloaded.is_err(), Ordering::Relaxed);
        if let Err(err) = offloaded {
            warn_refused(Some(&self.name()), bytes, &err);
        }
    }

    /// What was to be offloaded stays on the device.
    fn stays(&self, state: &DeviceState, err: &OffloadError) {
        warn_refused(Some(&self.name()), self.layout.bytes(), err);
        self.entry(state).update(|r| {
            r.decision.placement = Placement::Resident;
            r.memory = None;
            r.refused = Some(err.to_string());
        });
        self.returns.store(true, Ordering::Relaxed);
    }
}

/// The line in the books of a resident parameter that is about to be replaced.
#[derive(Clone)]
pub struct Line {
    entry: Arc<Entry>,
    placed_by: Option<Arc<OffloadPolicy>>,
    returns: bool,
}

impl Line {
    /// Whether the other is the same line.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entry, &other.entry)
    }

    /// A copy of the line.
    pub fn record(&self) -> Record {
        self.entry.record()
    }

    /// The policy that put the parameter where it is.
    pub fn placed_by(&self) -> Option<Arc<OffloadPolicy>> {
        self.placed_by.clone()
    }
}

/// Where an optimizer's state is to go.
pub struct StatePlace {
    /// What it is called in the books.
    pub name: Option<String>,
    /// The policy with the budget for it.
    pub policy: Arc<OffloadPolicy>,
}

impl<B: OffloadTarget, K: Kind<B>> Placed for Slot<B, K> {
    fn settle(&self) -> u64 {
        let Some(state) = DeviceState::get(&self.device) else {
            return 0;
        };
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if self.entry.get().is_some() {
            return 0;
        }
        let orders = Orders::now(&state);
        let Place::Resident(tensor) = self.place() else {
            return 0;
        };
        let open = |decision: Decision, bytes| {
            let mut record = orders.record(&self.layout, bytes, decision, None);
            record.decision.placement = Placement::Resident;
            self.entry
                .get_or_init(|| Arc::new(state.ledger.open(record)));
        };
        // Burn's allocation calls cannot fail; the report and the log say what happened.
        let (outgoing, bytes) = match self.outgoing(tensor) {
            Ok(outgoing) => outgoing,
            Err(err) => {
                let bytes = self.layout.bytes();
                open(orders.decide(bytes, state.ledger.used()), bytes);
                let reason = err.to_string();
                self.entry(&state).update(|r| r.refused = Some(reason));
                warn_refused(orders.name.as_deref(), bytes, &err);
                return 0;
            }
        };
        let Admission { decision, charge } = orders.admit(&state, bytes);
        if decision.placement == Placement::Resident {
            open(decision, bytes);
            return 0;
        }
        // Until it lies in the memory that was reserved for it, it counts on that side alone.
        let waiting = Decision {
            placement: Placement::Resident,
            reason: Reason::Unnamed,
        };
        open(waiting, bytes);
        let policy = orders.policy.clone();
        match self.offload(&state, outgoing, charge, decision, policy) {
            Ok(()) => bytes,
            Err(err) => {
                warn_refused(orders.name.as_deref(), bytes, &err);
                0
            }
        }
    }

    fn record(&self) -> Option<Record> {
        self.entry.get().map(|entry| entry.record())
    }

    fn annotate(&self, change: &mut dyn FnMut(&mut Record)) {
        if let Some(state) = DeviceState::get(&self.device) {
            self.entry(&state).update(change);
        }
    }

    fn move_to(&self, decision: Decision, policy: &OffloadPolicy) -> Result<bool, OffloadError> {
        let Some(state) = DeviceState::get(&self.device) else {
            return Ok(false);
        };
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = self.entry(&state).record().is_waiting();
        match (decision.placement, self.place()) {
            (Placement::Resident, Place::Resident(_)) if !waits => {
                self.entry(&state)
                    .update(|r| r.decision.reason = decision.reason);
                Ok(false)
            }
            (Placement::Offloaded, Place::Offloaded(_)) => {
                self.entry(&state)
                    .update(|r| r.decision.reason = decision.reason);
                Ok(false)
            }
            // The plan was made before; other threads may have taken from the budget since.
            (_, Place::Resident(tensor)) => {
                let (outgoing, bytes) = self.outgoing(tensor)?;
                let Admission { decision, charge } = admit(&state, bytes, |used| {
                    within_budget(&decision, policy, bytes, used)
                });
                match decision.placement {
                    Placement::Offloaded => self
                        .offload(&state, outgoing, charge, decision, Arc::new(policy.clone()))
                        .map(|()| true),
                    Placement::Resident => {
                        self.entry(&state).update(|r| r.decision = decision);
                        Ok(false)
                    }
                }
            }
            (Placement::Resident, Place::Offloaded(hosted)) => {
                let Admission { decision, charge } = admit(&state, self.bytes(), |used| {
                    within_budget(&decision, policy, self.bytes(), used)
                });
                if decision.placement == Placement::Offloaded {
                    self.entry(&state)
                        .update(|r| r.decision.reason = decision.reason);
                    return Ok(false);
                }
                let bytes = self.bytes();
                let _span =
                    tracing::debug_span!("recall", parameter = self.name(), bytes).entered();
                // The host copy is let go only when the device is known to have its own.
                let tensor = hosted.upload().map_err(|err| OffloadError::NotRecalled {
                    name: self.name(),
                    bytes: self.bytes(),
                    reason: err.to_string(),
                })?;
                self.set(Place::Resident(tensor));
                self.entry(&state).update(|r| {
                    r.decision = decision;
                    r.memory = None;
                    r.refused = None;
                });
                drop(charge);
                Ok(true)
            }
        }
    }

    fn state(&self) -> Option<Arc<DeviceState>> {
        DeviceState::get(&self.device)
    }

    fn directive(&self) -> Option<Directive> {
        if matches!(self.place(), Place::Resident(_)) {
            return None;
        }
        Some(Directive {
            name: self.record()?.name,
            policy: self.lock_placed_by().clone()?,
        })
    }
}

impl<B: OffloadTarget, K: Kind<B>> fmt::Debug for Slot<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            Place::Resident(tensor) => write!(f, "Resident({tensor:?})"),
            Place::Offloaded(hosted) => hosted.fmt(f),
        }
    }
}

/// Where a parameter that is read from a file goes.
pub struct Order<'a> {
    /// The parameter's path.
    pub name: &'a str,
    /// Where it was planned to go.
    pub decision: Decision,
    /// The policy of the plan.
    pub policy: &'a OffloadPolicy,
    /// Its device.
    pub state: &'a DeviceState,
}

/// A decision that was planned, unless others have taken from the budget since.
fn within_budget(planned: &Decision, policy: &OffloadPolicy, bytes: u64, used: Used) -> Decision {
    let (cap, taken, over): (_, _, fn(u64) -> Decision) = match (policy.budget, &planned.reason) {
        (Budget::Host(cap), _) if planned.placement == Placement::Offloaded => {
            (cap, used.offloaded, |left| Decision {
                placement: Placement::Resident,
                reason: Reason::OverHostBudget { left },
            })
        }
        (Budget::Device(cap), Reason::WithinDeviceBudget) => {
            (cap, used.resident, |left| Decision {
                placement: Placement::Offloaded,
                reason: Reason::OverDeviceBudget { left },
            })
        }
        _ => return planned.clone(),
    };
    let left = cap.as_u64().saturating_sub(taken);
    if bytes > left {
        over(left)
    } else {
        planned.clone()
    }
}

/// Host data that is not to lie in host memory.
pub struct Returned {
    pub data: TensorData,
    pub declined: Declined,
}

impl Returned {
    fn new(data: TensorData, declined: Declined) -> Box<Self> {
        Box::new(Self { data, declined })
    }
}

/// A resident tensor on its way to the host.
enum Outgoing<T> {
    /// On the device, to be copied straight into its host memory.
    Tensor(T),
    /// Already read.
    Data(TensorData),
}

/// Why new host data was not taken in: what the books are told once the tensor is on the device.
#[derive(Default)]
pub struct Declined {
    record: Option<Record>,
    /// Its bytes on the device, until they are in the books.
    _charge: Option<Charge>,
}

impl Declined {
    fn new(record: Record, charge: Option<Charge>) -> Self {
        Self {
            record: Some(record),
            _charge: charge,
        }
    }
}

/// A tensor's data, as the backend gives it.
fn read_data<B: OffloadTarget, K: Kind<B>>(
    tensor: K::Primitive,
) -> Result<TensorData, OffloadError> {
    let data = burn_backend::read_sync(Op::enter_future(K::into_data(tensor)));
    data.map_err(|err| OffloadError::Read {
        reason: err.to_string(),
    })
}

/// What holds for what is allocated now.
struct Orders {
    name: Option<String>,
    policy: Arc<OffloadPolicy>,
    role: Role,
}

impl Orders {
    fn now(state: &DeviceState) -> Self {
        let role = scope::role();
        match scope::directive() {
            Some(Directive { name, policy }) => Self { name, policy, role },
            None => Self {
                name: None,
                policy: state.policy(),
                role,
            },
        }
    }

    fn admit(&self, state: &DeviceState, bytes: u64) -> Admission {
        match self.role {
            Role::Parameter => admit(state, bytes, |used| self.decide(bytes, used)),
            Role::OptimizerState => admit_state(state, bytes, &self.policy),
        }
    }

    fn decide(&self, bytes: u64, used: Used) -> Decision {
        self.policy.decide(self.name.as_deref(), bytes, used)
    }

    fn record(
        &self,
        layout: &Layout,
        bytes: u64,
        decision: Decision,
        memory: Option<MemoryKind>,
    ) -> Record {
        Record {
            role: self.role,
            ..record_of(layout, bytes, self.name.clone(), decision, memory)
        }
    }
}

/// Asks the ledger; where only memory on its way back to the system stands in the way, waits for it
/// and asks again.
fn admit(state: &DeviceState, bytes: u64, decide: impl Fn(Used) -> Decision) -> Admission {
    let admission = state.ledger.admit(bytes, &decide);
    if matches!(admission.decision.reason, Reason::OverHostBudget { .. })
        && state.ledger.retiring(Role::Parameter) > 0
    {
        state.reclaim();
        return state.ledger.admit(bytes, &decide);
    }
    admission
}

/// Asks the ledger for room for optimizer state, and waits as [`admit`] does.
fn admit_state(state: &DeviceState, bytes: u64, policy: &OffloadPolicy) -> Admission {
    let budget = policy.optimizer_state.map_or(0, |size| size.as_u64());
    let admission = state.ledger.admit_state(bytes, budget);
    if admission.decision.placement == Placement::Resident
        && state.ledger.retiring(Role::OptimizerState) > 0
    {
        state.reclaim();
        return state.ledger.admit_state(bytes, budget);
    }
    admission
}

fn fill(
    state: &DeviceState,
    data: &[u8],
    charge: Charge,
) -> Result<HostBuffer, crate::host::HostError> {
    let mut memory = state.host().allocator.allocate(data.len(), charge)?;
    memory.bytes_mut().copy_from_slice(data);
    Ok(HostBuffer::new(memory))
}

fn record_of(
    layout: &Layout,
    bytes: u64,
    name: Option<String>,
    decision: Decision,
    memory: Option<MemoryKind>,
) -> Record {
    Record {
        name,
        shape: layout.shape.to_vec(),
        dtype: layout.dtype.name().to_string(),
        bytes,
        decision,
        memory,
        shares: None,
        refused: None,
        role: Role::Parameter,
    }
}

fn warn_refused(name: Option<&str>, bytes: u64, err: &dyn std::error::Error) {
    tracing::warn!(
        parameter = name.unwrap_or("(unnamed)"),
        bytes,
        "not offloaded, it stays on the device: {err}"
    );
}
