//! Gradients: `Autodiff` over `Offloaded` gives what it gives over the wrapped backend, bit for bit.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

use burn::tensor::{TensorData, TensorMetadata, backend::AutodiffBackend};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn_offload::{OffloadPolicy, OffloadTarget, Offloaded};

use super::{
    Placing,
    case::{Args, Case, Cases, Data, Input, Types, Value},
    configure, lay,
};

/// A case's results, and the gradient of each operand: of a weighted sum of the results. An operand
/// that is no float tensor, or that the results do not depend on, has none.
#[derive(Debug, PartialEq)]
struct Differentiated {
    results: Vec<Data>,
    gradients: Vec<Option<Data>>,
}

/// `Err` where autodiff, or the backend, does not have the operation.
fn differentiate<B: AutodiffBackend>(
    case: &Case<B>,
    values: Vec<Value<B>>,
    types: Types,
    device: &B::Device,
) -> Result<Differentiated, ()> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let track = |value| match value {
            Value::Float(t) => Value::Float(B::float_set_require_grad(t, true)),
            other => other,
        };
        let values: Vec<Value<B>> = values.into_iter().map(track).collect();
        let leaves = values.clone();
        let mut args = Args {
            values: values.into_iter(),
            types,
            device: device.clone(),
        };
        let results = (case.run)(&mut args);
        let weighted = results.iter().enumerate().filter_map(|(at, result)| {
            let Value::Float(result) = result else {
                return None;
            };
            // Another weight for each element, so that none stands for another.
            let weights = Input::Float(result.shape().to_vec()).data(16 + at, types);
            let weights = weights.convert_dtype(result.dtype());
            let weights = B::float_from_data(weights, device);
            Some(B::float_sum(B::float_mul(result.clone(), weights)))
        });
        let loss = weighted.reduce(B::float_add);
        let gradients = loss.map(B::backward);
        let gradient = |leaf| match (leaf, &gradients) {
            (Value::Float(leaf), Some(gradients)) => {
                let gradient = B::grad(&leaf, gradients)?;
                Some(Value::<B::InnerBackend>::Float(gradient).read())
            }
            _ => None,
        };
        Differentiated {
            gradients: leaves.into_iter().map(gradient).collect(),
            results: results.into_iter().map(Value::read).collect(),
        }
    }));
    outcome.map_err(drop)
}

/// Differentiates each case (none may have a quantized operand), with its operands placed in every way.
/// Returns the names of those that have a float operand, but a gradient in no case.
pub fn check_all<B: OffloadTarget, C: CheckpointStrategy>(
    bare: Cases<Autodiff<B, C>>,
    offloaded: Cases<Autodiff<Offloaded<B>, C>>,
    types: Types,
    device: &B::Device,
) -> BTreeSet<&'static str> {
    let mut wrong = Vec::new();
    let mut differentiated = BTreeSet::new();
    let mut wanted = BTreeSet::new();
    for (bare, offloaded) in bare.iter().zip(&offloaded) {
        let inputs = &bare.inputs;
        if inputs
            .iter()
            .any(|i| matches!(i, Input::Float(_) | Input::Fraction(_)))
        {
            wanted.insert(bare.name);
        }
        let data: Vec<TensorData> = (0..).zip(inputs).map(|(at, i)| i.data(at, types)).collect();
        for placing in Placing::of(data.len()) {
            let viewed = placing == Placing::AllViewed;
            let values = lay(inputs, &data, viewed, device, |_, make| make());
            let expected = differentiate(bare, values, types, device);
            if let Ok(expected) = &expected
                && expected.gradients.iter().any(Option::is_some)
            {
                differentiated.insert(bare.name);
            }
            configure::<B>(placing, |policy| policy, device);
            let values = placing.lay(inputs, &data, device);
            let full = data.iter().filter(|d| !d.bytes.is_empty()).count();
            let wanted = match placing {
                Placing::One(at) => usize::from(!data[at].bytes.is_empty()),
                _ => full,
            };
            let there = Offloaded::<B>::report(device).offloaded_parameters();
            if there < wanted {
                wrong.push(format!(
                    "{}: {placing:?}: {there} in host memory, not {wanted}",
                    bare.name
                ));
            }
            let kept: Vec<Value<Autodiff<Offloaded<B>, C>>> = values.clone();
            let got = differentiate(offloaded, values, types, device);
            if got != expected {
                wrong.push(format!(
                    "{}: {placing:?}: {got:?}\ninstead of {expected:?}",
                    bare.name
                ));
            }
            let values = lay(inputs, &data, viewed, device, |_, make| make());
            let values: Vec<Value<B>> = values;
            for (at, (kept, value)) in kept.into_iter().zip(values).enumerate() {
                if kept.read() != value.read() {
                    wrong.push(format!(
                        "{}: {placing:?}: operand {at} was changed",
                        bare.name
                    ));
                }
            }
        }
    }
    Offloaded::<B>::configure(device, OffloadPolicy::nothing()).expect("nothing can be offloaded");
    assert!(wrong.is_empty(), "{types:?}:\n{}", wrong.join("\n"));
    &wanted - &differentiated
}
