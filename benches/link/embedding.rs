//! Rows of an embedding table of 262144 x 5120 in bf16, 2.5 GiB.

use burn::tensor::{DType, Int, Tensor, TensorData, backend::Backend, bf16, module::embedding};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use cubecl::cuda::CudaDevice;

use crate::{
    Eager, configure,
    fill::values,
    timing::{Line, Table, device_used, link_speed, time},
};

const COLUMNS: usize = 5120;
/// Lookups in one timing.
const LOOKUPS: usize = 50;

fn with<B: OffloadTarget<Device = CudaDevice>>(name: &str, table: &mut Table) {
    let device = CudaDevice::default();
    let link = link_speed();
    for entries in [32 * 1024, 256 * 1024] {
        let mut resident = None;
        for (mode, policy) in [
            ("resident", OffloadPolicy::nothing()),
            ("offloaded", OffloadPolicy::host_budget(ByteSize::gib(4))),
        ] {
            configure::<B>(policy);
            let data = values(1, [entries, COLUMNS].into(), DType::BF16);
            let weight: Tensor<Offloaded<B>, 2> =
                Offloaded::<B>::memory_persistent_allocations(&device, data, |data| {
                    Tensor::from_data(data, (&device, DType::BF16))
                });
            for rows in [64, 1024] {
                let ids: Vec<i32> = (0..rows as i32)
                    .map(|i| i.wrapping_mul(7919) % entries as i32)
                    .collect();
                let ids = TensorData::new(ids, [1, rows]);
                let ids = Tensor::<Offloaded<B>, 2, Int>::from_data(ids, &device);
                let result = embedding(weight.clone(), ids.clone()).into_data();
                let taken = time::<Offloaded<B>>(9, || {
                    for _ in 0..LOOKUPS {
                        embedding(weight.clone(), ids.clone());
                    }
                });
                let taken = taken.each(LOOKUPS);
                let key = (rows, taken.median, result);
                if mode == "resident" {
                    resident.get_or_insert_with(Vec::new).push(key);
                    continue;
                }
                let known = resident.iter().flatten().find(|r| r.0 == rows);
                let (_, before, expected) = known.expect("it was measured before");
                println!(
                    "embedding, {entries} entries, {rows} rows: {:.2} times the resident time",
                    key.1 / before
                );
                table.add(Line {
                    part: "embedding",
                    case: format!("{rows} rows of {entries}"),
                    mode: format!("{name}, {mode}"),
                    time: taken,
                    offloaded_bytes: (rows * COLUMNS * 2) as u64,
                    link,
                    resident: *before,
                    staging_bytes: Offloaded::<B>::stats(&device).ring_bytes,
                    device_bytes: device_used(),
                    identical: key.2 == *expected,
                });
            }
            drop(weight);
            B::sync(&device).expect("the device works");
            B::memory_cleanup(&device);
        }
    }
}

/// Runs this part, without fusion.
pub fn eager(table: &mut Table) {
    with::<Eager<bf16>>("without fusion", table);
}
