//! Placing parameters: as they are allocated, and by name. On Flex, where every figure is exact.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::{
    module::{Module, Param, ParamId},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{
        Bool, Distribution, Int, Tensor, TensorData, backend::Backend, quantization::QuantValue,
    },
};
use burn_flex::Flex;
use burn_offload::{
    Budget, ByteSize, OffloadError, OffloadPolicy, Offloaded, Order, Placement, PolicyError,
    Reason, Report, place,
};
use common::quantizer;

type B = Offloaded<Flex>;

/// Flex has one device, and with it one set of books: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    B::configure(&Default::default(), OffloadPolicy::nothing()).unwrap();
    assert_eq!(report().parameters, [], "an earlier test left parameters");
    guard
}

fn report() -> Report {
    B::report(&Default::default())
}

fn totals(report: &Report) -> (u64, usize, u64, usize) {
    (
        report.offloaded_bytes(),
        report.offloaded_parameters(),
        report.resident_bytes(),
        report.resident_parameters(),
    )
}

fn places(report: &Report) -> Vec<(String, Placement)> {
    let line =
        |r: &burn_offload::host::Record| (r.name.clone().unwrap_or_default(), r.decision.placement);
    report.parameters.iter().map(line).collect()
}

fn offloaded_names(report: &Report) -> Vec<String> {
    let lines = places(report).into_iter();
    lines
        .filter(|(_, place)| *place == Placement::Offloaded)
        .map(|(name, _)| name)
        .collect()
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    embed: Embedding<B>,
    layers: Vec<Block<B>>,
    positions: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 2, Bool>>,
}

const EMBED: u64 = 16 * 8 * 4;
const UP: u64 = 8 * 32 * 4;
const UP_BIAS: u64 = 32 * 4;
const DOWN: u64 = 32 * 8 * 4;
const DOWN_BIAS: u64 = 8 * 4;
const LAYER: u64 = UP + UP_BIAS + DOWN + DOWN_BIAS;

impl<B: Backend> Model<B> {
    fn new(layers: usize, device: &B::Device) -> Self {
        let block = || Block {
            up: LinearConfig::new(8, 32).init(device),
            down: LinearConfig::new(32, 8).init(device),
        };
        Self {
            embed: EmbeddingConfig::new(16, 8).init(device),
            layers: (0..layers).map(|_| block()).collect(),
            positions: Param::initialized(
                ParamId::new(),
                Tensor::from_data(TensorData::from([0, 1, 2, 3]), device),
            ),
            mask: Param::initialized(
                ParamId::new(),
                Tensor::from_data(TensorData::from([[true, false], [false, true]]), device),
            ),
        }
    }

    fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, length] = tokens.dims();
        let positions = self
            .positions
            .val()
            .reshape([1, length])
            .expand([batch, length]);
        let mut x = self.embed.forward(tokens + positions);
        for layer in &self.layers {
            x = x.clone() + layer.down.forward(layer.up.forward(x).tanh());
        }
        let mask = self.mask.val().slice([0..1, 0..1]).reshape([1, 1, 1]);
        x.mask_fill(mask.expand([batch, length, 8]).bool_not(), 0.0)
    }

    fn run(&self, device: &B::Device) -> TensorData {
        let tokens = Tensor::from_data(TensorData::from([[1, 2, 3, 4], [5, 6, 7, 8]]), device);
        self.forward(tokens).into_data()
    }
}

fn bare_output(layers: usize) -> TensorData {
    let device = Default::default();
    Flex::seed(&device, 7);
    let model = Model::<Flex>::new(layers, &device);
    model.run(&device)
}

