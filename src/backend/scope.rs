//! The parameter scope: what is allocated inside Burn's `memory_persistent_allocations` is a
//! parameter, once it leaves the scope alive.

use std::{
    cell::RefCell,
    sync::{Arc, Weak},
};

use crate::{
    host::{Role, watch},
    policy::OffloadPolicy,
};

use super::slot::Placed;

/// What the parameters that are about to be allocated are called, and the policy that places them,
/// in place of the device's own.
#[derive(Clone)]
pub struct Directive {
    /// The parameter's path, if it is known.
    pub name: Option<String>,
    /// The policy.
    pub policy: Arc<OffloadPolicy>,
}

#[derive(Default)]
struct Scopes {
    /// For each open scope the tensors made in it, in order.
    born: Vec<Vec<Weak<dyn Placed>>>,
    directives: Vec<Directive>,
    /// What is made at this moment.
    role: Role,
}

thread_local! {
    static SCOPES: RefCell<Scopes> = RefCell::default();
}

/// Whether this thread is inside a parameter scope.
#[inline]
pub fn is_open() -> bool {
    watch::has_scopes() && is_open_here()
}

#[cold]
fn is_open_here() -> bool {
    SCOPES.with_borrow(|scopes| !scopes.born.is_empty())
}

/// Notes a tensor that was made in the innermost scope.
pub fn note(tensor: Weak<dyn Placed>) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(born) = scopes.born.last_mut() {
            born.push(tensor);
        }
    });
}

/// The directive in force.
pub fn directive() -> Option<Directive> {
    SCOPES.with_borrow(|scopes| scopes.directives.last().cloned())
}

/// What the tensors made in the innermost scope are for.
pub fn role() -> Role {
    SCOPES.with_borrow(|scopes| scopes.role)
}

/// Runs `task` in a scope for an optimizer's state.
pub fn run_for_state<T>(task: impl FnOnce() -> T) -> T {
    struct Back(Role);
    impl Drop for Back {
        fn drop(&mut self) {
            SCOPES.with_borrow_mut(|scopes| scopes.role = self.0);
        }
    }
    let state = Role::OptimizerState;
    let before = SCOPES.with_borrow_mut(|scopes| std::mem::replace(&mut scopes.role, state));
    let _back = Back(before);
    run(task).0
}

/// Runs `task` in a parameter scope, then settles the tensors that outlive it. Returns the bytes that
/// this moved from the device to the host. After a panic the scope is closed, and nothing is settled.
pub fn run<T>(task: impl FnOnce() -> T) -> (T, u64) {
    struct Close;
    impl Drop for Close {
        fn drop(&mut self) {
            SCOPES.with_borrow_mut(|scopes| scopes.born.pop());
            watch::close_scope();
        }
    }

    SCOPES.with_borrow_mut(|scopes| scopes.born.push(Vec::new()));
    watch::open_scope();
    let close = Close;
    let output = task();
    let born = SCOPES.with_borrow_mut(|scopes| scopes.born.last_mut().map(std::mem::take));
    drop(close);
    let outside = !is_open();
    let mut moved = 0;
    for tensor in born.into_iter().flatten() {
        match (tensor.upgrade(), outside) {
            (Some(tensor), true) => moved += tensor.settle(),
            // An inner scope's tensor may still be dropped by the outer one.
            (Some(_), false) => note(tensor),
            (None, _) => {}
        }
    }
    (output, moved)
}

/// Runs `task`, whose result takes the place of an offloaded parameter, so that it is placed as that is.
pub fn replacing<T>(directive: Option<Directive>, task: impl FnOnce() -> T) -> T {
    match directive {
        Some(directive) => with_directive(directive, || run(task).0),
        None => task(),
    }
}

/// Runs `task` with a directive for the parameters it allocates.
pub fn with_directive<T>(directive: Directive, task: impl FnOnce() -> T) -> T {
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            SCOPES.with_borrow_mut(|scopes| scopes.directives.pop());
        }
    }

    SCOPES.with_borrow_mut(|scopes| scopes.directives.push(directive));
    let _pop = Pop;
    task()
}
