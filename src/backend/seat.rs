//! A tensor's seat: its place, kept for the one that takes it over, as after an optimizer's step.

use std::{any::Any, cell::RefCell, collections::VecDeque, sync::Arc};

use crate::target::{Float, Kind, OffloadTarget};

use super::{
    slot::{Line, Placed, Slot, StatePlace},
    state::DeviceState,
    tensor::OffloadedTensor,
};

/// The place of a tensor that is about to be replaced. Taken before the tensor is used up, so that what
/// replaces it finds the place still there.
pub struct Seat<B: OffloadTarget, K: Kind<B>> {
    kept: Kept<B, K>,
    /// How many clones of the tensor others have that do not count: they are let go after.
    ignored: usize,
}

enum Kept<B: OffloadTarget, K: Kind<B>> {
    /// It had none: an ordinary tensor.
    Nothing,
    /// A resident parameter's line in the books. The tensor itself is not kept, so that the backend may
    /// write over it.
    Line(Line),
    /// An offloaded parameter, or a resident one that others have too.
    Slot(Arc<Slot<B, K>>),
}

impl<B: OffloadTarget, K: Kind<B>> Seat<B, K> {
    /// The seat of a tensor that is to be replaced. Of its clones, the one who replaces it has `mine`, this
    /// one among them, and `ignored` are others' that need not keep their value, since they are let go
    /// after.
    pub fn of(tensor: &OffloadedTensor<B, K>, mine: usize, ignored: usize) -> Self {
        let kept = match tensor.own_slot() {
            None => Kept::Nothing,
            Some(slot) => {
                let alone = Arc::strong_count(slot) <= mine + ignored && !slot.is_offloaded();
                match slot.line() {
                    Some(line) if alone => Kept::Line(line),
                    _ => Kept::Slot(slot.clone()),
                }
            }
        };
        Self { kept, ignored }
    }

    /// Whether nobody who counts has the slot besides this seat.
    fn is_last_of(&self, slot: &Arc<Slot<B, K>>) -> bool {
        Arc::strong_count(slot) <= 1 + self.ignored
    }

    /// How the optimizer state of the parameter that had the seat is placed: what the parameter is called,
    /// and the policy that placed it, or the device's.
    pub fn state_place(&self, device: &B::Device) -> Option<StatePlace> {
        let state = DeviceState::get(device)?;
        let (record, placed_by) = match &self.kept {
            Kept::Nothing => (None, None),
            Kept::Line(line) => (Some(line.record()), line.placed_by()),
            Kept::Slot(slot) => (slot.record(), slot.placed_by()),
        };
        Some(StatePlace {
            name: record.and_then(|record| record.name),
            policy: placed_by.unwrap_or_else(|| state.policy()),
        })
    }

    /// Whether the tensor was in host memory.
    pub fn is_offloaded(&self) -> bool {
        matches!(&self.kept, Kept::Slot(slot) if slot.is_offloaded())
    }

    /// Whether the tensor is the one that has the seat already.
    pub fn has(&self, tensor: &OffloadedTensor<B, K>) -> bool {
        match (&self.kept, tensor.own_slot()) {
            (Kept::Slot(mine), Some(slot)) => Arc::ptr_eq(mine, slot),
            (Kept::Line(line), Some(slot)) => slot.line().is_some_and(|other| line.is(&other)),
            _ => false,
        }
    }

    /// Seats the tensor: it is where the one before was, in the same memory where nobody else has that.
    pub fn seat(self, tensor: OffloadedTensor<B, K>) -> OffloadedTensor<B, K> {
        if self.has(&tensor) {
            return tensor;
        }
        let new = match tensor.into_resident() {
            Ok(new) => new,
            Err(placed) => return placed,
        };
        let slot = match &self.kept {
            Kept::Nothing => return OffloadedTensor::plain(new),
            Kept::Slot(slot) if self.is_last_of(slot) && slot.is_of(&new) => {
                slot.rewrite(new);
                slot.clone()
            }
            Kept::Slot(slot) => Arc::new(slot.beside(new)),
            Kept::Line(line) => Arc::new(Slot::take_over(new, line.clone())),
        };
        OffloadedTensor::of_slot(slot)
    }
}

impl<B: OffloadTarget> Seat<B, Float> {
    /// Seats a tensor of an optimizer's state, which gets a place by the policy where there was none.
    fn seat_state(
        self,
        tensor: OffloadedTensor<B, Float>,
        place: &StatePlace,
    ) -> OffloadedTensor<B, Float> {
        let new = match tensor.into_resident() {
            Ok(new) => new,
            Err(placed) => return placed,
        };
        let slot = match &self.kept {
            Kept::Slot(slot)
                if slot.is_offloaded() && self.is_last_of(slot) && slot.is_of(&new) =>
            {
                slot.rewrite(new);
                slot.clone()
            }
            _ => Arc::new(Slot::optimizer_state(new, place)),
        };
        OffloadedTensor::of_slot(slot)
    }
}

/// What the tensors of an optimizer's state are passed through. The optimizer is asked to move its state
/// to the device where that already is, and so hands over each of its tensors, in one order.
pub enum Pass<B: OffloadTarget> {
    /// Takes their seats.
    Rise(VecDeque<Seat<B, Float>>),
    /// Seats them.
    Sit {
        /// The seats of the state before, in order.
        seats: VecDeque<Seat<B, Float>>,
        /// Where those go that had none.
        place: StatePlace,
        /// How many were seated.
        seated: usize,
    },
}

thread_local! {
    static PASS: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

impl<B: OffloadTarget> Pass<B> {
    /// Runs `task`, passing through all tensors that it moves to the device where they are.
    pub fn run<T>(self, task: impl FnOnce() -> T) -> (T, Option<Self>) {
        struct Clear;
        impl Drop for Clear {
            fn drop(&mut self) {
                PASS.take();
            }
        }
        PASS.set(Some(Box::new(self)));
        let clear = Clear;
        let output = task();
        let pass = PASS.take();
        drop(clear);
        let pass = pass.and_then(|pass| pass.downcast().ok());
        (output, pass.map(|pass| *pass))
    }

    fn pass(&mut self, tensor: OffloadedTensor<B, Float>) -> OffloadedTensor<B, Float> {
        match self {
            Self::Rise(seats) => {
                // The optimizer's own, and the clone that is passed.
                seats.push_back(Seat::of(&tensor, 2, 0));
                tensor
            }
            Self::Sit {
                seats,
                place,
                seated,
            } => {
                let place = StatePlace {
                    name: (place.name.as_ref())
                        .map(|name| format!("{name} (optimizer state {seated})")),
                    policy: place.policy.clone(),
                };
                *seated += 1;
                let seat = seats.pop_front().unwrap_or(Seat {
                    kept: Kept::Nothing,
                    ignored: 0,
                });
                seat.seat_state(tensor, &place)
            }
        }
    }
}

/// Passes a tensor through, where this thread is at it.
#[inline]
pub fn pass<B: OffloadTarget>(tensor: OffloadedTensor<B, Float>) -> OffloadedTensor<B, Float> {
    // Taken out meanwhile: what seats a tensor may itself move tensors.
    match PASS.take() {
        None => tensor,
        Some(mut passing) => {
            let tensor = match passing.downcast_mut::<Pass<B>>() {
                Some(pass) => pass.pass(tensor),
                None => tensor,
            };
            PASS.set(Some(passing));
            tensor
        }
    }
}
