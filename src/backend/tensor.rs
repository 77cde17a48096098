use std::{fmt, sync::Arc};

use burn_backend::{
    DType, Device, ExecutionError, QTensorPrimitive, Shape, TensorData, TensorMetadata,
    quantization::{QuantPropagation, QuantScheme},
};
use burn_std::quantization::QuantAcc;

use crate::{
    access::{Reading, Reuse},
    error::OffloadError,
    host::{FileSlice, Op, Role},
    target::{Kind, Layout, OffloadTarget, Quantized, View},
};

use super::{
    execution_error, scope,
    slot::{Order, Place, Placed, Returned, Slot},
    state::DeviceState,
};

/// A tensor of [`Offloaded`](crate::Offloaded): the wrapped backend's own, or a parameter that has
/// a place.
pub struct OffloadedTensor<B: OffloadTarget, K: Kind<B>>(Repr<B, K>);

enum Repr<B: OffloadTarget, K: Kind<B>> {
    /// An ordinary tensor.
    Plain(K::Primitive),
    /// A parameter.
    Param(Arc<Slot<B, K>>),
    /// Views of an offloaded parameter.
    Views(Box<Views<B, K>>),
}

struct Views<B: OffloadTarget, K: Kind<B>> {
    slot: Arc<Slot<B, K>>,
    /// Those not yet taken, oldest first.
    views: Vec<View>,
    /// What comes of them.
    shape: Shape,
}

impl<B: OffloadTarget, K: Kind<B>> OffloadedTensor<B, K> {
    /// Takes in a tensor that the wrapped backend made, as an ordinary one.
    #[inline]
    pub(crate) fn plain(tensor: K::Primitive) -> Self {
        Self(Repr::Plain(tensor))
    }

    /// Takes in a tensor that the wrapped backend made. Inside a parameter scope it may become a
    /// parameter.
    pub(crate) fn adopt(tensor: K::Primitive) -> Self {
        Self::plain(tensor).watch()
    }

    /// Has a result be a parameter where it is to be one: inside a parameter scope, or where everything is
    /// offloaded.
    pub(crate) fn watch(self) -> Self {
        match self.0 {
            Repr::Plain(tensor) if scope::is_open() || DeviceState::any_offloads_everything() => {
                Self::adopt_watched(tensor, None)
            }
            repr => Self(repr),
        }
    }

    /// The same for a tensor of random numbers, as models are initialised with: outside a parameter scope
    /// too it may become a parameter.
    pub(crate) fn watch_made(self) -> Self {
        match self.0 {
            Repr::Plain(tensor) if DeviceState::any_takes_unscoped() => {
                let bytes = Layout::dense(tensor.shape(), tensor.dtype()).bytes();
                Self::adopt_watched(tensor, Some(bytes))
            }
            repr => Self(repr).watch(),
        }
    }

    #[cold]
    fn adopt_watched(tensor: K::Primitive, made: Option<u64>) -> Self {
        let Some(state) = watching(&K::device(&tensor), made) else {
            return Self(Repr::Plain(tensor));
        };
        let slot = Arc::new(Slot::resident(tensor));
        if scope::is_open() && !state.offloads_everything() {
            let placed: Arc<dyn Placed> = slot.clone();
            scope::note(Arc::downgrade(&placed));
        } else {
            slot.settle();
        }
        Self::of_slot(slot)
    }

    /// Takes in host data. Inside a parameter scope it goes straight to where the policy says.
    pub(crate) fn from_data(data: TensorData, device: &B::Device) -> Self {
        let Some(state) = watching(device, Some(data.bytes.len() as u64)) else {
            return Self(Repr::Plain(K::from_data(data, device)));
        };
        match Slot::from_data(data, device) {
            Ok(slot) => Self::of_slot(Arc::new(slot)),
            Err(returned) => {
                let Returned { data, declined } = *returned;
                let bytes = data.bytes.len() as u64;
                let tensor = {
                    let _op = Op::enter();
                    K::from_data(data, device)
                };
                if state.has_uploaded(bytes) {
                    B::release_uploads(device);
                }
                let slot = Slot::resident(tensor);
                slot.declined(declined);
                Self::of_slot(Arc::new(slot))
            }
        }
    }