#[test]
fn parameters_are_placed_as_they_are_made_and_outputs_are_the_same() {
    let _alone = alone();
    let device = Default::default();
    let expected = bare_output(2);
    let all = EMBED + 2 * LAYER;
    for (policy, offloaded) in [
        (OffloadPolicy::nothing(), 0),
        (OffloadPolicy::host_budget(ByteSize::b(EMBED)), EMBED),
        (
            OffloadPolicy::host_budget(ByteSize::b(EMBED + LAYER)),
            EMBED + LAYER,
        ),
        (OffloadPolicy::host_budget(ByteSize::b(all)), all),
        (
            OffloadPolicy::device_budget(ByteSize::b(EMBED)),
            all - EMBED,
        ),
        (OffloadPolicy::device_budget(ByteSize::b(0)), all),
    ] {
        B::configure(&device, policy.clone()).unwrap();
        B::seed(&device, 7);
        let model = Model::<B>::new(2, &device);
        let output = model.run(&device);
        output.assert_eq(&expected, true);
        let report = report();
        assert_eq!(report.offloaded_bytes(), offloaded, "{policy:?}\n{report}");
        assert_eq!(
            report.resident_bytes(),
            all - offloaded,
            "{policy:?}\n{report}"
        );
        drop(model);
        assert_eq!(totals(&self::report()), (0, 0, 0, 0));
    }
}

#[test]
fn a_budget_is_a_hard_cap_and_smaller_parameters_fill_it() {
    let _alone = alone();
    let device = Default::default();
    // The embedding fits, the first weight does not, its bias does.
    let budget = EMBED + UP_BIAS + 100;
    B::configure(&device, OffloadPolicy::host_budget(ByteSize::b(budget))).unwrap();
    let model = Model::<B>::new(1, &device);
    model.run(&device);
    let report = report();
    assert_eq!(report.offloaded_bytes(), EMBED + UP_BIAS + DOWN_BIAS);
    let reasons: Vec<_> = report
        .parameters
        .iter()
        .map(|r| &r.decision.reason)
        .collect();
    assert!(
        reasons.contains(&&Reason::OverHostBudget {
            left: UP_BIAS + 100
        }),
        "{report}"
    );
}

#[test]
fn placing_by_name_follows_selectors_and_initialises_straight_into_place() {
    let _alone = alone();
    let device = Default::default();
    let expected = bare_output(2);
    B::seed(&device, 7);
    let model = Model::<B>::new(2, &device);
    assert_eq!(report().parameters, [], "nothing is initialised yet");
    let policy = OffloadPolicy::host_budget(ByteSize::mib(1))
        .with_params(["layers", "model.mask", "positions"])
        .with_keep(["0.down"]);
    let (model, report) = place(model, "model", &policy).unwrap();
    assert_eq!(
        offloaded_names(&report),
        [
            "model.layers.0.up.weight",
            "model.layers.0.up.bias",
            "model.layers.1.up.weight",
            "model.layers.1.up.bias",
            "model.layers.1.down.weight",
            "model.layers.1.down.bias",
            "model.positions",
            "model.mask",
        ]
    );
    assert_eq!(
        report,
        self::report(),
        "the books hold what the report says"
    );
    let down = &report.parameters[3];
    assert_eq!(down.name.as_deref(), Some("model.layers.0.down.weight"));
    assert_eq!(
        down.decision.reason,
        Reason::Kept {
            selector: "0.down".into()
        }
    );
    model.run(&device).assert_eq(&expected, true);
}

#[test]
fn placing_again_moves_what_changed_and_nothing_twice() {
    let _alone = alone();
    let device = Default::default();
    let expected = bare_output(2);
    B::seed(&device, 7);
    let all = EMBED + 2 * LAYER + 4 * 4 + 4;
    let mut model = Model::<B>::new(2, &device);
    let clone = model.clone();
    for (policy, offloaded) in [
        (OffloadPolicy::host_budget(ByteSize::mib(1)), all),
        (OffloadPolicy::host_budget(ByteSize::mib(1)), all),
        (
            OffloadPolicy::host_budget(ByteSize::b(LAYER)).with_order(Order::Largest),
            UP,
        ),
        (OffloadPolicy::nothing(), 0),
        (OffloadPolicy::device_budget(ByteSize::b(0)), all),
    ] {
        let (placed, report) = place(model, "", &policy).unwrap();
        assert!(report.offloaded_bytes() >= offloaded, "{report}");
        assert_eq!(report.offloaded_bytes() + report.resident_bytes(), all);
        assert_eq!(totals(&report), totals(&self::report()));
        placed.run(&device).assert_eq(&expected, true);
        model = placed;
    }
    drop(clone);
    drop(model);
    assert_eq!(totals(&report()), (0, 0, 0, 0));
}

