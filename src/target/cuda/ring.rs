//! The staging memory: weights on their way through the device.
//!
//! A fixed piece of device memory is shared out to copies of host buffers ([`Room`]). A copy is made by
//! the copy engine on a stream of its own, when an operation needs it or, better, before: the order in
//! which buffers are used is learned ([`Schedule`]), and the next ones are copied while this one's
//! operation and those of resident layers run.
//!
//! CubeCL orders streams by what it knows, which is not enough here (`design.md`, "Streams"), so every
//! order is made by an explicit [`fence`]:
//! - a copy waits for all work that was queued on any stream before it, since some of that may read
//!   what the copy overwrites;
//! - a copy waits for those that were evicted before anything had waited for them;
//! - every stream waits for a copy before the first operation that may read it. A stream that is new
//!   waits for all copies there are before its first operation.
//!
//! And the bytes of a copy are written over only when
//! 1. no handle on its anchor is left, so that nothing can begin to read it;
//! 2. every operation that was under way on another thread at that moment has ended, and fusion's
//!    thread has run what was in its queue, so that what they made of a handle is in CubeCL's queue,
//!    which the new copy enters after them.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use burn_backend::StreamId;
use cubecl::{
    cuda::CudaDevice,
    device::Device,
    server::{ComputeServer, CopyDescriptor, Handle},
};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cudarc::driver::{CudaContext, result, sys};

use crate::{
    access::{LinkSpeed, Reading, Room, Schedule},
    error::OffloadError,
    host::{
        BufferId, HostBuffer, MemoryKind, StagingOptions, Stats, UnderWay, WeakHostBuffer,
        known_streams, watch_streams,
    },
    policy::AccessMode,
};

use super::{
    Server, alias::Anchor, device::finish_queued_work, lock, memory::ProbeMemory,
    retire::FusionQueue, tensor::borrowed_bytes,
};

/// How many copies may be under way ahead of their use.
const MOST_AHEAD: usize = 8;

/// Streams for copies. Two copies of one stream are only told apart by the later one's end, so there
/// are twice as many as can be ahead.
const COPY_STREAMS: u64 = 2 * MOST_AHEAD as u64;

/// How much is copied to measure the link.
pub const PROBE_BYTES: usize = 64 << 20;

/// The staging memory of one device.
pub struct Ring {
    device: CudaDevice,
    context: Arc<CudaContext>,
    server: OnceLock<DeviceHandle<Server>>,
    state: Mutex<State>,
    fusion: OnceLock<FusionQueue>,
    /// Set when something queued here did not work.
    failed: Arc<AtomicBool>,
    in_place: AtomicU64,
}

struct State {
    options: StagingOptions,
    /// The largest buffers there ever were, in falling order: what the ring has room for by default.
    largest: [u64; 4],
    memory: Option<DeviceMemory>,
    /// The size that was last asked for, whether or not the device gave it.
    asked: Option<u64>,
    room: Room<BufferId>,
    copies: HashMap<BufferId, Staged>,
    /// Anchors that no copy has now.
    anchors: Vec<Anchor>,
    schedule: Schedule<BufferId>,
    known: HashMap<BufferId, WeakHostBuffer>,
    streams: Vec<StreamId>,
    /// Streams of copies that are gone although nothing waited for them: what is copied to where they
    /// were waits for them.
    unfenced: Vec<StreamId>,
    next_copy: u64,
    clock: u64,
    link: Option<LinkSpeed>,
    stats: Stats,
}

/// A copy of a host buffer.
struct Staged {
    anchor: Anchor,
    offset: u64,
    len: u64,
    /// The stream it is copied on.
    stream: StreamId,
    /// Whether all streams were made to wait for it.
    fenced: bool,
    used: bool,
    last_use: u64,
    /// The operations that may still be turning its last handle into work.
    under_way: Option<UnderWay>,
}

/// Device memory of our own.
struct DeviceMemory {
    address: u64,
}

