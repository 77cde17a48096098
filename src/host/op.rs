use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use crossbeam_epoch as epoch;

/// How many host buffers exist that a device reads in place.
static ALIASED: AtomicUsize = AtomicUsize::new(0);

/// Counts a buffer that a device reads in place. While there is one, operations are announced.
#[cfg(any(feature = "cuda", test))]
#[derive(Debug)]
pub struct Alias(());

#[cfg(any(feature = "cuda", test))]
impl Alias {
    /// Counts one more.
    #[allow(clippy::new_without_default, reason = "it is a count, not a value")]
    pub fn new() -> Self {
        ALIASED.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

#[cfg(any(feature = "cuda", test))]
impl Drop for Alias {
    fn drop(&mut self) {
        ALIASED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An operation of the wrapped backend under way on this thread.
///
/// Inside one, a backend turns tensors into kernel arguments and queues the kernel. In between,
/// nothing but this guard shows that the memory is about to be read; [`quiesce`] waits for it.
#[must_use]
pub struct Op {
    _pin: Option<epoch::Guard>,
}

impl Op {
    /// Announces an operation. Free while no device reads host memory in place.
    #[inline]
    pub fn enter() -> Self {
        // A thread that holds a tensor in host memory learned of it after that memory was counted,
        // so it cannot see the count from before.
        let aliased = ALIASED.load(Ordering::Relaxed) != 0;
        Self {
            _pin: aliased.then(epoch::pin),
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

/// Blocks until every operation that is under way on any thread has ended. Operations that begin
/// later are not waited for. Must not be called inside an operation.
#[cfg(any(feature = "cuda", test))]
pub fn quiesce() {
    use std::sync::{Arc, atomic::AtomicBool};

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
        sync::{Arc, atomic::AtomicBool, mpsc},
        time::Duration,
    };

    #[test]
    fn quiesce_waits_for_an_operation_under_way_and_for_no_later_one() {
        let _alias = Alias::new();
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
