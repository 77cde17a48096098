//! The same model gives the same logits, bit for bit, wherever its weights are.

use burn::{
    module::Module,
    tensor::{DType, Element, Int, Tensor, TensorData, bf16},
};
use burn_offload::{AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded, place};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, assert_all_given_back, config::LlamaConfig, configure, fill::fill, line, model::Llama,
};

/// Square throughout: every new shape of a product is tuned for seconds to a minute.
fn config() -> LlamaConfig {
    let json = r#"{
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "max_position_embeddings": 256
    }"#;
    LlamaConfig::from_json(json).expect("the configuration is sound")
}

/// The logits of a prefill of 16 tokens and of three single tokens after it.
fn run<B: burn::tensor::backend::Backend>(model: &Llama<B>) -> Vec<TensorData> {
    let device = model.device();
    let mut cache = model.cache();
    let tokens = |from: i32, n: i32| {
        let ids: Vec<i32> = (from..from + n).map(|i| i * 37 % 1024).collect();
        Tensor::<B, 1, Int>::from_data(TensorData::new(ids, [n as usize]), &device).unsqueeze()
    };
    let mut logits = vec![model.forward(tokens(0, 16), &mut cache).into_data()];
    for at in 16..19 {
        logits.push(model.next_logits(tokens(at, 1), &mut cache).into_data());
    }
    logits
}

fn check<B, F: Element>(name: &str)
where
    B: OffloadTarget<Device = CudaDevice>,
{
    let device = CudaDevice::default();
    let dtype = F::dtype();
    let config = config();
    let bare = fill(Llama::<B>::new(&config, &device), dtype);
    run(&bare); // tunes
    let expected = run(&bare);
    let finite = expected.iter().all(|data| {
        let values = data.clone().convert::<f32>();
        let values = values.as_slice::<f32>().expect("they are f32");
        values.iter().all(|v| v.is_finite()) && values.iter().any(|v| *v != 0.0)
    });
    assert!(finite, "the logits say something");
    let bytes: u64 = bare.num_params() as u64 * dtype.size() as u64;
    drop(bare);

    let all = OffloadPolicy::host_budget(ByteSize::b(bytes));
    let half = OffloadPolicy::host_budget(ByteSize::b(bytes / 2));
    for (mode, policy, least) in [
        ("resident", OffloadPolicy::nothing(), 0),
        (
            "half offloaded, as is faster",
            half.clone(),
            bytes * 45 / 100,
        ),
        (
            "all offloaded, in place",
            all.clone().with_access(AccessMode::InPlace),
            bytes,
        ),
        ("all offloaded, as is faster", all.clone(), bytes),
        (
            "all offloaded, staged from pinned memory",
            all.clone().with_uva(false),
            bytes,
        ),
        (
            "all offloaded, staged from pageable memory",
            all.clone().with_pin(false),
            bytes,
        ),
    ] {
        configure::<B>(policy);
        let model = fill(Llama::<Offloaded<B>>::new(&config, &device), dtype);
        let report = Offloaded::<B>::report(&device);
        assert!(report.offloaded_bytes() >= least, "{mode}\n{report}");
        run(&model);
        assert_eq!(run(&model), expected, "{name}, {mode}");
        line(
            &format!("logits {name}, {mode}"),
            format!(
                "bit-identical, {} offloaded",
                ByteSize::b(report.offloaded_bytes())
            ),
        );
        drop(model);
        assert_all_given_back::<B>();
    }

    // Moved there and back after they were resident.
    configure::<B>(OffloadPolicy::nothing());
    let model = fill(Llama::<Offloaded<B>>::new(&config, &device), dtype);
    let (model, report) = place(model, "", &half).expect("there is room");
    assert!(report.offloaded_bytes() >= bytes * 45 / 100, "{report}");
    assert_eq!(run(&model), expected, "{name}, placed by name");
    let (model, report) = place(model, "", &OffloadPolicy::nothing()).expect("there is room");
    assert_eq!(report.offloaded_bytes(), 0, "{report}");
    assert_eq!(run(&model), expected, "{name}, recalled");
    line(
        &format!("logits {name}, placed by name and recalled"),
        "bit-identical",
    );
    drop(model);
    assert_all_given_back::<B>();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn logits_eager_f32() {
    check::<Eager<f32>, f32>("f32 without fusion");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn logits_eager_bf16() {
    check::<Eager<bf16>, bf16>("bf16 without fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn logits_fused_f32() {
    check::<crate::Fused<f32>, f32>("f32 with fusion");
}

#[cfg(feature = "fusion")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn logits_fused_bf16() {
    check::<crate::Fused<bf16>, bf16>("bf16 with fusion");
}

/// Large bf16 products take the tensor memory accelerator on Hopper, which has its own way to the
/// address.
fn check_large<B, F: Element>(name: &str)
where
    B: OffloadTarget<Device = CudaDevice>,
{
    let device = CudaDevice::default();
    let dtype: DType = F::dtype();
    let size = 4096;
    let weight = crate::fill::values(1, [size, size].into(), dtype);
    let input = crate::fill::values(2, [1024, size].into(), dtype);
    let product = |weight: Tensor<Offloaded<B>, 2>| {
        let x = Tensor::<Offloaded<B>, 2>::from_data(input.clone(), (&device, dtype));
        let straight = x.clone().matmul(weight.clone());
        let transposed = x.matmul(weight.transpose());
        (straight.into_data(), transposed.into_data())
    };
    let make = || {
        burn::module::Param::initialized(
            burn::module::ParamId::new(),
            <Offloaded<B> as burn::tensor::backend::Backend>::memory_persistent_allocations(
                &device,
                weight.clone(),
                |data| Tensor::<Offloaded<B>, 2>::from_data(data, (&device, dtype)),
            ),
        )
    };
    configure::<B>(OffloadPolicy::nothing());
    let resident = make();
    product(resident.val());
    let expected = product(resident.val());
    for (mode, policy) in [
        (
            "in place",
            OffloadPolicy::host_budget(ByteSize::gib(1)).with_access(AccessMode::InPlace),
        ),
        (
            "staged",
            OffloadPolicy::host_budget(ByteSize::gib(1)).with_uva(false),
        ),
    ] {
        configure::<B>(policy);
        let hosted = make();
        assert_eq!(Offloaded::<B>::report(&device).offloaded_parameters(), 1);
        product(hosted.val());
        assert!(product(hosted.val()) == expected, "{name}, {mode}");
        line(
            &format!("[1024, 4096] x [4096, 4096] and its transpose, {name}, {mode}"),
            "bit-identical",
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn large_products() {
    check_large::<Eager<bf16>, bf16>("bf16 without fusion");
    check_large::<Eager<f32>, f32>("f32 without fusion");
    #[cfg(feature = "fusion")]
    check_large::<crate::Fused<bf16>, bf16>("bf16 with fusion");
}
