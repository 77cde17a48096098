//! Random programs give what the wrapped backend gives, wherever their inputs lie.

use std::fmt;

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use burn_offload::{ByteSize, OffloadPolicy, OffloadTarget, Offloaded};
use proptest::prelude::*;

/// All tensors are square, so that every step fits every tensor.
const SIDE: usize = 4;

/// A step makes a tensor of earlier ones, which are numbered from zero.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Add(usize, usize),
    Mul(usize, usize),
    Matmul(usize, usize),
    /// In place, where nobody else holds the tensor.
    AddScalar(usize),
    Relu(usize),
    Exp(usize),
    Transpose(usize),
    /// To one dimension and back.
    Reshape(usize),
    /// The first rows after the last.
    Roll(usize),
    /// A row, for all rows.
    Expand(usize),
    SoftmaxRows(usize),
    /// Rows by the order of another's first column.
    SelectRows(usize, usize),
    SortRows(usize),
    /// Where the first is greater, the second.
    Where(usize, usize),
    SliceAssign(usize, usize),
    SumRows(usize),
    /// Through integers.
    Round(usize),
}

/// A program: how many inputs, which of them lie in host memory, the steps, and which tensors are let
/// go once they were used.
#[derive(Clone)]
pub struct Program {
    pub on_host: Vec<bool>,
    pub steps: Vec<(Step, bool)>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, on_host) in self.on_host.iter().enumerate() {
            let place = if *on_host { "host" } else { "device" };
            write!(f, "t{at} = {place}; ")?;
        }
        for (at, (step, last)) in self.steps.iter().enumerate() {
            let last = if *last { ", operands let go" } else { "" };
            write!(f, "t{} = {step:?}{last}; ", self.on_host.len() + at)?;
        }
        Ok(())
    }
}

pub fn any_program() -> impl Strategy<Value = Program> {
    let t = || 0usize..16;
    let step = prop_oneof![
        (t(), t()).prop_map(|(a, b)| Step::Add(a, b)),
        (t(), t()).prop_map(|(a, b)| Step::Mul(a, b)),
        (t(), t()).prop_map(|(a, b)| Step::Matmul(a, b)),
        t().prop_map(Step::AddScalar),
        t().prop_map(Step::Relu),
        t().prop_map(Step::Exp),
        t().prop_map(Step::Transpose),
        t().prop_map(Step::Reshape),
        t().prop_map(Step::Roll),
        t().prop_map(Step::Expand),
        t().prop_map(Step::SoftmaxRows),
        (t(), t()).prop_map(|(a, b)| Step::SelectRows(a, b)),
        t().prop_map(Step::SortRows),
        (t(), t()).prop_map(|(a, b)| Step::Where(a, b)),
        (t(), t()).prop_map(|(a, b)| Step::SliceAssign(a, b)),
        t().prop_map(Step::SumRows),
        t().prop_map(Step::Round),
    ];
    let steps = prop::collection::vec((step, any::<bool>()), 1..12);
    let on_host = prop::collection::vec(any::<bool>(), 1..4);
    (on_host, steps).prop_map(|(on_host, steps)| Program { on_host, steps })
}

fn input(at: usize) -> TensorData {
    let values: Vec<f32> = (0..SIDE * SIDE)
        .map(|i| ((i * 7 + at * 5) % 11) as f32 / 8.0 - 0.6)
        .collect();
    TensorData::new(values, [SIDE, SIDE])
}

type T<B> = Tensor<B, 2>;

