//! How fast offloaded weights pass, against the link's copy speed and against resident weights, and what
//! the decorator costs where none are.
//!
//! Needs an NVIDIA GPU. `scripts/gpu-bench` runs it; see there. Prints a line of JSON for each figure,
//! and a table last. Arguments: the names of the parts to run (`PARTS` below), all if there are none.

#[allow(dead_code)]
#[path = "../../examples/llama/config.rs"]
mod config;
#[path = "../../tests/cuda/fill.rs"]
mod fill;
#[allow(dead_code)]
#[path = "../../examples/llama/model.rs"]
mod model;

mod cost;
mod decoder;
mod embedding;
mod linear;
mod timing;

use burn_cubecl::CubeBackend;
use burn_offload::{OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::{CudaDevice, CudaRuntime};

/// burn-cuda without fusion.
pub type Eager<F> = CubeBackend<CudaRuntime, F, i32, u8>;
/// burn-cuda with fusion, its default.
pub type Fused<F> = burn_fusion::Fusion<Eager<F>>;

/// Sets the device's policy.
pub fn configure<B: OffloadTarget<Device = CudaDevice>>(policy: OffloadPolicy) {
    Offloaded::<B>::configure(&CudaDevice::default(), policy).expect("the device can be used");
}

type Part = (&'static str, fn(&mut timing::Table));

const PARTS: [Part; 7] = [
    ("linear-eager", linear::eager),
    ("linear-fused", linear::fused),
    ("embedding", embedding::eager),
    ("decoder-eager", decoder::eager),
    ("decoder-fused", decoder::fused),
    ("cost-eager", cost::eager),
    ("cost-fused", cost::fused),
];

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    if let Some(unknown) = wanted
        .iter()
        .find(|w| !PARTS.iter().any(|(name, _)| name == w))
    {
        let names = PARTS.map(|(name, _)| name).join(", ");
        eprintln!("there is no part `{unknown}`; the parts are {names}");
        std::process::exit(2);
    }
    let mut table = timing::Table::new();
    for (name, run) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            run(&mut table);
        }
    }
    if !table.is_empty() {
        println!("\n{table}");
    }
}