static RINGS: LazyLock<Mutex<HashMap<usize, Arc<Ring>>>> = LazyLock::new(Mutex::default);

impl Ring {
    /// The ring of a device.
    pub fn of(device: &CudaDevice, context: Arc<CudaContext>) -> Arc<Self> {
        let mut rings = lock(&RINGS);
        if let Some(ring) = rings.get(&device.index) {
            return ring.clone();
        }
        let ring = Arc::new(Self {
            device: device.clone(),
            context,
            server: OnceLock::new(),
            state: Mutex::new(State {
                options: StagingOptions::default(),
                largest: [0; 4],
                memory: None,
                asked: None,
                room: Room::new(0),
                copies: HashMap::new(),
                anchors: Vec::new(),
                schedule: Schedule::default(),
                known: HashMap::new(),
                streams: Vec::new(),
                unfenced: Vec::new(),
                next_copy: 0,
                clock: 0,
                link: None,
                stats: Stats::default(),
            }),
            fusion: OnceLock::new(),
            failed: Arc::default(),
            in_place: AtomicU64::new(0),
        });
        rings.insert(device.index, ring.clone());
        drop(rings);
        let watching = Arc::downgrade(&ring);
        watch_streams(move |stream| {
            if let Some(ring) = watching.upgrade() {
                ring.welcome(stream);
            }
        });
        for stream in known_streams() {
            ring.welcome(stream);
        }
        ring
    }

    /// The ring of a device, if that has one.
    pub fn get(device: &CudaDevice) -> Option<Arc<Self>> {
        lock(&RINGS).get(&device.index).cloned()
    }

    /// Sets what the ring may take, and whether it runs ahead.
    pub fn configure(&self, options: StagingOptions) {
        lock(&self.state).options = options;
    }

    /// Says that fusion is in use on this device.
    #[cfg(feature = "fusion")]
    pub fn fusion_is_in_use(&self, fusion: FusionQueue) {
        self.fusion.get_or_init(|| fusion);
    }

    /// Notes that a buffer of so many bytes exists.
    pub fn expect(&self, bytes: u64) {
        let mut state = lock(&self.state);
        let smaller = state.largest.partition_point(|known| *known >= bytes);
        if let Some(from) = state.largest.get_mut(smaller..)
            && !from.is_empty()
        {
            from.rotate_right(1);
            from[0] = bytes;
        }
    }

    /// Whether one operation is to read the buffer in place.
    pub fn reads_in_place(&self, buffer: &HostBuffer, reading: Reading) -> bool {
        let state = lock(&self.state);
        let bytes = buffer.as_ref().len() as u64;
        let in_place = match state.options.access {
            AccessMode::InPlace => true,
            AccessMode::Staged => false,
            // A copy that is there costs nothing.
            AccessMode::Auto if state.copies.contains_key(&buffer.id()) => false,
            AccessMode::Auto => {
                let link = state.link.unwrap_or_default();
                link.favours_in_place(bytes, reading)
            }
        };
        self.in_place
            .fetch_add(u64::from(in_place), Ordering::Relaxed);
        in_place
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        let state = lock(&self.state);
        Stats {
            in_place: self.in_place.load(Ordering::Relaxed),
            ring_bytes: state.room.capacity(),
            link_bytes_per_second: state.link.map(|link| link.copy as u64),
            ..state.stats.clone()
        }
    }

