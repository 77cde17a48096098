use std::{
    cell::Cell,
    future::Future,
    marker::PhantomData,
    pin::pin,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use burn_backend::StreamId;

use super::watch::{self, Watcher};

/// Has operations be announced from now on. Called before the first buffer exists that a device reads
/// in place, so that no operation on one goes unannounced.
#[cfg(any(feature = "cuda", test))]
pub fn announce_operations() {
    watch::set(Watcher::Operations, true);
}

/// A thread that does operations.
struct Thread {
    /// Odd while the thread is inside an operation.
    count: AtomicU64,
}

static THREADS: Mutex<Vec<Weak<Thread>>> = Mutex::new(Vec::new());

/// Every stream that operations were queued on, and who wants to know of new ones.
#[derive(Default)]
struct Streams {
    /// With the thread that was the first to use it.
    known: Vec<(StreamId, Weak<Thread>)>,
    watchers: Vec<Box<dyn Fn(StreamId) + Send + Sync>>,
}

static STREAMS: LazyLock<RwLock<Streams>> = LazyLock::new(RwLock::default);

struct Local {
    thread: Arc<Thread>,
    depth: Cell<u32>,
    /// The stream of the latest operation.
    stream: Cell<Option<u64>>,
}

thread_local! {
    static LOCAL: Local = Local {
        thread: Thread::register(),
        depth: Cell::new(0),
        stream: Cell::new(None),
    };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Thread {
    fn register() -> Arc<Self> {
        let thread = Arc::new(Self {
            count: AtomicU64::new(0),
        });
        let mut threads = lock(&THREADS);
        threads.retain(|t| t.strong_count() > 0);
        threads.push(Arc::downgrade(&thread));
        thread
    }

    fn step(&self) {
        // Only the thread itself counts. Release: what it did inside an operation is seen by whoever
        // sees that the operation has ended.
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
    }
}

/// An operation of the wrapped backend under way on this thread.
///
/// Inside one, a backend turns tensors into kernel arguments and queues the kernel. In between,
/// nothing but this guard shows that the memory is about to be read; `UnderWay` and `quiesce` wait
/// for it.
#[must_use]
pub struct Op {
    /// `None` where it is not announced.
    end: Option<End>,
    /// It is this thread's.
    _not_send: PhantomData<*const ()>,
}

enum End {
    Local,
    /// Done while the thread's locals are being destroyed.
    Orphan(Arc<Thread>),
}

impl Op {
    /// Announces an operation. Free while no device needs it.
    #[inline]
    pub fn enter() -> Self {
        // A thread that holds a tensor in host memory learned of it after the flag was set, so it
        // cannot see the flag from before.
        let end = watch::watches(Watcher::Operations).then(Self::announce);
        Self {
            end,
            _not_send: PhantomData,
        }
    }

    fn announce() -> End {
        let stream = StreamId::current();
        let entered = LOCAL.try_with(|local| {
            let depth = local.depth.get();
            local.depth.set(depth + 1);
            if depth == 0 {
                local.thread.step();
            }
            if local.stream.get() != Some(stream.value) {
                know(stream, &local.thread);
                local.stream.set(Some(stream.value));
            }
        });
        match entered {
            Ok(()) => End::Local,
            Err(_) => {
                let thread = Thread::register();
                thread.step();
                know(stream, &thread);
                End::Orphan(thread)
            }
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

impl Drop for Op {
    #[inline]
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end.leave();
        }
    }
}

impl End {
    fn leave(self) {
        match self {
            Self::Local => {
                // An operation outlived the thread's locals only if they are being destroyed, and
                // then nothing of the thread's can be under way any more.
                let _destroyed = LOCAL.try_with(|local| {
                    let depth = local.depth.get() - 1;
                    local.depth.set(depth);
                    if depth == 0 {
                        local.thread.step();
                    }
                });
            }
            Self::Orphan(thread) => thread.step(),
        }
    }
}

#[cold]
fn know(stream: StreamId, thread: &Arc<Thread>) {
    {
        let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
        if streams.known.iter().any(|(known, _)| *known == stream) {
            return;
        }
        streams.known.push((stream, Arc::downgrade(thread)));
    }
    // Nothing is queued on the stream before the watchers have done what they have to.
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    for watcher in &streams.watchers {
        watcher(stream);
    }
}

/// Every stream that an announced operation was queued on.
#[cfg(any(feature = "cuda", test))]
pub fn known_streams() -> Vec<StreamId> {
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    streams.known.iter().map(|(stream, _)| *stream).collect()
}

/// The streams whose threads have ended since this was last asked. What they left queued nobody else
/// sees to.
#[cfg(any(feature = "cuda", test))]
pub fn take_ended_streams() -> Vec<StreamId> {
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    let ended = |(_, thread): &mut (StreamId, Weak<Thread>)| thread.strong_count() == 0;
    let ended = streams.known.extract_if(.., ended);
    ended.map(|(stream, _)| stream).collect()
}

/// Calls `watcher` for every stream that operations are queued on from now on, before the first is.
#[cfg(any(feature = "cuda", test))]
pub fn watch_streams(watcher: impl Fn(StreamId) + Send + Sync + 'static) {
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    streams.watchers.push(Box::new(watcher));
}

/// The operations that were under way on other threads at some moment.
#[cfg(any(feature = "cuda", test))]
pub struct UnderWay(Vec<(Arc<Thread>, u64)>);

#[cfg(any(feature = "cuda", test))]
impl UnderWay {
    /// Those of this moment. An operation that made a kernel argument of a tensor's last handle, as
    /// the caller has seen by then, is among them until the kernel is queued.
    pub fn now() -> Self {
        // Pairs with the release of a handle's count, which the caller read relaxed.
        std::sync::atomic::fence(Ordering::SeqCst);
        let me = LOCAL.try_with(|local| Arc::as_ptr(&local.thread)).ok();
        let threads = lock(&THREADS);
        let live = threads.iter().filter_map(Weak::upgrade);
        let others = live.filter(|thread| Some(Arc::as_ptr(thread)) != me);
        let counted = others.map(|thread| {
            let count = thread.count.load(Ordering::Acquire);
            (thread, count)
        });
        Self(counted.filter(|(_, count)| count % 2 == 1).collect())
    }

    /// Whether all of them have ended.
    pub fn ended(&self) -> bool {
        let mut threads = self.0.iter();
        threads.all(|(thread, count)| thread.count.load(Ordering::Acquire) != *count)
    }
}

/// Blocks until every operation that is under way on any other thread has ended; not for those that
/// begin meanwhile. Must not be called inside an operation.
#[cfg(any(feature = "cuda", test))]
pub fn quiesce() {
    let under_way = UnderWay::now();
    while !under_way.ended() {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{atomic::AtomicBool, mpsc},
        time::Duration,
    };

    #[test]
    fn quiesce_waits_for_an_operation_under_way_and_not_for_ever_new_ones() {
        announce_operations();
        let (entered, wait_entered) = mpsc::channel();
        let (leave, wait_leave) = mpsc::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let (ended, stop) = (ended.clone(), stop.clone());
            move || {
                let op = Op::enter();
                // One inside it does not end it.
                drop(Op::enter());
                entered.send(()).unwrap();
                wait_leave.recv().unwrap();
                ended.store(true, Ordering::SeqCst);
                drop(op);
                // Ever new operations do not keep `quiesce` from returning.
                while !stop.load(Ordering::Relaxed) {
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
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    }

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        announce_operations();
        let _op = Op::enter();
        let me = LOCAL.with(|local| Arc::as_ptr(&local.thread));
        let UnderWay(others) = UnderWay::now();
        assert!(others.iter().all(|(thread, _)| Arc::as_ptr(thread) != me));
    }

    #[test]
    fn a_new_stream_is_told_before_its_first_operation() {
        announce_operations();
        let (told, heard) = mpsc::channel();
        watch_streams(move |stream| {
            told.send(stream).ok();
        });
        let stream = std::thread::spawn(|| {
            drop(Op::enter());
            StreamId::current()
        });
        let stream = stream.join().unwrap();
        assert!(heard.try_iter().any(|s| s == stream));
        assert!(take_ended_streams().contains(&stream));
        assert!(!known_streams().contains(&stream));
    }
}
