//! When host memory may be given back.
//!
//! A block that its parameter let go may still be read: by a tensor that views it, by an operation
//! that another thread has begun, by one that fusion or CubeCL has queued, and by a kernel that runs.
//! So a block is freed only when, in this order,
//!
//! 1. no handle on its anchor is left (none can come: handles are only made of handles, and of the
//!    parameter, which is gone);
//! 2. every operation that was under way on any thread at that moment has ended, so that what it
//!    made of a handle is in a queue ([`quiesce`]);
//! 3. fusion's thread has run what was in its queue;
//! 4. CubeCL's device thread has too, so that every kernel is on its CUDA stream;
//! 5. the context has finished all work on all streams.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Condvar, LazyLock, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use cubecl::{cuda::CudaDevice, device::Device};
use cubecl_common::device_handle::DeviceHandle;
use cudarc::driver::CudaContext;

use crate::host::{Charge, quiesce, take_ended_streams};

use super::{Server, device::finish_queued_work, lock, memory::Block};

/// Blocks of one device that nobody owns any more.
pub struct RetireQueue {
    device: CudaDevice,
    context: Arc<CudaContext>,
    retired: Mutex<Vec<Retired>>,
    /// Signalled when a block is retired.
    wake: Condvar,
    /// Held while blocks are released, so that `reclaim` waits for a release under way.
    releasing: Mutex<()>,
    server: OnceLock<DeviceHandle<Server>>,
    fusion: OnceLock<FusionQueue>,
    /// What memory is overwritten with before it is given back, from `BURN_OFFLOAD_POISON`: a read
    /// that comes too late then shows.
    poison: Option<u8>,
}

/// How to deal with fusion's thread on a device where fusion is in use.
#[derive(Clone, Copy)]
pub struct FusionQueue {
    /// Waits until fusion's thread has run what was in its queue.
    pub wait: fn(&CudaDevice),
    /// Has it run, besides, what it keeps for the calling thread.
    pub drain: fn(&CudaDevice),
}

struct Retired {
    block: Block,
    _charge: Charge,
}

static QUEUES: LazyLock<Mutex<HashMap<usize, Arc<RetireQueue>>>> = LazyLock::new(Mutex::default);

impl RetireQueue {
    /// The queue of a device.
    pub fn of(device: &CudaDevice, context: Arc<CudaContext>) -> Arc<Self> {
        let mut queues = lock(&QUEUES);
        let queue = queues.entry(device.index).or_insert_with(|| {
            let queue = Arc::new(Self {
                device: device.clone(),
                context,
                retired: Mutex::default(),
                wake: Condvar::new(),
                releasing: Mutex::default(),
                server: OnceLock::new(),
                fusion: OnceLock::new(),
                poison: std::env::var("BURN_OFFLOAD_POISON")
                    .ok()
                    .and_then(|byte| byte.parse().ok()),
            });
            let reaper = queue.clone();
            std::thread::Builder::new()
                .name(format!("burn-offload-reaper-{}", device.index))
                .spawn(move || reaper.run())
                .expect("the system starts a thread");
            queue
        });
        queue.clone()
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The device's primary context, the one CubeCL uses.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Says that fusion is in use on this device.
    #[cfg(feature = "fusion")]
    pub fn fusion_is_in_use(&self, fusion: FusionQueue) {
        self.fusion.get_or_init(|| fusion);
    }

    /// Takes a block whose owner is gone. Never blocks, and may be called on any thread.
    pub fn retire(&self, block: Block, charge: Charge) {
        lock(&self.retired).push(Retired {
            block,
            _charge: charge,
        });
        self.wake.notify_one();
    }

    /// Blocks until what can be freed is. Must not be called inside an operation.
    pub fn reclaim(&self) {
        // What this thread has given to fusion is run, and with it what drops tensors.
        if let Some(fusion) = self.fusion.get() {
            (fusion.drain)(&self.device);
        }
        self.release();
    }

    fn run(&self) {
        const SOON: Duration = Duration::from_millis(2);
        const LATEST: Duration = Duration::from_millis(100);
        let mut pause = SOON;
        loop {
            {
                let mut retired = lock(&self.retired);
                while retired.is_empty() {
                    retired = self
                        .wake
                        .wait(retired)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
            if self.release() {
                pause = SOON;
            } else {
                // All that is left is still held: by a view, or in fusion's queue.
                self.drain_ended_threads();
                std::thread::sleep(pause);
                pause = (pause * 2).min(LATEST);
            }
        }
    }

    /// Frees the blocks that no handle is left on. Tells whether there were any.
    fn release(&self) -> bool {
        let _releasing = lock(&self.releasing);
        let unheld: Vec<Retired> = {
            let mut retired = lock(&self.retired);
            retired.extract_if(.., |r| !r.block.has_aliases()).collect()
        };
        if unheld.is_empty() {
            return false;
        }
        if let Err(err) = self.finish() {
            // Who knows what still reads it: it is kept, and counts, until the device says more.
            tracing::error!("host memory cannot be given back, the device does not answer: {err}");
            lock(&self.retired).extend(unheld);
            return false;
        }
        for Retired { mut block, _charge } in unheld {
            if let Some(byte) = self.poison {
                // SAFETY: steps 1 to 5 of the module's text.
                unsafe { block.poison(byte) };
            }
            // SAFETY: steps 1 to 5 of the module's text.
            unsafe { block.free() };
        }
        true
    }

    /// Waits until the block may be written over: no tensor over it is left, `forget` says that no copy of
    /// it is, and all work that read it has finished. `false` where a tensor or a copy is still held. The
    /// caller has the block to itself, and is not inside an operation.
    pub fn unread(&self, block: &Block, forget: impl Fn() -> bool) -> bool {
        let look = || !block.has_aliases() && forget();
        if !look() {
            // Fusion may keep them queued, and CubeCL let go of them late.
            if let Some(fusion) = self.fusion.get() {
                (fusion.drain)(&self.device);
            }
            if let Err(err) = self.finish() {
                tracing::error!("host memory cannot be written, the device does not answer: {err}");
                return false;
            }
            if !look() {
                return false;
            }
        }
        match self.finish() {
            Ok(()) => true,
            Err(err) => {
                tracing::error!("host memory cannot be written, the device does not answer: {err}");
                false
            }
        }
    }

    /// Steps 2 to 5 of the module's text.
    fn finish(&self) -> Result<(), String> {
        quiesce();
        let finished = std::panic::catch_unwind(AssertUnwindSafe(|| {
            self.wait_for_fusion();
            self.finish_queued_work()
        }));
        finished.unwrap_or_else(|_| Err("fusion's queue panicked".into()))
    }

    /// Has fusion run what threads that have ended left with it. What live threads have queued is left
    /// alone, so that it is fused as it would be.
    fn drain_ended_threads(&self) {
        let Some(fusion) = self.fusion.get() else {
            return;
        };
        for stream in take_ended_streams() {
            let drained = std::panic::catch_unwind(AssertUnwindSafe(|| {
                stream.executes(|| (fusion.drain)(&self.device));
            }));
            if drained.is_err() {
                tracing::error!("what a thread that has ended left with fusion could not be run");
            }
        }
    }

    fn wait_for_fusion(&self) {
        if let Some(fusion) = self.fusion.get() {
            (fusion.wait)(&self.device);
        }
    }

    fn finish_queued_work(&self) -> Result<(), String> {
        let server = self
            .server
            .get_or_init(|| DeviceHandle::new(self.device.to_id()));
        finish_queued_work(server, &self.context)
    }
}