    /// An error when something that was queued for staging failed: results since then may be wrong.
    pub fn check(&self) -> Result<(), OffloadError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(OffloadError::Read {
                reason: "a weight could not be copied to the device; results since are wrong"
                    .into(),
            });
        }
        Ok(())
    }

    /// A handle on a copy of the buffer, for one operation of this thread. `None` where there is no
    /// room for one.
    pub fn stage(&self, buffer: &HostBuffer) -> Option<Handle> {
        let now = StreamId::current();
        if self.failed.load(Ordering::Acquire) {
            return None;
        }
        // What fusion has been given but not looked at yet holds copies that it may have done with.
        if let Some(fusion) = self.fusion.get() {
            (fusion.wait)(&self.device);
        }
        let mut state = lock(&self.state);
        let id = buffer.id();
        state.schedule.used(now.value, id);
        if !state.known.contains_key(&id) {
            state.remember(buffer);
        }
        if state.copies.contains_key(&id) {
            let ahead = state.copies.get(&id).is_some_and(|copy| !copy.used);
            state.stats.hits += u64::from(ahead);
            state.stats.reused += u64::from(!ahead);
        } else {
            self.prepare(&mut state, buffer);
            if !self.copy_in(&mut state, buffer, &[]) {
                // What fusion keeps queued holds copies; once it is launched they are free. But to have it
                // launched now would fuse it otherwise than without offloading, and round otherwise. So
                // that is done only where the buffer cannot be read in place.
                let in_place = matches!(buffer.kind(), MemoryKind::Mapped | MemoryKind::MappedFile);
                let fusion = self.fusion.get().filter(|_| !in_place);
                let drained = fusion.is_some_and(|fusion| {
                    (fusion.drain)(&self.device);
                    self.copy_in(&mut state, buffer, &[])
                });
                if !drained {
                    state.stats.no_room += 1;
                    return None;
                }
            }
            state.stats.misses += 1;
        }
        state.clock += 1;
        let clock = state.clock;
        let base = state.memory.as_ref()?.address;
        let streams = state.streams.clone();
        let copy = state.copies.get_mut(&id)?;
        let handle = copy.anchor.alias(base + copy.offset, copy.len)?;
        copy.used = true;
        copy.last_use = clock;
        copy.under_way = None;
        if !copy.fenced {
            copy.fenced = true;
            let from = copy.stream;
            self.submit(move |server| streams.iter().try_for_each(|to| fence(server, from, *to)));
        }
        self.run_ahead(&mut state, now);
        drop(state);
        self.server().flush_queue();
        Some(handle)
    }

    /// Copies ahead what is believed to be used next on this thread, as far as there is room. Called
    /// where a model's step ends too, when the device has let go of more.
    pub fn pump(&self) {
        let mut state = lock(&self.state);
        if !state.copies.is_empty() && self.run_ahead(&mut state, StreamId::current()) {
            drop(state);
            self.server().flush_queue();
        }
    }

    fn run_ahead(&self, state: &mut State, now: StreamId) -> bool {
        if !state.options.prefetch {
            return false;
        }
        let upcoming = state.schedule.upcoming(now.value, MOST_AHEAD);
        let mut copied = false;
        for (at, id) in upcoming.iter().enumerate() {
            if state.copies.contains_key(id) {
                continue;
            }
            let buffer = state.known.get(id).and_then(WeakHostBuffer::upgrade);
            // Beyond what is gone, or what there is no room for yet, it would come too early.
            let Some(buffer) = buffer else { break };
            if !self.copy_in(state, &buffer, &upcoming[..at]) {
                break;
            }
            copied = true;
            state.stats.prefetched += 1;
        }
        copied
    }

    /// Copies a buffer into the ring. What is in `sooner`, which is used before it, stays. `false` where
    /// there is no room.
    fn copy_in(&self, state: &mut State, buffer: &HostBuffer, sooner: &[BufferId]) -> bool {
        let Some(memory) = &state.memory else {
            return false;
        };
        let base = memory.address;
        let len = buffer.as_ref().len() as u64;
        for copy in state.copies.values_mut() {
            copy.look();
        }
        let State { room, copies, .. } = state;
        let vacancy = room.find(len, |id| {
            let copy = copies.get(id)?;
            (copy.is_idle() && !sooner.contains(id)).then_some(if copy.used {
                copy.last_use
            } else {
                // Copied for nothing as yet; an operation's need comes before it.
                u64::MAX
            })
        });
        let Some(vacancy) = vacancy else { return false };
        let anchor = state.anchors.pop().or_else(|| Anchor::new(&self.device));
        let Some(anchor) = anchor else { return false };
        let offset = vacancy.offset;
        let Some(handle) = anchor.alias(base + offset, len) else {
            state.anchors.push(anchor);
            return false;
        };
        let mut read_before = false;
        for id in &vacancy.evicted {
            if let Some(gone) = state.copies.remove(id) {
                read_before |= gone.used;
                state.stats.wasted += u64::from(!gone.used);
                state.anchors.push(gone.anchor);
                if !gone.fenced {
                    state.unfenced.push(gone.stream);
                }
            }
        }
        state.room.take(&vacancy, len, buffer.id());
        if read_before && let Some(fusion) = self.fusion.get() {
            (fusion.wait)(&self.device);
        }
        let stream = copy_stream(state.next_copy);
        state.next_copy += 1;
        state.clock += 1;
        state.stats.staged += 1;
        state.stats.staged_bytes += len;
        state.copies.insert(
            buffer.id(),
            Staged {
                anchor,
                offset,
                len,
                stream,
                fenced: false,
                used: false,
                last_use: state.clock,
                under_way: None,
            },
        );
        let mut streams = state.streams.clone();
        streams.append(&mut state.unfenced);
        let buffer = buffer.clone();
        self.submit(move |server| {
            for from in streams {
                fence(server, from, stream)?;
            }
            let shape = [len as usize].into();
            let copy = CopyDescriptor::new(handle.binding(), shape, [1].into(), 1);
            // SAFETY: `buffer` lives until after `write`, which hands the bytes to the driver. Of
            // pageable memory the driver has its own copy when it returns; pinned memory that is let
            // go while the copy engine reads it is retired, and given back only when the context has
            // finished its work.
            let bytes = unsafe { borrowed_bytes(buffer.as_ref()) };
            server.write(vec![(copy, bytes)], stream);
            // Says whether the copy was queued, and has CubeCL forget the bytes of the one before.
            server.flush(stream).map_err(|err| err.to_string())
        });
        true
    }

    /// Notes a buffer that may be copied ahead.
    pub fn remember(&self, buffer: &HostBuffer) {
        lock(&self.state).remember(buffer);
    }

    /// Has no copy of a buffer be used or begun any more. `false` where an operation has or may have one.
    /// Copies under way still read the buffer.
    pub fn forget(&self, id: BufferId) -> bool {
        let mut state = lock(&self.state);
        state.known.remove(&id);
        let Some(copy) = state.copies.get_mut(&id) else {
            return true;
        };
        copy.look();
        if !copy.is_idle() {
            return false;
        }
        state.room.leave(&id);
        if let Some(copy) = state.copies.remove(&id) {
            state.stats.wasted += u64::from(!copy.used);
            state.anchors.push(copy.anchor);
            if !copy.fenced {
                state.unfenced.push(copy.stream);
            }
        }
        true
    }

    /// Sees to it that there is memory, of the right size.
    fn prepare(&self, state: &mut State, buffer: &HostBuffer) {
        let wanted = state.wanted(self.fusion.get().is_some());
        let least = Room::<BufferId>::rounded(buffer.as_ref().len() as u64);
        if state.asked == Some(wanted) {
            return;
        }
        for copy in state.copies.values_mut() {
            copy.look();
        }
        if !state.copies.values().all(Staged::is_idle) {
            // The next miss asks again.
            return;
        }
        state.asked = Some(wanted);
        if state.memory.is_some() {
            if let Err(err) = self.finish() {
                tracing::error!("staging memory cannot be given back: {err}");
                return;
            }
            let copies: Vec<Staged> = state.copies.drain().map(|(_, copy)| copy).collect();
            state
                .anchors
                .extend(copies.into_iter().map(|copy| copy.anchor));
            state.room = Room::new(0);
            if let Some(memory) = state.memory.take() {
                memory.free();
            }
        }
        if let Err(err) = self.context.bind_to_thread() {
            tracing::error!("no staging memory: {err}");
            return;
        }
        let mut bytes = wanted;
        while bytes >= least {
            match DeviceMemory::new(bytes) {
                Ok(memory) => {
                    if state.link.is_none() {
                        state.link = memory.measure(bytes, buffer.as_ref());
                    }
                    state.memory = Some(memory);
                    state.room = Room::new(bytes);
                    tracing::debug!(bytes, "staging memory taken");
                    return;
                }
                Err(err) => {
                    tracing::warn!(
                        bytes,
                        "the device has no room for this staging memory: {err}"
                    );
                    bytes /= 2;
                }
            }
        }
    }

    /// The copy engine's speed; measured, with `source`, where it is not known yet.
    pub fn link_speed(&self, source: impl FnOnce() -> Option<ProbeMemory>) -> Option<LinkSpeed> {
        if let Some(link) = lock(&self.state).link {
            return Some(link);
        }
        self.context.bind_to_thread().ok()?;
        let source = source()?;
        let memory = DeviceMemory::new(PROBE_BYTES as u64).ok()?;
        let link = memory.measure(PROBE_BYTES as u64, source.bytes());
        memory.free();
        lock(&self.state).link = link;
        link
    }

    /// Waits until nothing that was queued can read the ring's memory.
    fn finish(&self) -> Result<(), String> {
        if let Some(fusion) = self.fusion.get() {
            (fusion.wait)(&self.device);
        }
        finish_queued_work(self.server(), &self.context)
    }

    /// Has a new stream wait for all copies there are.
    fn welcome(&self, stream: StreamId) {
        let mut state = lock(&self.state);
        // Streams of one index are one stream to CUDA.
        let most = u64::from(CubeClRuntimeConfig::get().streaming.max_streams.max(1));
        let same = |s: &StreamId| s.value % most == stream.value % most;
        if state.streams.iter().any(same) {
            return;
        }
        state.streams.push(stream);
        let copies: Vec<StreamId> = state.copies.values().map(|copy| copy.stream).collect();
        if !copies.is_empty() {
            self.submit(move |server| {
                copies
                    .iter()
                    .try_for_each(|from| fence(server, *from, stream))
            });
        }
    }

    fn server(&self) -> &DeviceHandle<Server> {
        self.server
            .get_or_init(|| DeviceHandle::new(self.device.to_id()))
    }

    /// Queues work behind all that is queued. Where it fails, or panics, the ring has failed.
    fn submit(&self, task: impl FnOnce(&mut Server) -> Result<(), String> + Send + 'static) {
        struct Failed(Arc<AtomicBool>, bool);
        impl Drop for Failed {
            fn drop(&mut self) {
                if self.1 {
                    self.0.store(true, Ordering::Release);
                }
            }
        }
        let failed = self.failed.clone();
        self.server().submit(move |server| {
            let mut failed = Failed(failed, true);
            match task(server) {
                Ok(()) => failed.1 = false,
                Err(err) => tracing::error!("staging failed on the device: {err}"),
            }
        });
    }
}

