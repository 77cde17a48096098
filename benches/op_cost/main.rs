//! What an operation costs the host, on tiny tensors: on Flex alone, and through `Offloaded` with
//! everything resident. `scripts/op-cost` counts the instructions with callgrind and prints the table.
//!
//! Arguments: the backend (`bare`, `unconfigured`, `resident`), the operation, and how often to do it.

use burn::tensor::{Int, Tensor, activation, backend::Backend};
use burn_flex::Flex;
use burn_offload::{OffloadPolicy, Offloaded};
use std::{hint::black_box, process::exit};

/// A parameter, and what it meets.
struct Tensors<B: Backend> {
    x: Tensor<B, 2>,
    weight: Tensor<B, 2>,
    ids: Tensor<B, 2, Int>,
}

type Operation<B> = fn(&Tensors<B>);

fn operations<B: Backend>() -> [(&'static str, Operation<B>); 8] {
    [
        ("clone", |t| drop(black_box(t.x.clone()))),
        ("add", |t| drop(black_box(t.x.clone() + t.x.clone()))),
        ("exp", |t| drop(black_box(t.x.clone().exp()))),
        ("sum", |t| drop(black_box(t.x.clone().sum()))),
        ("reshape", |t| drop(black_box(t.x.clone().reshape([4, 1])))),
        ("gelu", |t| drop(black_box(activation::gelu(t.x.clone())))),
        ("matmul with a parameter", |t| {
            drop(black_box(t.x.clone().matmul(t.weight.clone())))
        }),
        ("gather", |t| {
            drop(black_box(t.x.clone().gather(1, t.ids.clone())))
        }),
    ]
}

fn run<B: Backend>(operation: &str, times: usize) {
    let device = B::Device::default();
    let tensors = Tensors::<B> {
        x: Tensor::from_data([[1.0, 2.0], [3.0, 4.0]], &device),
        weight: B::memory_persistent_allocations(&device, (), |()| {
            Tensor::from_data([[1.0, 0.5], [0.25, 2.0]], &device)
        }),
        ids: Tensor::from_data([[0, 1], [1, 0]], &device),
    };
    let known = operations::<B>();
    let Some((_, run)) = known.iter().find(|(name, _)| *name == operation) else {
        for (name, _) in known {
            println!("{name}");
        }
        exit(if operation == "list" { 0 } else { 2 });
    };
    for _ in 0..times {
        run(&tensors);
    }
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let [backend, operation, times] = &args[..] else {
        // As `cargo bench` and `cargo test` run it: whether every operation works.
        for (name, _) in operations::<Flex>() {
            run::<Flex>(name, 1);
            run::<Offloaded<Flex>>(name, 1);
        }
        return;
    };
    let times = times.parse().expect("how often is a number");
    match backend.as_str() {
        "bare" => run::<Flex>(operation, times),
        "unconfigured" => run::<Offloaded<Flex>>(operation, times),
        "resident" => {
            Offloaded::<Flex>::configure(&Default::default(), OffloadPolicy::nothing())
                .expect("the policy holds");
            run::<Offloaded<Flex>>(operation, times);
        }
        other => {
            eprintln!("there is no backend `{other}`: bare, unconfigured or resident");
            exit(2);
        }
    }
}
