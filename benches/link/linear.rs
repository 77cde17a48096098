//! Eight linear layers of 8192 x 8192 in bf16, 1 GiB, all offloaded.

use burn::tensor::{DType, Tensor, backend::Backend, bf16};
use burn_offload::{AccessMode, ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, Fused, configure,
    fill::values,
    timing::{Line, Table, device_used, link_speed, time, with_busy_link},
};

const SIZE: usize = 8192;
const LAYERS: usize = 8;
const BYTES: u64 = (LAYERS * SIZE * SIZE * 2) as u64;
/// Passes back to back in one timing: the steady state.
const PASSES: usize = 20;

type T<B> = Tensor<Offloaded<B>, 2>;

fn weights<B: OffloadTarget<Device = CudaDevice>>() -> Vec<T<B>> {
    let device = CudaDevice::default();
    let weight = |at| {
        let data = values(at as u64, [SIZE, SIZE].into(), DType::BF16);
        Offloaded::<B>::memory_persistent_allocations(&device, data, |data| {
            Tensor::from_data(data, (&device, DType::BF16))
        })
    };
    (0..LAYERS).map(weight).collect()
}

fn pass<B: OffloadTarget<Device = CudaDevice>>(weights: &[T<B>], x: &T<B>) -> T<B> {
    weights.iter().fold(x.clone(), |x, w| x.matmul(w.clone()))
}

fn with<B: OffloadTarget<Device = CudaDevice>>(name: &str, table: &mut Table) {
    let device = CudaDevice::default();
    let link = link_speed();
    let rows = [1, 16, 64, 256, 1024, 4096];
    let input = |rows: usize| -> T<B> {
        Tensor::from_data(
            values(99, [rows, SIZE].into(), DType::BF16),
            (&device, DType::BF16),
        )
    };
    configure::<B>(OffloadPolicy::nothing());
    let resident = weights::<B>();
    let baseline: Vec<_> = rows
        .iter()
        .map(|&rows| {
            let x = input(rows);
            // Tunes.
            pass(&resident, &x).into_data();
            let steady = time::<Offloaded<B>>(3, || {
                for _ in 0..PASSES {
                    pass(&resident, &x);
                }
            });
            let single = time::<Offloaded<B>>(5, || {
                pass(&resident, &x);
            });
            let result = pass(&resident, &x).into_data();
            if rows == 4096 {
                // What the hardware gives when both are at work, whoever copies.
                let busy = with_busy_link(|| {
                    time::<Offloaded<B>>(3, || {
                        for _ in 0..PASSES {
                            pass(&resident, &x);
                        }
                    })
                });
                table.add(Line {
                    part: "linear",
                    case: format!("{rows} rows, back to back"),
                    mode: format!("{name}, resident, while the link is busy otherwise"),
                    time: busy.each(PASSES),
                    offloaded_bytes: 0,
                    link,
                    resident: steady.each(PASSES).median,
                    staging_bytes: 0,
                    device_bytes: device_used(),
                    identical: true,
                });
            }
            (steady.each(PASSES), single, result)
        })
        .collect();
    drop(resident);
    B::sync(&device).expect("the device works");
    B::memory_cleanup(&device);

    let all = OffloadPolicy::host_budget(ByteSize::gib(2));
    for (mode, policy, case_rows) in [
        ("offloaded", all.clone(), 1..=4096),
        (
            "offloaded, room for four",
            all.clone().with_staging_budget(ByteSize::mib(512)),
            4096..=4096,
        ),
        (
            "read in place",
            all.clone().with_access(AccessMode::InPlace),
            1..=64,
        ),
        (
            "copied, not ahead",
            all.clone().with_prefetch(false),
            64..=1024,
        ),
    ] {
        configure::<B>(policy);
        let weights = weights::<B>();
        for (&rows, (resident, resident_single, expected)) in rows.iter().zip(&baseline) {
            if !case_rows.contains(&rows) {
                continue;
            }
            let x = input(rows);
            for _ in 0..3 {
                pass(&weights, &x).into_data();
            }
            // Where nothing runs ahead there is no steady state to reach.
            let passes = if mode == "read in place" { 2 } else { PASSES };
            let steady = time::<Offloaded<B>>(3, || {
                for _ in 0..passes {
                    pass(&weights, &x);
                }
            });
            let single = time::<Offloaded<B>>(5, || {
                pass(&weights, &x);
            });
            let identical = pass(&weights, &x).into_data() == *expected;
            for (what, time, resident) in [
                ("back to back", steady.each(passes), resident),
                ("one at a time", single, resident_single),
            ] {
                table.add(Line {
                    part: "linear",
                    case: format!("{rows} rows, {what}"),
                    mode: format!("{name}, {mode}"),
                    time,
                    offloaded_bytes: BYTES,
                    link,
                    resident: resident.median,
                    staging_bytes: Offloaded::<B>::stats(&device).ring_bytes,
                    device_bytes: device_used(),
                    identical,
                });
            }
        }
        eprintln!("{name}, {mode}: {:?}", Offloaded::<B>::stats(&device));
    }
    for (&rows, (steady, _, _)) in rows.iter().zip(&baseline) {
        table.add(Line {
            part: "linear",
            case: format!("{rows} rows, back to back"),
            mode: format!("{name}, resident"),
            time: *steady,
            offloaded_bytes: 0,
            link,
            resident: steady.median,
            staging_bytes: 0,
            device_bytes: 0,
            identical: true,
        });
    }
}

/// Runs this part without fusion.
pub fn eager(table: &mut Table) {
    with::<Eager<bf16>>("without fusion", table);
}

/// Runs this part with fusion.
pub fn fused(table: &mut Table) {
    with::<Fused<bf16>>("with fusion", table);
}