#[test]
fn several_modules_share_one_budget() {
    let _alone = alone();
    let device = Default::default();
    let policy = OffloadPolicy::host_budget(ByteSize::b(EMBED + LAYER));
    let (first, report) = place(Model::<B>::new(0, &device), "first", &policy).unwrap();
    assert_eq!(report.offloaded_bytes(), EMBED + 20);
    let (second, report) = place(Model::<B>::new(2, &device), "second", &policy).unwrap();
    let left = LAYER - 20;
    assert!(
        report.offloaded_bytes() <= left && report.offloaded_bytes() > left / 2,
        "{report}"
    );
    assert!(self::report().offloaded_bytes() <= EMBED + LAYER);
    drop(first);
    let (second, report) = place(second, "second", &policy).unwrap();
    assert!(
        report.offloaded_bytes() > left,
        "what the first had is free again"
    );
    drop(second);
}

#[derive(Module, Debug)]
struct Tied<B: Backend> {
    embed: Embedding<B>,
    head: Linear<B>,
}

#[test]
fn parameters_that_wait_for_their_names_count_once_they_are_placed() {
    let _alone = alone();
    let device = Default::default();
    // Room for one module and its bias on the device.
    let policy = OffloadPolicy::device_budget(ByteSize::b(UP + UP_BIAS)).with_keep(["bias"]);
    B::configure(&device, policy.clone()).unwrap();
    let linear = || {
        let linear = LinearConfig::new(8, 32).init::<B>(&device);
        // Initialised: it waits.
        linear.weight.val();
        linear
    };
    let (first, second) = (linear(), linear());
    assert!(report().parameters.iter().all(|r| r.is_waiting()));
    let (first, placed) = place(first, "first", &policy).unwrap();
    assert_eq!(totals(&placed), (0, 0, UP + UP_BIAS, 2));
    // The second's bias must stay, and there is no room left for it.
    let refused = place(second, "second", &policy).unwrap_err();
    assert!(
        matches!(
            refused.error,
            OffloadError::Policy(PolicyError::NeverOffloadedOverBudget { resident, .. })
                if resident == UP + UP_BIAS
        ),
        "{}",
        refused.error
    );
    drop(first);
    let (second, placed) = place(refused.module, "second", &policy).unwrap();
    assert_eq!(totals(&placed), (0, 0, UP + UP_BIAS, 2));
    drop(second);
}

