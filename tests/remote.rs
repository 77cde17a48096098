//! Burn's remote backend: a websocket server of `Offloaded<Flex>` on loopback, and models that run there.

use std::{
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig, loss::MseLoss},
    optim::{GradientsParams, Optimizer, SgdConfig},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{
        Tensor, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, Report};
use burn_remote::{RemoteBackend, RemoteDevice, server::start_websocket_async};

type B = Offloaded<Flex>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

const WIDTH: usize = 64;
/// A weight; a bias is far smaller.
const BYTES: u64 = (WIDTH * WIDTH * 4) as u64;

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(WIDTH, WIDTH).init(device),
            second: LinearConfig::new(WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(self.first.forward(input))
    }

    fn run(&self, device: &B::Device) -> TensorData {
        self.forward(input(device)).into_data()
    }
}

/// Smaller than a weight, so that it is not taken for one.
fn input<B: Backend>(device: &B::Device) -> Tensor<B, 2> {
    let values = (0..3 * WIDTH).map(|i| (i % 7) as f32 - 3.0).collect();
    Tensor::from_data(TensorData::new(values, [3, WIDTH]), device)
}

fn report() -> Report {
    B::report(&Default::default())
}

fn configure(threshold: Option<u64>) {
    let mut policy = OffloadPolicy::host_budget(ByteSize::mib(1));
    policy.unscoped_threshold = threshold.map(ByteSize::b);
    B::configure(&Default::default(), policy).unwrap();
}

/// Starts a server, and returns its address once it answers.
fn serve(runtime: &tokio::runtime::Runtime) -> RemoteDevice {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().unwrap().port();
    runtime.spawn(start_websocket_async::<B>(Default::default(), port));
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    RemoteDevice::new(&format!("ws://127.0.0.1:{port}"))
}

fn train<B: AutodiffBackend>(mut net: Net<B>, device: &B::Device) -> TensorData {
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..3 {
        let output = net.forward(input(device));
        let target = output.zeros_like();
        let loss = MseLoss::new().forward(output, target, burn::nn::loss::Reduction::Mean);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.01, net, gradients);
    }
    net.run(device)
}

#[test]
fn a_server_places_what_its_clients_send() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()
        .unwrap();
    let device = serve(&runtime);
    type Client = RemoteBackend;

    // What the wrapped backend gives on this machine.
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let local = Net::<Flex>::new(&Default::default());
    let expected = local.run(&Default::default());
    let bytes = recorder.record(local.into_record(), ()).unwrap();
    let load = |device: &RemoteDevice| {
        let record = recorder.load(bytes.clone(), device).unwrap();
        Net::<Client>::new(device).load_record(record)
    };

    // Allocations arrive without Burn's parameter scope: the policy alone sees no parameter.
    configure(None);
    let net = load(&device);
    assert_eq!(net.run(&device), expected);
    assert_eq!(report().parameters.len(), 0, "{}", report());
    drop(net);

    // By size it does: the weights, not the biases, and not the inputs.
    configure(Some(BYTES));
    let net = load(&device);
    assert_eq!(net.run(&device), expected);
    assert_eq!(report().offloaded_parameters(), 2, "{}", report());
    assert_eq!(report().offloaded_bytes(), 2 * BYTES);
    drop(net);

    // A model that the client initialises there, with random numbers.
    let fresh = Net::<Client>::new(&device);
    let output = fresh.run(&device);
    assert!(report().offloaded_parameters() >= 2, "{}", report());
    assert_eq!(fresh.run(&device), output);
    drop(fresh);

    // Training through the client gives what training here gives.
    type Train = burn::backend::Autodiff<Client>;
    let record = recorder.load(bytes.clone(), &device).unwrap();
    let net = Net::<Train>::new(&device).load_record(record);
    let there = train(net, &device);
    type Here = burn::backend::Autodiff<Flex>;
    let record = recorder.load(bytes.clone(), &Default::default()).unwrap();
    let net = Net::<Here>::new(&Default::default()).load_record(record);
    assert_eq!(there, train(net, &Default::default()));

    runtime.shutdown_background();
}
