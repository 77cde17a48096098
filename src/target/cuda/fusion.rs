use burn_backend::{Shape, StreamId};
use burn_cubecl::{
    BoolElement, CubeBackend, FloatElement, IntElement, fusion::FusionCubeRuntime,
    tensor::CubeTensor,
};
use burn_fusion::{
    Fusion, FusionBackend, FusionTensor, NoOp, client::GlobalFusionClient, get_client,
    stream::OperationStreams,
};
use burn_ir::{BackendIr, HandleKind, InitOperationIr, OperationIr};
use cubecl::cuda::{CudaDevice, CudaRuntime};

use crate::{
    access::Reading,
    error::OffloadError,
    host::{HostBuffer, HostOptions, Stats},
    target::{Access, HostAccess, Layout, OffloadTarget},
};

use super::{driver, retire::FusionQueue, ring::Ring, tensor};

type Runtime = FusionCubeRuntime<CudaRuntime>;

impl<F, I, BT> OffloadTarget for Fusion<CubeBackend<CudaRuntime, F, I, BT>>
where
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// A tensor that several threads use is given back by fusion only when it has run what each has
    /// queued, and a thread that waits, or has ended, keeps it for ever.
    const ALIAS_EVERY_USE: bool = true;

    fn open_host(device: &CudaDevice, options: HostOptions) -> Result<HostAccess, OffloadError> {
        driver::open(device, options)
    }

    fn alias(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        // Here, not where the device is opened: that may be done through a backend without fusion.
        driver::queue(device).ok()?.fusion_is_in_use(QUEUE);
        let tensor = tensor::alias(buffer, layout, device)?;
        Some(register::<CubeBackend<CudaRuntime, F, I, BT>>(
            tensor,
            layout.shape.clone(),
            device,
        ))
    }

    fn access(buffer: &HostBuffer, reading: Reading) -> Access {
        tensor::access(buffer, reading)
    }

    fn stage(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        if let Some(ring) = Ring::get(device) {
            ring.fusion_is_in_use(QUEUE);
        }
        let tensor = tensor::stage(buffer, layout, device)?;
        Some(register::<CubeBackend<CudaRuntime, F, I, BT>>(
            tensor,
            layout.shape.clone(),
            device,
        ))
    }

    fn end_of_step(device: &CudaDevice) -> Result<(), OffloadError> {
        tensor::end_of_step(device)
    }

    fn stats(device: &CudaDevice) -> Stats {
        Ring::get(device).map_or_else(Stats::default, |ring| ring.stats())
    }

    fn upload(buffer: &HostBuffer, layout: &Layout, device: &CudaDevice) -> Option<Self::Handle> {
        let tensor = tensor::upload(buffer, layout, device)?;
        Some(register::<CubeBackend<CudaRuntime, F, I, BT>>(
            tensor,
            layout.shape.clone(),
            device,
        ))
    }

    fn release_uploads(device: &CudaDevice) {
        tensor::release_uploads(device);
    }

    fn verify(tensor: HandleKind<Self>, _device: &CudaDevice) -> Result<(), OffloadError> {
        tensor::verify(&resolve(tensor))
    }

    fn download(tensor: HandleKind<Self>, out: &mut [u8]) -> Result<(), OffloadError> {
        tensor::download(resolve(tensor), out)
    }
}

const QUEUE: FusionQueue = FusionQueue { wait, drain };

/// Waits until fusion's thread has run what was in its queue. What threads have given it and it has
/// not begun stays with it.
fn wait(device: &CudaDevice) {
    // Only the calling thread's stream is drained, so the call is made as nobody's.
    const NOBODY: StreamId = StreamId { value: u64::MAX };
    NOBODY.executes(|| GlobalFusionClient::<Runtime>::load(device).sync(|| ()));
}

/// Has fusion run what the calling thread has given it.
fn drain(device: &CudaDevice) {
    GlobalFusionClient::<Runtime>::load(device).sync(|| ());
}

/// The tensor in fusion's, once what makes it has run.
fn resolve<F, I, BT>(
    tensor: HandleKind<Fusion<CubeBackend<CudaRuntime, F, I, BT>>>,
) -> CubeTensor<CudaRuntime>
where
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    let tensor = match tensor {
        HandleKind::Float(tensor)
        | HandleKind::Int(tensor)
        | HandleKind::Bool(tensor)
        | HandleKind::Quantized(tensor) => tensor,
    };
    // CubeCL has one tensor type for all kinds, so this gives any of them.
    let client = tensor.client.clone();
    client.resolve_tensor_float::<CubeBackend<CudaRuntime, F, I, BT>>(tensor)
}

/// Makes a tensor known to fusion.
fn register<B>(
    tensor: CubeTensor<CudaRuntime>,
    shape: Shape,
    device: &CudaDevice,
) -> FusionTensor<Runtime>
where
    B: FusionBackend<FusionRuntime = Runtime>
        + BackendIr<Device = CudaDevice, FloatTensorPrimitive = CubeTensor<CudaRuntime>>,
{
    let client = get_client::<B>(device);
    let dtype = tensor.dtype;
    let handle = B::float_tensor_handle(tensor);
    let init = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
    let mut outputs = client.register(
        OperationStreams::default(),
        OperationIr::Init(init),
        NoOp::<B>::new(),
    );
    outputs.pop().expect("an initialisation has one output")
}
