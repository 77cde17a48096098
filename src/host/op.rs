use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
};

use crossbeam_epoch as epoch;

/// Whether any device of this process reads host memory in place. Never taken back.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// Has operations be announced from now on. Called before the first buffer exists that a device reads
/// in place, so that no operation on one goes unannounced.
#[cfg(any(feature = "cuda", test))]
pub fn announce_operations() {
    IN_PLACE.store(true, Ordering::SeqCst);
}

/// An operation of the wrapped backend under way on this thread.
///
/// Inside one, a backend turns tensors into kernel arguments and queues the kernel. In between,
/// nothing but this guard shows that the memory is about to be read; `quiesce` waits for it.
#[must_use]
pub struct Op {
    _pin: Option<epoch::Guard>,
}

impl Op {
    /// Announces an operation. Free while no device reads host memory in place.
    #[inline]
    pub fn enter() -> Self {
        // A thread that holds a tensor in host memory learned of it after the flag was set, so it
        // cannot see the flag from before.
        let announced = IN_PLACE.load(Ordering::Relaxed);
        Self {
            _pin: announced.then(epoch::pin),
        }
    }

    /// Announces a future's every step, but not the time in between.
    pub async fn enter_future<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            let _op = Op::enter();
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// Blocks until every operation that is under way on any thread has ended. One that begins meanwhile
/// may be waited for too, but not one after the other without end. Must not be called inside an
/// operation.
#[cfg(any(feature = "cuda", test))]
pub fn quiesce() {
    use std::sync::Arc;

    let done = Arc::new(AtomicBool::new(false));
    let guard = epoch::pin();
    let signal = done.clone();
    guard.defer(move || signal.store(true, Ordering::Release));
    guard.flush();
    drop(guard);
    while !done.load(Ordering::Acquire) {
        epoch::pin().flush();
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{Arc, mpsc},
        time::Duration,
    };

    #[test]
    fn quiesce_waits_for_an_operation_under_way_and_not_for_ever_new_ones() {
        announce_operations();
        let (entered, wait_entered) = mpsc::channel();
        let (leave, wait_leave) = mpsc::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let ended = ended.clone();
            move || {
                let op = Op::enter();
                entered.send(()).unwrap();
                wait_leave.recv().unwrap();
                ended.store(true, Ordering::SeqCst);
                drop(op);
                // Ever new operations do not keep `quiesce` from returning.
                for _ in 0..1000 {
                    drop(Op::enter());
                }
            }
        });
        wait_entered.recv().unwrap();
        let waiter = std::thread::spawn({
            let ended = ended.clone();
            move || {
                quiesce();
                assert!(ended.load(Ordering::SeqCst), "returned too early");
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        leave.send(()).unwrap();
        waiter.join().unwrap();
        worker.join().unwrap();
    }
}