    /// A parameter whose bytes lie in a file, as `layout` says.
    ///
    /// # Errors
    ///
    /// [`OffloadError::Refused`] when the system gives no memory for a copy.
    pub(crate) fn from_file(
        slice: FileSlice,
        stored: DType,
        layout: Layout,
        device: &B::Device,
        order: Order<'_>,
    ) -> Result<Self, OffloadError> {
        let slot = Slot::from_file(slice, stored, layout, device, order)?;
        Ok(Self::of_slot(Arc::new(slot)))
    }

    /// The tensor as a parameter, and its slot: as it is if it is one, else in a new slot.
    pub(crate) fn into_param(self) -> (Self, Arc<dyn Placed>) {
        let tensor = match self.0 {
            Repr::Plain(tensor) => Self::of_slot(Arc::new(Slot::resident(tensor))),
            param => Self(param),
        };
        match &tensor.0 {
            Repr::Plain(_) => unreachable!("it has a slot since just now"),
            Repr::Param(slot) => {
                let slot = slot.clone();
                (tensor, slot)
            }
            Repr::Views(views) => {
                let slot = views.slot.clone();
                (tensor, slot)
            }
        }
    }

    /// Whether the other tensor is the same, element by element. `false` where one cannot be read.
    pub(crate) fn same_data(&self, other: &Self) -> bool {
        if self.shape() != other.shape() || self.dtype() != other.dtype() {
            return false;
        }
        let read = |tensor: &Self| burn_backend::read_sync(tensor.clone().into_data()).ok();
        read(self).is_some_and(|mine| read(other).is_some_and(|theirs| mine == theirs))
    }

    /// The parameter's slot.
    pub(crate) fn slot(&self) -> Option<Arc<dyn Placed>> {
        match &self.0 {
            Repr::Plain(_) => None,
            Repr::Param(slot) => Some(slot.clone()),
            Repr::Views(views) => Some(views.slot.clone()),
        }
    }

    /// How to place what takes the place of this, where it is an offloaded parameter as it was made.
    pub(crate) fn directive(&self) -> Option<scope::Directive> {
        self.own_slot()?.directive()
    }

    /// The slot of a parameter that is as it was made.
    pub(super) fn own_slot(&self) -> Option<&Arc<Slot<B, K>>> {
        match &self.0 {
            Repr::Param(slot) => Some(slot),
            _ => None,
        }
    }

    /// A parameter.
    pub(super) fn of_slot(slot: Arc<Slot<B, K>>) -> Self {
        Self(Repr::Param(slot))
    }

    /// The wrapped backend's tensor, for one operation that reads its bytes about once.
    #[inline]
    pub(crate) fn read(self) -> K::Primitive {
        self.read_for(Reuse::Once)
    }

    /// The wrapped backend's tensor, for one operation.
    #[inline]
    pub(crate) fn read_for(self, reuse: Reuse) -> K::Primitive {
        match self.0 {
            Repr::Plain(tensor) => tensor,
            param => Self(param).read_param(reuse),
        }
    }

    // Apart, so that the way of ordinary tensors through an operation is short.
    #[inline(never)]
    fn read_param(self, reuse: Reuse) -> K::Primitive {
        match self.0 {
            Repr::Plain(tensor) => tensor,
            Repr::Param(slot) => {
                let span = slot.reading();
                match last_place(slot) {
                    Place::Resident(tensor) => tensor,
                    Place::Offloaded(hosted) => {
                        span.in_scope(|| hosted.read(Reading { reuse, share: 1.0 }))
                    }
                }
            }
            Repr::Views(views) => views.read(reuse),
        }
    }

    /// The wrapped backend's tensor, or this as it is where it is a parameter.
    #[inline]
    pub(crate) fn into_plain(self) -> Result<K::Primitive, Self> {
        match self.0 {
            Repr::Plain(tensor) => Ok(tensor),
            param => Err(Self(param)),
        }
    }

