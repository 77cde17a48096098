use std::{any::Any, collections::HashMap, marker::PhantomData};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Bool as BoolKind, Int as IntKind, Tensor, TensorPrimitive},
};

use crate::{
    backend::{OffloadedTensor, Seat},
    target::{Kind, OffloadTarget},
};

use super::backend::OffloadBackend;

/// Changes a module, and puts the parameters that `change` replaced where those of the same id were
/// before: in the same host memory where nobody else has that. For what makes new parameters by itself,
/// such as Burn's `LBFGS`, `load_record` and maps of your own. Whatever `change` makes is on the device,
/// all at once, until it returns; [`OffloadedOptimizer`](crate::OffloadedOptimizer) places parameter by
/// parameter.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::Tensor};
/// use burn_flex::Flex;
/// use burn_offload::{OffloadPolicy, Offloaded, keep_places};
///
/// type B = Offloaded<Flex>;
/// let device = Default::default();
/// B::configure(&device, OffloadPolicy::host_budget(bytesize::ByteSize::mib(1)))?;
/// let model = LinearConfig::new(64, 64).with_bias(false).init::<B>(&device);
/// let output = model.forward(Tensor::<B, 2>::ones([1, 64], &device));
/// let record = model.clone().into_record();
/// let (model, ()) = keep_places(model, |model| (model.load_record(record), ()));
/// assert_eq!(B::report(&device).offloaded_bytes(), 64 * 64 * 4);
/// # drop((model, output));
/// # Ok::<(), burn_offload::OffloadError>(())
/// ```
pub fn keep_places<B: OffloadBackend, M: Module<B>, T>(
    module: M,
    change: impl FnOnce(M) -> (M, T),
) -> (M, T) {
    let mut seats = Seats::<B> {
        kept: HashMap::new(),
        backend: PhantomData,
    };
    module.visit(&mut seats);
    let (module, output) = change(module);
    (module.map(&mut seats), output)
}

struct Seats<B> {
    /// What is kept for each parameter: a [`Chair`] of its kind.
    kept: HashMap<ParamId, Box<dyn Any>>,
    backend: PhantomData<B>,
}

/// A parameter's seat, and who sits there.
enum Chair<B: OffloadTarget, K: Kind<B>> {
    Free(Seat<B, K>),
    /// Parameters of one id may be tied.
    Taken(OffloadedTensor<B, K>),
}

impl<B: OffloadBackend> Seats<B> {
    fn rise<K: Kind<B::Target>>(&mut self, id: ParamId, tensor: OffloadedTensor<B::Target, K>) {
        // The module's own, and the one that was taken out to look at.
        let free = || -> Box<dyn Any> { Box::new(Chair::Free(Seat::of(&tensor, 2, 0))) };
        self.kept.entry(id).or_insert_with(free);
    }

    /// The tensor seated; `None` where it is to stay as it is.
    fn sit<K: Kind<B::Target>>(
        &mut self,
        id: ParamId,
        tensor: OffloadedTensor<B::Target, K>,
    ) -> Option<OffloadedTensor<B::Target, K>> {
        let chair = self.kept.remove(&id)?.downcast::<Chair<B::Target, K>>();
        let (seat, first) = match *chair.ok()? {
            Chair::Free(seat) => (seat, None),
            Chair::Taken(first) => (Seat::of(&first, 0, 0), Some(first)),
        };
        let (tensor, moved) = match first {
            _ if seat.has(&tensor) => (tensor, false),
            Some(first) if first.same_data(&tensor) => (first, true),
            _ => (seat.seat(tensor), true),
        };
        self.kept.insert(id, Box::new(Chair::Taken(tensor.clone())));
        moved.then_some(tensor)
    }
}

impl<B: OffloadBackend> ModuleVisitor<B> for Seats<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_initialized() {
            match param.val().into_primitive() {
                TensorPrimitive::Float(tensor) => self.rise(param.id, B::float_inner(tensor)),
                TensorPrimitive::QFloat(tensor) => self.rise(param.id, B::quantized_inner(tensor)),
            }
        }
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, IntKind>>) {
        if param.is_initialized() {
            self.rise(param.id, B::int_inner(param.val().into_primitive()));
        }
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, BoolKind>>) {
        if param.is_initialized() {
            self.rise(param.id, B::bool_inner(param.val().into_primitive()));
        }
    }
}

impl<B: OffloadBackend> ModuleMapper<B> for Seats<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_initialized() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let require_grad = tensor.is_require_grad();
        let seated = match tensor.clone().into_primitive() {
            TensorPrimitive::Float(inner) => self.sit(id, B::float_inner(inner)).map(|seated| {
                let seated = B::float_from_inner(seated);
                TensorPrimitive::Float(B::float_set_require_grad(seated, require_grad))
            }),
            TensorPrimitive::QFloat(inner) => self
                .sit(id, B::quantized_inner(inner))
                .map(|seated| TensorPrimitive::QFloat(B::quantized_from_inner(seated))),
        };
        let tensor = seated.map_or(tensor, Tensor::from_primitive);
        Param::from_mapped_value(id, tensor, mapper)
    }
    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, IntKind>>,
    ) -> Param<Tensor<B, D, IntKind>> {
        if !param.is_initialized() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let seated = self.sit(id, B::int_inner(tensor.clone().into_primitive()));
        let seated = seated.map(|seated| Tensor::from_primitive(B::int_from_inner(seated)));
        Param::from_mapped_value(id, seated.unwrap_or(tensor), mapper)
    }
    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, BoolKind>>,
    ) -> Param<Tensor<B, D, BoolKind>> {
        if !param.is_initialized() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let seated = self.sit(id, B::bool_inner(tensor.clone().into_primitive()));
        let seated = seated.map(|seated| Tensor::from_primitive(B::bool_from_inner(seated)));
        Param::from_mapped_value(id, seated.unwrap_or(tensor), mapper)
    }
}
