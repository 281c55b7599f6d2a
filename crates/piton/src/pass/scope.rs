//! Which run and which step the code on this thread belongs to, while it is being polled.
//!
//! A step's body is polled in place, inside the poll of its function, so plain scoping is enough: a value
//! is set for the length of one `poll` and put back. Code that the user spawns elsewhere is outside.

use std::cell::RefCell;
use std::sync::Arc;

use piton_core::StepName;

use super::Pass;

#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) pass: Arc<Pass>,
    pub(crate) step: Option<(StepName, u32)>,
}

thread_local! {
    static CURRENT: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Puts the former scope back when dropped.
pub(crate) struct Entered(Option<Scope>);

/// Enters a scope until the returned guard is dropped.
pub(crate) fn enter(scope: Scope) -> Entered {
    Entered(CURRENT.with(|current| current.replace(Some(scope))))
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.0.take()));
    }
}

/// The scope of the code that is running on this thread, if it belongs to a run.
pub(crate) fn current() -> Option<Scope> {
    // During the destruction of a thread there is none.
    CURRENT.try_with(|current| current.try_borrow().ok()?.clone()).ok().flatten()
}