    /// A view of the tensor. That of an offloaded one waits until it is read.
    pub(crate) fn view(self, view: View) -> Self {
        let op = Op::enter();
        let shape = view.shape(&self.shape()).filter(|_| self.puts_views_off());
        let tensor = match (self.0, shape) {
            (Repr::Param(slot), Some(shape)) => {
                let views = vec![view];
                return Self(Repr::Views(Box::new(Views { slot, views, shape })));
            }
            (Repr::Views(mut views), Some(shape)) => {
                views.views.push(view);
                views.shape = shape;
                return Self(Repr::Views(views));
            }
            (repr, _) => K::view(Self(repr).read(), view),
        };
        drop(op);
        Self::adopt(tensor)
    }

    /// Whether views of it are taken only when it is read.
    fn puts_views_off(&self) -> bool {
        K::LAZY_VIEWS
            && match &self.0 {
                Repr::Plain(_) => false,
                Repr::Param(slot) => slot.is_offloaded(),
                Repr::Views(views) => views.slot.is_offloaded(),
            }
    }

    /// The tensor itself, through an operation that is about the autodiff graph only.
    #[inline]
    pub(crate) fn same(self, f: impl FnOnce(K::Primitive) -> K::Primitive) -> Self {
        match self.0 {
            Repr::Plain(tensor) => Self(Repr::Plain(f(tensor))),
            param => Self(param),
        }
    }

    /// Asks the wrapped backend's tensor, if this is one.
    pub(crate) fn plain_ref(&self) -> Option<&K::Primitive> {
        match &self.0 {
            Repr::Plain(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub(crate) fn device(&self) -> B::Device {
        match &self.0 {
            Repr::Plain(tensor) => K::device(tensor),
            Repr::Param(slot) => slot.device.clone(),
            Repr::Views(views) => views.slot.device.clone(),
        }
    }

    /// The device's tensor, or this as it is where it is offloaded.
    pub(super) fn into_resident(self) -> Result<K::Primitive, Self> {
        match &self.0 {
            Repr::Param(slot) if slot.is_offloaded() => Err(self),
            Repr::Views(views) if views.slot.is_offloaded() => Err(self),
            _ => Ok(self.read()),
        }
    }

    /// Free on the same device. A parameter is placed on the other device by that one's policy.
    pub(crate) fn moved_to(self, device: &B::Device) -> Self {
        if *device == self.device() {
            return self;
        }
        if let Some(data) = self.host_data() {
            return scope::run(|| Self::from_data(data, device)).0;
        }
        let is_param = self.plain_ref().is_none();
        let move_it = || {
            let op = Op::enter();
            let tensor = K::to_device(self.read(), device);
            drop(op);
            Self::adopt(tensor)
        };
        if is_param {
            scope::run(move_it).0
        } else {
            move_it()
        }
    }

    /// The data: an offloaded tensor's straight from the host memory.
    pub(crate) async fn into_data(self) -> Result<TensorData, ExecutionError> {
        if let Some(data) = self.host_data() {
            return Ok(data);
        }
        let device = DeviceState::any().then(|| self.device());
        let future = {
            let _op = Op::enter();
            K::into_data(self.read())
        };
        let data = Op::enter_future(future).await;
        if let Some(device) = device {
            B::end_of_step(&device).map_err(execution_error)?;
        }
        data
    }

    /// The data of an offloaded tensor as it lies in host memory.
    pub(crate) fn host_data(&self) -> Option<TensorData> {
        match self.own_slot()?.place() {
            Place::Offloaded(hosted) => Some(hosted.data()),
            Place::Resident(_) => None,
        }
    }
}

/// Where a slot's bytes are, for one who has done with the slot: where nobody else has it, the backend may
/// use a resident tensor's memory again.
fn last_place<B: OffloadTarget, K: Kind<B>>(slot: Arc<Slot<B, K>>) -> Place<B, K> {
    match Arc::try_unwrap(slot) {
        Ok(slot) => {
            slot.note_displaced();
            slot.into_place()
        }
        Err(slot) => slot.place(),
    }
}

/// The state of a device on which a tensor made now is to have a place: inside a parameter scope, where
/// everything is offloaded, or where one is `made` of so many bytes that it is taken for a parameter.
fn watching<D: Device>(device: &D, made: Option<u64>) -> Option<Arc<DeviceState>> {
    let in_scope = scope::is_open();
    let made = made.filter(|_| DeviceState::any_takes_unscoped());
    if !in_scope && made.is_none() && !DeviceState::any_offloads_everything() {
        return None;
    }
    DeviceState::get(device).filter(|state| {
        in_scope && (scope::role() == Role::Parameter || state.policy().optimizer_state.is_some())
            || state.offloads_everything()
            || made.is_some_and(|bytes| state.takes_unscoped(bytes))
    })
}

impl<B: OffloadTarget, K: Kind<B>> Views<B, K> {
    fn read(self, reuse: Reuse) -> K::Primitive {
        let span = self.slot.reading();
        let tensor = match last_place(self.slot) {
            Place::Resident(tensor) => tensor,
            Place::Offloaded(hosted) => {
                let whole = hosted.elements().max(1) as f64;
                let share = (self.shape.num_elements() as f64 / whole).min(1.0);
                span.in_scope(|| hosted.read(Reading { reuse, share }))
            }
        };
        self.views.into_iter().fold(tensor, K::view)
    }
}

impl<B: OffloadTarget, K: Kind<B>> Clone for Views<B, K> {
    fn clone(&self) -> Self {
        Self {
            slot: self.slot.clone(),
            views: self.views.clone(),
            shape: self.shape.clone(),
        }
    }
}

impl<B: OffloadTarget, K: Kind<B>> Clone for OffloadedTensor<B, K> {
    #[inline]
    fn clone(&self) -> Self {
        match &self.0 {
            Repr::Plain(tensor) => Self(Repr::Plain(tensor.clone())),
            Repr::Param(slot) => Self(Repr::Param(slot.clone())),
            Repr::Views(views) => Self(Repr::Views(views.clone())),
        }
    }
}

impl<B: OffloadTarget, K: Kind<B>> fmt::Debug for OffloadedTensor<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Plain(tensor) => tensor.fmt(f),
            Repr::Param(slot) => f.debug_tuple("Param").field(slot).finish(),
            Repr::Views(views) => f
                .debug_struct("Views")
                .field("slot", &views.slot)
                .field("views", &views.views)
                .finish(),
        }
    }
}

