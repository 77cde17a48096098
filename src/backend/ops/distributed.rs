//! Collective operations, where the wrapped backend has them. The server that orders them is Burn's, and
//! runs on `Offloaded` itself.

use burn_backend::{
    DeviceId,
    distributed::{CollectiveTensor, DistributedBackend, ReduceOperation},
};

use super::prelude::*;

impl<B: OffloadTarget + DistributedBackend> DistributedBackend for Offloaded<B> {
    fn all_reduce(
        tensor: FloatTensor<Self>,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        let under_way = Op::enter();
        let reduced = B::all_reduce(tensor.read(), op, device_ids);
        drop(under_way);
        // SAFETY: it goes straight into a collective tensor again, which asks for the same wait before it
        // is used.
        let reduced = unsafe { reduced.assume_resolved() };
        // Plain: it may not be read yet.
        CollectiveTensor::new(OffloadedTensor::plain(reduced))
    }

    fn sync_collective(device: &Device<Self>) {
        let _op = Op::enter();
        B::sync_collective(device);
    }
}
