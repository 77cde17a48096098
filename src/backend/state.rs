use std::{
    any::TypeId,
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use burn_backend::{Device, DeviceId};

use crate::{
    host::{
        HostAllocator, Ledger,
        watch::{self, Watcher},
    },
    policy::{Budget, OffloadPolicy},
    target::HostAccess,
};

/// A device that was configured: its policy, its books and its host memory.
///
/// Keyed as Burn keys its own device settings, by the device and its type, so that every backend
/// over one device (with and without fusion, with and without autodiff) shares one account.
pub struct DeviceState {
    /// The device, as Burn prints it.
    pub device: String,
    /// The account of the device's parameters.
    pub ledger: Arc<Ledger>,
    config: RwLock<Config>,
    /// An allocator of every kind the device ever had: memory of an earlier one may be on its way back.
    allocators: Mutex<Vec<Arc<dyn HostAllocator>>>,
    /// Bytes that were made on the device and moved to the host since its memory was cleaned up.
    moved: AtomicU64,
    /// Bytes of resident parameters that were uploaded since the backend let go of its host copies.
    uploaded: AtomicU64,
}

/// How much host memory the backend's copies of resident parameters may take.
const MOST_UPLOADED: u64 = 16 << 20;

/// How much device memory parameters that have moved away may leave behind.
const MOST_LEFT_BEHIND: u64 = 256 << 20;

#[derive(Clone)]
struct Config {
    policy: Arc<OffloadPolicy>,
    host: HostAccess,
}

type Key = (TypeId, DeviceId);

static DEVICES: LazyLock<RwLock<HashMap<Key, Arc<DeviceState>>>> = LazyLock::new(RwLock::default);

/// Whether any device was ever configured.
static CONFIGURED: AtomicBool = AtomicBool::new(false);

impl DeviceState {
    /// The state of a configured device.
    pub fn get<D: Device>(device: &D) -> Option<Arc<Self>> {
        let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
        devices.get(&Self::key(device)).cloned()
    }

    /// Sets a device's policy and host memory; what is already placed stays where it is.
    pub fn configure<D: Device + std::fmt::Debug>(
        device: &D,
        policy: OffloadPolicy,
        host: HostAccess,
    ) {
        let allocator = host.allocator.clone();
        let config = Config {
            policy: Arc::new(policy),
            host,
        };
        let mut devices = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
        let state = match devices.get(&Self::key(device)) {
            Some(state) => {
                *state.write() = config;
                state.clone()
            }
            None => {
                let state = Arc::new(Self {
                    device: format!("{device:?}"),
                    ledger: Arc::default(),
                    config: RwLock::new(config),
                    allocators: Mutex::default(),
                    moved: AtomicU64::new(0),
                    uploaded: AtomicU64::new(0),
                });
                devices.insert(Self::key(device), state.clone());
                state
            }
        };
        {
            // Those of one kind give back from the same queue.
            let mut allocators = state.lock_allocators();
            allocators.retain(|known| known.kind() != allocator.kind());
            allocators.push(allocator);
        }
        let everything = devices.values().any(|s| s.offloads_everything());
        watch::set(Watcher::Everything, everything);
        let unscoped = devices.values().any(|s| s.unscoped_threshold().is_some());
        watch::set(Watcher::Unscoped, unscoped);
        CONFIGURED.store(true, Ordering::SeqCst);
    }

    /// Whether any device is configured.
    #[inline]
    pub fn any() -> bool {
        CONFIGURED.load(Ordering::Relaxed)
    }

    /// Whether any device's policy offloads every tensor, whatever made it.
    #[inline]
    pub fn any_offloads_everything() -> bool {
        watch::watches(Watcher::Everything)
    }

    /// Whether this device's policy offloads every tensor, whatever made it.
    pub fn offloads_everything(&self) -> bool {
        self.policy().budget == Budget::Everything
    }

    /// Whether any device takes large tensors made outside a parameter scope for parameters.
    #[inline]
    pub fn any_takes_unscoped() -> bool {
        watch::watches(Watcher::Unscoped)
    }

    /// Whether so large a tensor of this device is a parameter although made outside a parameter scope.
    pub fn takes_unscoped(&self, bytes: u64) -> bool {
        self.unscoped_threshold()
            .is_some_and(|least| bytes >= least)
    }

    fn unscoped_threshold(&self) -> Option<u64> {
        self.policy().unscoped_threshold.map(|size| size.as_u64())
    }

    /// Notes that so many bytes were made on the device and moved to the host. Tells whether it is
    /// time to clean up the device's memory.
    pub fn has_moved(&self, bytes: u64) -> bool {
        due(&self.moved, bytes, MOST_LEFT_BEHIND)
    }

    /// Notes that so many bytes of a resident parameter were uploaded. Tells whether it is time for
    /// the backend to let go of its host copies.
    pub fn has_uploaded(&self, bytes: u64) -> bool {
        due(&self.uploaded, bytes, MOST_UPLOADED)
    }

    /// Blocks until host memory that nobody holds is given back, as far as queued work allows.
    pub fn reclaim(&self) {
        let allocators = self.lock_allocators().clone();
        for allocator in allocators {
            allocator.reclaim();
        }
    }

    fn lock_allocators(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn HostAllocator>>> {
        self.allocators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy now in force.
    pub fn policy(&self) -> Arc<OffloadPolicy> {
        self.read().policy
    }

    /// The host memory new parameters get.
    pub fn host(&self) -> HostAccess {
        self.read().host
    }

    fn key<D: Device>(device: &D) -> Key {
        (TypeId::of::<D>(), device.to_id())
    }

    fn read(&self) -> Config {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Config> {
        self.config.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to a count, and starts it anew where it reaches `most`. Tells whether it did.
fn due(count: &AtomicU64, bytes: u64, most: u64) -> bool {
    let due = bytes > 0 && count.fetch_add(bytes, Ordering::Relaxed) + bytes >= most;
    if due {
        count.store(0, Ordering::Relaxed);
    }
    due
}
