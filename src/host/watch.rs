//! Whether anything watches operations: one word, which each operation looks at first. While it is zero an
//! operation is the wrapped backend's own and no more.

use std::sync::atomic::{AtomicUsize, Ordering};

static WATCH: AtomicUsize = AtomicUsize::new(0);

/// Who watches.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Watcher {
    /// A device whose memory is given back or used again only when no operation can be reading it. Never
    /// taken back.
    Operations = 1,
    /// A device whose policy offloads every tensor, whatever made it.
    Everything = 2,
    /// A device that takes large tensors made outside a parameter scope for parameters.
    Unscoped = 4,
}

/// Open parameter scopes, on all threads, are counted from here up.
const SCOPE: usize = 8;

/// Whether nobody watches.
#[inline]
pub fn is_quiet() -> bool {
    WATCH.load(Ordering::Relaxed) == 0
}

/// Whether one watches.
#[inline]
pub fn watches(watcher: Watcher) -> bool {
    WATCH.load(Ordering::Relaxed) & watcher as usize != 0
}

/// Has one watch, or not any more.
pub fn set(watcher: Watcher, watches: bool) {
    if watches {
        WATCH.fetch_or(watcher as usize, Ordering::SeqCst);
    } else {
        WATCH.fetch_and(!(watcher as usize), Ordering::SeqCst);
    }
}

/// Whether a parameter scope is open on any thread.
#[inline]
pub fn has_scopes() -> bool {
    WATCH.load(Ordering::Relaxed) >= SCOPE
}

/// Counts a parameter scope. A thread that is in one has counted it itself.
pub fn open_scope() {
    WATCH.fetch_add(SCOPE, Ordering::Relaxed);
}

/// Counts a parameter scope no more.
pub fn close_scope() {
    WATCH.fetch_sub(SCOPE, Ordering::Relaxed);
}