impl State {
    /// The bytes the ring should have. Fusion keeps operations queued, and with them their operands.
    fn wanted(&self, fusion: bool) -> u64 {
        let most = if fusion { 4 } else { 2 };
        let largest = self.largest.iter().take(most).filter(|bytes| **bytes > 0);
        let room = largest.map(|bytes| Room::<BufferId>::rounded(*bytes)).sum();
        self.options.budget.unwrap_or(room)
    }

    fn remember(&mut self, buffer: &HostBuffer) {
        // Buffers come and go; their traces are cleared when most are gone.
        if self.known.len() >= 64 && self.known.len().is_power_of_two() {
            self.known.retain(|_, buffer| buffer.is_alive());
            let Self {
                known, schedule, ..
            } = self;
            schedule.retain(|id| known.contains_key(id));
        }
        self.known.insert(buffer.id(), buffer.downgrade());
    }
}

impl Staged {
    /// Looks whether anyone still has a handle.
    fn look(&mut self) {
        if self.anchor.has_aliases() {
            self.under_way = None;
        } else if self.under_way.is_none() {
            self.under_way = Some(UnderWay::now());
        }
    }

    /// Whether nothing can begin to read it any more. What has begun is in CubeCL's queue.
    fn is_idle(&self) -> bool {
        !self.anchor.has_aliases() && self.under_way.as_ref().is_some_and(UnderWay::ended)
    }
}