#[test]
fn threads_that_place_at_once_stay_within_the_budgets() {
    let _alone = alone();
    let device = Default::default();
    let used = |policy: &OffloadPolicy| match policy.budget {
        // Those on their way to the host still wait on the device.
        Budget::Device(_) => {
            let placed = report().parameters.into_iter().filter(|r| !r.is_waiting());
            let resident = placed.filter(|r| r.decision.placement == Placement::Resident);
            resident.map(|r| r.bytes).sum()
        }
        _ => report().offloaded_bytes(),
    };
    // Room for four of sixteen: lazily initialised ones, and ones that are moved.
    for policy in [
        OffloadPolicy::device_budget(ByteSize::b(4 * UP)),
        OffloadPolicy::host_budget(ByteSize::b(4 * UP)),
    ] {
        for lazy in [true, false] {
            let away = match policy.budget {
                Budget::Device(_) => OffloadPolicy::everything(),
                _ => OffloadPolicy::nothing(),
            };
            let module = || {
                let module = LinearConfig::new(8, 32).with_bias(false).init::<B>(&device);
                match lazy {
                    true => module,
                    false => place(module, "", &away).unwrap().0,
                }
            };
            let modules: Vec<_> = (0..16).map(|_| module()).collect();
            let start = std::sync::Barrier::new(16);
            let placed: Vec<_> = std::thread::scope(|scope| {
                let (start, policy, used) = (&start, &policy, &used);
                let threads: Vec<_> = modules
                    .into_iter()
                    .map(|module| {
                        scope.spawn(move || {
                            start.wait();
                            let placed = place(module, "", policy).unwrap();
                            assert!(used(policy) <= 4 * UP, "{}", report());
                            placed
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(used(&policy) <= 4 * UP && used(&policy) > 0, "{}", report());
            drop(placed);
        }
    }
}

#[test]
fn tied_parameters_are_stored_and_counted_once() {
    let _alone = alone();
    let device: burn_flex::FlexDevice = Default::default();
    for configured in [true, false] {
        if configured {
            B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
        }
        let embed = EmbeddingConfig::new(8, 8).init::<B>(&device);
        let _ = embed.weight.val();
        let mut head = LinearConfig::new(8, 8).with_bias(false).init::<B>(&device);
        head.weight = embed.weight.clone();
        // The budget has room for one.
        let policy = OffloadPolicy::host_budget(ByteSize::b(8 * 8 * 4 + 8));
        let (tied, report) = place(Tied { embed, head }, "", &policy).unwrap();
        assert_eq!(report.offloaded_bytes(), 8 * 8 * 4, "{report}");
        assert_eq!(report.resident_bytes(), 0, "{report}");
        assert_eq!(
            report.parameters[1].shares.as_deref(),
            Some("embed.weight"),
            "{report}"
        );
        assert_eq!(self::report().offloaded_bytes(), 8 * 8 * 4);
        tied.head
            .weight
            .to_data()
            .assert_eq(&tied.embed.weight.to_data(), true);
        drop(tied);
        B::configure(&device, OffloadPolicy::nothing()).unwrap();
    }
}

#[test]
fn two_parameters_of_one_id_that_differ_are_two() {
    let _alone = alone();
    let device = Default::default();
    let embed = EmbeddingConfig::new(8, 8).init::<B>(&device);
    let _ = embed.weight.val();
    let mut head = LinearConfig::new(8, 8).with_bias(false).init::<B>(&device);
    // As a running average of the weights has it: the same id, other values.
    head.weight = embed.weight.clone().map(|w| w * 0.5);
    let (average, expected) = (head.weight.to_data(), embed.weight.to_data());
    let policy = OffloadPolicy::host_budget(ByteSize::mib(1));
    let (model, report) = place(Tied { embed, head }, "", &policy).unwrap();
    assert_eq!(report.offloaded_bytes(), 2 * 8 * 8 * 4);
    model.head.weight.to_data().assert_eq(&average, true);
    model.embed.weight.to_data().assert_eq(&expected, true);
}

#[test]
fn quantized_weights_are_placed() {
    let _alone = alone();
    let device = Default::default();
    let mut quantizer = quantizer(QuantValue::Q8S);
    Flex::seed(&device, 3);
    let bare = LinearConfig::new(32, 32).init::<Flex>(&device);
    let bare = bare.quantize_weights(&mut quantizer);
    B::seed(&device, 3);
    let linear = LinearConfig::new(32, 32).init::<B>(&device);
    let linear = linear.quantize_weights(&mut quantizer);
    let (linear, report) =
        place(linear, "", &OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    assert_eq!(report.offloaded_parameters(), 2, "{report}");
    let weight = &report.parameters[0];
    assert_eq!(weight.bytes, 32 * 32 + 4, "values and one scale: {report}");
    let x = Tensor::<Flex, 2>::random([4, 32], Distribution::Default, &device).into_data();
    let y = linear
        .forward(Tensor::<B, 2>::from_data(x.clone(), &device))
        .into_data();
    y.assert_eq(
        &bare
            .forward(Tensor::<Flex, 2>::from_data(x, &device))
            .into_data(),
        true,
    );
}

#[test]
fn a_quantized_weight_is_charged_what_it_takes() {
    let _alone = alone();
    let device = Default::default();
    let mut quantizer = quantizer(QuantValue::Q4S);
    for budget in [100, 1 << 20] {
        let linear = LinearConfig::new(64, 64)
            .with_bias(false)
            .init::<B>(&device);
        let linear = linear.quantize_weights(&mut quantizer);
        let policy = OffloadPolicy::host_budget(ByteSize::b(budget));
        let (linear, report) = place(linear, "", &policy).unwrap();
        let charged = B::host_bytes_charged(&device);
        assert!(
            charged <= budget,
            "{charged} bytes on a budget of {budget}\n{report}"
        );
        assert_eq!(charged, report.offloaded_bytes());
        assert_eq!(
            report.offloaded_parameters(),
            usize::from(budget > 100),
            "{report}"
        );
        drop(linear);
    }
}

#[test]
fn parameters_from_before_the_budget_count_against_it() {
    let _alone = alone();
    let device = Default::default();
    let made = |_| {
        let linear = LinearConfig::new(16, 16)
            .with_bias(false)
            .init::<B>(&device);
        let weight = Param::initialized(ParamId::new(), Tensor::ones([16, 16], &device));
        Linear { weight, ..linear }
    };
    let policy = OffloadPolicy::device_budget(ByteSize::b(16 * 16 * 4));
    let modules: Vec<_> = (0..2).map(made).collect();
    let modules: Vec<_> = modules
        .into_iter()
        .map(|module| place(module, "", &policy).unwrap().0)
        .collect();
    assert_eq!(totals(&report()), (1024, 1, 1024, 1), "{}", report());
    drop(modules);
}

#[test]
fn records_load_into_place_and_save_from_host_memory() {
    let _alone = alone();
    let device = Default::default();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    Flex::seed(&device, 7);
    let bare = Model::<Flex>::new(1, &device);
    let expected = bare.run(&device);
    let bytes = Recorder::<Flex>::record(&recorder, bare.into_record(), ()).unwrap();

    B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    let record = recorder.load(bytes.clone(), &device).unwrap();
    let model = Model::<B>::new(1, &device).load_record(record);
    assert_eq!(
        report().offloaded_bytes(),
        EMBED + LAYER + 4 * 4 + 4,
        "{}",
        report()
    );
    model.run(&device).assert_eq(&expected, true);
    let saved = Recorder::<B>::record(&recorder, model.into_record(), ()).unwrap();

    let record = Recorder::<Flex>::load(&recorder, saved, &device).unwrap();
    let bare = Model::<Flex>::new(1, &device).load_record(record);
    bare.run(&device).assert_eq(&expected, true);
}

#[test]
fn a_weight_is_never_changed_through_an_alias() {
    let _alone = alone();
    let device = Default::default();
    B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    let param =
        Param::<Tensor<B, 2>>::from_data(TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]), &device);
    let before = param.to_data();
    let changed = param.val().add_scalar(1.0).mul_scalar(3.0);
    let part = param.val().slice_fill([0..1, 0..2], 9.0);
    let view = param.val().transpose();
    let view_changed = view.clone() * 2.0;
    param.to_data().assert_eq(&before, true);
    view.into_data()
        .assert_eq(&TensorData::from([[1.0f32, 3.0], [2.0, 4.0]]), true);
    view_changed
        .into_data()
        .assert_eq(&TensorData::from([[2.0f32, 6.0], [4.0, 8.0]]), true);
    changed
        .into_data()
        .assert_eq(&TensorData::from([[6.0f32, 9.0], [12.0, 15.0]]), true);
    part.into_data()
        .assert_eq(&TensorData::from([[9.0f32, 9.0], [3.0, 4.0]]), true);
    // The data of a tensor is the reader's own.
    let mut data = param.to_data();
    data.bytes[0] = 255;
    param.to_data().assert_eq(&before, true);
}

#[test]
fn views_keep_the_memory_alive_and_on_the_books() {
    let _alone = alone();
    let device = Default::default();
    B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    let param =
        Param::<Tensor<B, 2>>::from_data(TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]), &device);
    let view = param.val().transpose().reshape([4]);
    drop(param);
    assert_eq!(report().offloaded_bytes(), 16);
    view.into_data()
        .assert_eq(&TensorData::from([1.0f32, 3.0, 2.0, 4.0]), true);
    assert_eq!(report().offloaded_bytes(), 0);
}

#[test]
fn autodiff_modules_are_placed_and_train() {
    use burn::{
        backend::Autodiff,
        optim::{GradientsParams, Optimizer, SgdConfig},
    };
    type AB = Autodiff<B>;

    let _alone = alone();
    let device = Default::default();
    let step = |model: Model<AB>| {
        let tokens = Tensor::from_data(TensorData::from([[1, 2, 3, 4]]), &device);
        let loss = model.forward(tokens).powi_scalar(2).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let value = loss.into_data();
        (SgdConfig::new().init().step(0.1, model, grads), value)
    };
    AB::seed(&device, 7);
    let (resident, first) = step(Model::new(2, &device));
    let (_, second) = step(resident);
    assert_eq!(report().offloaded_bytes(), 0);

    AB::seed(&device, 7);
    let policy = OffloadPolicy::host_budget(ByteSize::mib(1));
    let (model, report) = place(Model::<AB>::new(2, &device), "", &policy).unwrap();
    assert_eq!(report.resident_bytes(), 0, "{report}");
    assert!(model.embed.weight.is_require_grad());
    let (model, loss) = step(model);
    loss.assert_eq(&first, true);
    let (model, _) = place(model, "", &policy).unwrap();
    assert!(model.embed.weight.is_require_grad());
    let (_, loss) = step(model);
    loss.assert_eq(&second, true);
}

#[test]
fn bad_policies_and_refusals_are_typed_and_lose_nothing() {
    let _alone = alone();
    let device = Default::default();
    let expected = bare_output(1);
    B::seed(&device, 7);
    let model = Model::<B>::new(1, &device);

    let near = OffloadPolicy::host_budget(ByteSize::mib(1)).with_params(["layer.0"]);
    let failed = place(model, "", &near).unwrap_err();
    let OffloadError::Policy(PolicyError::NoMatch { selector, near, .. }) = &failed.error else {
        panic!("{failed}");
    };
    assert_eq!(selector, "layer.0");
    assert!(near.iter().any(|n| n == "layers.0"), "{near:?}");
    assert_eq!(report().parameters, [], "nothing was touched");
    failed.module.run(&device).assert_eq(&expected, true);

    let tight = OffloadPolicy::device_budget(ByteSize::b(10)).with_keep(["embed"]);
    let failed = place(failed.module, "", &tight).unwrap_err();
    assert!(failed.to_string().contains("embed.weight"), "{failed}");
    failed.module.run(&device).assert_eq(&expected, true);

    let huge = OffloadPolicy::host_budget(ByteSize::pib(1));
    let failed_budget = B::configure(&device, huge.clone()).unwrap_err();
    assert!(matches!(
        failed_budget,
        OffloadError::BudgetExceedsMemory { .. }
    ));
    assert!(
        failed_budget.to_string().contains("host_budget"),
        "{failed_budget}"
    );
    let failed = place(failed.module, "", &huge).unwrap_err();
    assert!(matches!(
        failed.error,
        OffloadError::BudgetExceedsMemory { .. }
    ));
    let books = report();
    assert_eq!(books.offloaded_bytes(), 0, "{books}");
}

#[test]
fn a_panic_in_a_parameter_scope_leaves_no_scope_open() {
    let _alone = alone();
    let device = Default::default();
    B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    let panicked = std::panic::catch_unwind(|| {
        B::memory_persistent_allocations(&Default::default(), (), |()| {
            let _kept = Tensor::<B, 1>::ones([8], &Default::default());
            panic!("in the scope");
        });
    });
    assert!(panicked.is_err());
    let _activation = Tensor::<B, 1>::ones([8], &device);
    assert_eq!(report().parameters, []);
}

#[test]
fn only_what_leaves_the_scope_alive_is_a_parameter() {
    let _alone = alone();
    let device = Default::default();
    B::configure(&device, OffloadPolicy::host_budget(ByteSize::mib(1))).unwrap();
    // The orthogonal initialiser works through many intermediate tensors.
    let param = burn::nn::Initializer::Orthogonal { gain: 1.0 }.init_with::<B, 2, _>(
        [8, 8],
        None,
        None,
        &device,
    );
    let _ = param.val();
    assert_eq!(totals(&report()), (8 * 8 * 4, 1, 0, 0), "{}", report());
}

#[test]
fn everything_offloads_activations_too() {
    let _alone = alone();
    let device = Default::default();
    B::configure(&device, OffloadPolicy::everything()).unwrap();
    let x = Tensor::<B, 2>::ones([4, 4], &device);
    let y = x.clone().matmul(x) + 1.0;
    assert_eq!(report().offloaded_bytes(), 4 * 4 * 4, "{}", report());
    y.into_data()
        .assert_eq(&TensorData::full([4, 4], 5.0f32), true);
    assert_eq!(report().offloaded_bytes(), 0);
}

#[test]
fn a_report_prints_a_table_and_survives_serialisation() {
    let _alone = alone();
    let device = Default::default();
    let policy = OffloadPolicy::host_budget(ByteSize::b(EMBED));
    let (_model, report) = place(Model::<B>::new(1, &device), "m", &policy).unwrap();
    let text = report.to_string();
    for part in [
        "m.embed.weight",
        "[16, 8]",
        "f32",
        "512",
        "host (pageable)",
        "GiB",
        "budget",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn threads_share_an_offloaded_model() {
    let _alone = alone();
    let device = Default::default();
    let expected = bare_output(2);
    B::seed(&device, 7);
    let policy = OffloadPolicy::host_budget(ByteSize::mib(1));
    let (model, _) = place(Model::<B>::new(2, &device), "", &policy).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let model = model.clone();
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..20 {
                    model.run(&Default::default()).assert_eq(expected, true);
                }
            });
        }
    });
}

#[test]
fn an_embedding_is_the_first_to_be_offloaded_where_that_is_spread() {
    #[derive(Module, Debug)]
    struct Tagger<B: Backend> {
        layers: Vec<Linear<B>>,
        tokens: Embedding<B>,
    }
    let _alone = alone();
    let device = Default::default();
    let linear = || LinearConfig::new(8, 8).with_bias(false).init::<B>(&device);
    let tagger = Tagger {
        layers: (0..3).map(|_| linear()).collect(),
        tokens: EmbeddingConfig::new(10, 8).init(&device),
    };
    let policy = OffloadPolicy::host_budget(ByteSize::b((10 * 8 + 8 * 8) * 4));
    let (_tagger, report) = place(tagger, "", &policy.with_order(Order::Spread)).unwrap();
    let offloaded = report.parameters.iter();
    let offloaded = offloaded.filter(|p| p.decision.placement == Placement::Offloaded);
    let names: Vec<_> = offloaded.filter_map(|p| p.name.as_deref()).collect();
    assert_eq!(names, ["layers.0.weight", "tokens.weight"]);
}