/// Runs a program on inputs; returns every tensor that is still held at the end. With `settle`, what a
/// step computes is stored densely before it is used, as it is where everything is offloaded: kernels
/// may round otherwise for another layout. Views stay views there too.
fn run<B: Backend>(inputs: Vec<T<B>>, steps: &[(Step, bool)], settle: bool) -> Vec<TensorData> {
    let mut pool: Vec<Option<T<B>>> = inputs.into_iter().map(Some).collect();
    for (step, last) in steps {
        let at = |wanted: usize, pool: &[Option<T<B>>]| {
            // The tensor wanted, or the next that is still held.
            let held = |i: &usize| pool[*i].is_some();
            (0..pool.len())
                .map(|i| (wanted + i) % pool.len())
                .find(held)
        };
        let mut used = Vec::new();
        let mut get = |wanted: usize, pool: &mut Vec<Option<T<B>>>| -> T<B> {
            let i = at(wanted, pool).expect("the last tensor is always held");
            used.push(i);
            pool[i].clone().expect("it is held")
        };
        let one = |step_input: usize, get: &mut dyn FnMut(usize) -> T<B>| get(step_input);
        let mut take = |wanted: usize| get(wanted, &mut pool);
        let a = match *step {
            Step::Add(a, _)
            | Step::Mul(a, _)
            | Step::Matmul(a, _)
            | Step::AddScalar(a)
            | Step::Relu(a)
            | Step::Exp(a)
            | Step::Transpose(a)
            | Step::Reshape(a)
            | Step::Roll(a)
            | Step::Expand(a)
            | Step::SoftmaxRows(a)
            | Step::SelectRows(a, _)
            | Step::SortRows(a)
            | Step::Where(a, _)
            | Step::SliceAssign(a, _)
            | Step::SumRows(a)
            | Step::Round(a) => one(a, &mut take),
        };
        let b = match *step {
            Step::Add(_, b)
            | Step::Mul(_, b)
            | Step::Matmul(_, b)
            | Step::SelectRows(_, b)
            | Step::Where(_, b)
            | Step::SliceAssign(_, b) => Some(one(b, &mut take)),
            _ => None,
        };
        let b = || b.clone().expect("the step has two operands");
        if *last && used.len() < pool.iter().flatten().count() {
            for i in used {
                pool[i] = None;
            }
        }
        let dense = |t: T<B>| {
            if !settle {
                return t;
            }
            let device = t.device();
            Tensor::from_data(t.into_data(), &device)
        };
        let rows = |from: usize, to: usize| [from..to, 0..SIDE];
        let made = match *step {
            Step::Add(..) => a + b(),
            Step::Mul(..) => a * b(),
            Step::Matmul(..) => a.matmul(b()),
            Step::AddScalar(_) => a + 0.5,
            Step::Relu(_) => burn::tensor::activation::relu(a),
            Step::Exp(_) => a.clamp(-3.0, 3.0).exp(),
            Step::Transpose(_) => a.transpose(),
            Step::Reshape(_) => a.reshape([SIDE * SIDE]).reshape([SIDE, SIDE]),
            Step::Roll(_) => {
                let (head, tail) = (a.clone().slice(rows(0, 1)), a.slice(rows(1, SIDE)));
                Tensor::cat(vec![tail, head], 0)
            }
            Step::Expand(_) => a.slice(rows(1, 2)).expand([SIDE, SIDE]),
            Step::SoftmaxRows(_) => burn::tensor::activation::softmax(a.clamp(-9.0, 9.0), 1),
            Step::SelectRows(..) => {
                let order: Tensor<B, 2, Int> = b().argsort(0);
                let order = order.slice([0..SIDE, 0..1]).reshape([SIDE]);
                a.select(0, order)
            }
            Step::SortRows(_) => a.sort(1),
            Step::Where(..) => {
                let mask = a.clone().greater(b());
                a.mask_where(mask, b())
            }
            Step::SliceAssign(..) => a.slice_assign(rows(0, 2), b().slice(rows(2, SIDE))),
            Step::SumRows(_) => dense(a.sum_dim(1)).expand([SIDE, SIDE]),
            Step::Round(_) => a.clamp(-99.0, 99.0).int().float(),
        };
        let view = matches!(
            step,
            Step::Transpose(_) | Step::Reshape(_) | Step::Expand(_) | Step::SumRows(_)
        );
        pool.push(Some(if view { made } else { dense(made) }));
    }
    pool.into_iter().flatten().map(Tensor::into_data).collect()
}

/// Whether `B` and `Offloaded<B>` agree, with the inputs placed as the program says, and with
/// everything in host memory.
pub fn agree<B: OffloadTarget>(program: &Program, device: &B::Device) -> Result<(), TestCaseError> {
    type O<B> = Offloaded<B>;
    let data = || (0..program.on_host.len()).map(input);
    let bare = || data().map(|data| Tensor::<B, 2>::from_data(data, device));
    for (policy, settle) in [
        (OffloadPolicy::host_budget(ByteSize::mib(1)), false),
        (OffloadPolicy::everything(), true),
    ] {
        let expected = run(bare().collect(), &program.steps, settle);
        O::<B>::configure(device, policy).expect("the policy holds together");
        let inputs = data().zip(&program.on_host).map(|(data, on_host)| {
            if *on_host {
                O::<B>::memory_persistent_allocations(device, data, |data| {
                    Tensor::<O<B>, 2>::from_data(data, device)
                })
            } else {
                Tensor::from_data(data, device)
            }
        });
        let inputs: Vec<_> = inputs.collect();
        let kept = inputs.clone();
        let got = run(inputs, &program.steps, false);
        prop_assert_eq!(&got, &expected);
        for (at, tensor) in kept.into_iter().enumerate() {
            prop_assert_eq!(tensor.into_data(), input(at), "input {} was changed", at);
        }
    }
    O::<B>::configure(device, OffloadPolicy::nothing()).expect("the policy holds together");
    Ok(())
}