impl DeviceMemory {
    /// Takes memory on the device whose context is current.
    fn new(bytes: u64) -> Result<Self, cudarc::driver::DriverError> {
        // SAFETY: a context is current on this thread; the memory is not read before it is written.
        let address = unsafe { result::malloc_sync(bytes as usize)? };
        Ok(Self { address })
    }

    fn free(self) {
        // SAFETY: it came from `malloc_sync`, is freed once, and the caller has waited for all work.
        if let Err(err) = unsafe { result::free_sync(self.address) } {
            tracing::error!("the driver did not take back staging memory: {err}");
        }
    }

    /// The copy engine's speed from these bytes, if that can be told.
    fn measure(&self, capacity: u64, source: &[u8]) -> Option<LinkSpeed> {
        let len = source.len().min(PROBE_BYTES).min(capacity as usize);
        if len < 1 << 20 {
            return None;
        }
        let copy = || -> Result<f32, cudarc::driver::DriverError> {
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            let (start, end) = (result::event::create(flags)?, result::event::create(flags)?);
            let mut best = f32::MAX;
            for _ in 0..3 {
                // SAFETY: stream and events are live; the memory has at least `len` bytes that
                // nobody reads yet, and `source` outlives the wait for the end.
                unsafe {
                    result::event::record(start, stream)?;
                    result::memcpy_htod_async(self.address, &source[..len], stream)?;
                    result::event::record(end, stream)?;
                    result::event::synchronize(end)?;
                    best = best.min(result::event::elapsed(start, end)?);
                }
            }
            // SAFETY: they are live, and all work on them has ended.
            unsafe {
                result::event::destroy(start)?;
                result::event::destroy(end)?;
                result::stream::destroy(stream)?;
            }
            Ok(best)
        };
        match copy() {
            Ok(milliseconds) if milliseconds > 0.0 => Some(LinkSpeed {
                copy: len as f64 / (f64::from(milliseconds) / 1e3),
            }),
            Ok(_) => None,
            Err(err) => {
                tracing::warn!("the link's speed could not be measured: {err}");
                None
            }
        }
    }
}

