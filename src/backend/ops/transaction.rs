//! Reading many tensors at once.

use super::prelude::*;

impl<B: OffloadTarget> TransactionOps<Self> for Offloaded<B> {
    /// What is offloaded is read from host memory; the wrapped backend reads the rest in one go.
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let op = Op::enter();
        let floats = Split::new(transaction.read_floats);
        let qfloats = Split::new(transaction.read_qfloats);
        let ints = Split::new(transaction.read_ints);
        let bools = Split::new(transaction.read_bools);
        let (floats, read_floats) = floats;
        let (qfloats, read_qfloats) = qfloats;
        let (ints, read_ints) = ints;
        let (bools, read_bools) = bools;
        let inner =
            TransactionPrimitive::<B>::new(read_floats, read_qfloats, read_ints, read_bools);
        drop(op);
        let data = Op::enter_future(B::tr_execute(inner)).await?;
        Ok(TransactionPrimitiveData {
            read_floats: floats.join(data.read_floats),
            read_qfloats: qfloats.join(data.read_qfloats),
            read_ints: ints.join(data.read_ints),
            read_bools: bools.join(data.read_bools),
        })
    }
}

/// For each tensor its data, where that lies in host memory.
struct Split(Vec<Option<TensorData>>);

impl Split {
    fn new<B: OffloadTarget, K: Kind<B>>(
        tensors: Vec<OffloadedTensor<B, K>>,
    ) -> (Self, Vec<K::Primitive>) {
        let mut rest = Vec::new();
        let mut data = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let hosted = tensor.host_data();
            if hosted.is_none() {
                rest.push(tensor.read());
            }
            data.push(hosted);
        }
        (Self(data), rest)
    }

    fn join(self, rest: Vec<TensorData>) -> Vec<TensorData> {
        let mut rest = rest.into_iter();
        let data = self.0.into_iter();
        data.filter_map(|hosted| hosted.or_else(|| rest.next()))
            .collect()
    }
}