impl<B: OffloadTarget, K: Kind<B>> TensorMetadata for OffloadedTensor<B, K> {
    #[inline]
    fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Plain(tensor) => tensor.dtype(),
            Repr::Param(slot) => slot.layout.dtype,
            Repr::Views(views) => views.slot.layout.dtype,
        }
    }

    #[inline]
    fn shape(&self) -> Shape {
        match &self.0 {
            Repr::Plain(tensor) => tensor.shape(),
            Repr::Param(slot) => slot.layout.shape.clone(),
            Repr::Views(views) => views.shape.clone(),
        }
    }

    #[inline]
    fn rank(&self) -> usize {
        match &self.0 {
            Repr::Plain(tensor) => tensor.rank(),
            Repr::Param(slot) => slot.layout.shape.rank(),
            Repr::Views(views) => views.shape.rank(),
        }
    }
}

impl<B: OffloadTarget> QTensorPrimitive for OffloadedTensor<B, Quantized> {
    fn scheme(&self) -> &QuantScheme {
        match &self.0 {
            Repr::Plain(tensor) => tensor.scheme(),
            Repr::Param(slot) => scheme_of(&slot.layout),
            Repr::Views(views) => scheme_of(&views.slot.layout),
        }
    }

    fn acc_precision(&self) -> QuantAcc {
        self.plain_ref()
            .map_or(QuantAcc::F32, QTensorPrimitive::acc_precision)
    }

    fn propagation(&self) -> QuantPropagation {
        self.plain_ref()
            .map_or(QuantPropagation::Inhibit, QTensorPrimitive::propagation)
    }

    fn default_scheme() -> QuantScheme {
        B::QuantizedTensorPrimitive::default_scheme()
    }
}

fn scheme_of(layout: &Layout) -> &QuantScheme {
    match &layout.dtype {
        DType::QFloat(scheme) => scheme,
        dtype => unreachable!("a quantized parameter has a scheme, not {dtype:?}"),
    }
}