/// The stream ids of copies, as far as can be from those of threads, which count from zero.
fn copy_stream(copy: u64) -> StreamId {
    let most = u64::from(CubeClRuntimeConfig::get().streaming.max_streams.max(1));
    let last = (u64::MAX / most) * most - 1;
    StreamId {
        value: last - copy % COPY_STREAMS.min(most),
    }
}

/// Orders stream `to` after everything that is queued on `from`: of a fresh token that is bound on
/// `from` and looked up on `to` CubeCL does know that it has to wait.
fn fence(server: &mut Server, from: StreamId, to: StreamId) -> Result<(), String> {
    const TOKEN_BYTES: u64 = 512;
    let token = Handle::new(from, TOKEN_BYTES);
    server.initialize_memory(token.memory.clone(), TOKEN_BYTES, from);
    match server.get_resource(token.binding(), to) {
        Ok(_) => Ok(()),
        Err(err) => Err(err.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_may_be_ahead_have_streams_of_their_own() {
        let most = u64::from(CubeClRuntimeConfig::get().streaming.max_streams);
        let mut indices: Vec<u64> = (0..COPY_STREAMS)
            .map(|copy| copy_stream(copy).value % most)
            .collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len() as u64, COPY_STREAMS);
        assert!(indices.iter().all(|index| *index >= most - COPY_STREAMS));
    }
}
