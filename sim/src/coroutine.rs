//! What blocks a thread in life suspends a coroutine here: its stack stays as it is until it is resumed.
//!
//! The idea: a coroutine that runs leaves the address of its way out in a thread-local cell, so that
//! [`pause`] can be called from any depth of code that knows nothing of coroutines.
//!
//! It never decides what runs next: that is the kernel's business.
//!
//! Invariant: the cell holds the way out of the coroutine that runs, or nothing.
#![allow(unsafe_code)]

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Most of it is never touched, so it is never there.
const STACK_BYTES: usize = 512 << 10;
/// Stacks kept for the next coroutine.
const STACKS_MAX: usize = 256;

type Ways = Yielder<(), ()>;

thread_local! {
    static WAY_OUT: Cell<*const Ways> = const { Cell::new(ptr::null()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Coroutine(corosensei::Coroutine<(), (), ()>);

/// How far a coroutine got.
pub(crate) enum Progress {
    /// It called [`pause`].
    Paused,
    /// It returned.
    Ended,
    /// It panicked with this.
    Panicked(Box<dyn Any + Send>),
}

impl Coroutine {
    pub(crate) fn new(run: Box<dyn FnOnce()>) -> Coroutine {
        let pooled = STACKS.with_borrow_mut(Vec::pop);
        let stack =
            pooled.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("address space for a stack"));
        Coroutine(corosensei::Coroutine::with_stack(stack, move |way_out, ()| {
            WAY_OUT.set(way_out);
            run();
        }))
    }

    /// Runs it until it pauses or ends.
    pub(crate) fn resume(&mut self) -> Progress {
        let result = catch_unwind(AssertUnwindSafe(|| self.0.resume(())));
        WAY_OUT.set(ptr::null());
        match result {
            Ok(CoroutineResult::Yield(())) => Progress::Paused,
            Ok(CoroutineResult::Return(())) => Progress::Ended,
            Err(payload) => Progress::Panicked(payload),
        }
    }

    /// Ends it: what lies on its stack is dropped, in order. It must not pause on the way.
    pub(crate) fn end(mut self) {
        self.0.force_unwind();
        WAY_OUT.set(ptr::null());
        let stack = self.0.into_stack();
        STACKS.with_borrow_mut(|stacks| {
            if stacks.len() < STACKS_MAX {
                stacks.push(stack);
            }
        });
    }
}

/// Whether a coroutine runs that may pause.
pub(crate) fn may_pause() -> bool {
    !WAY_OUT.get().is_null()
}

/// Suspends the coroutine that runs. Must be called inside one.
pub(crate) fn pause() {
    let way_out = WAY_OUT.get();
    assert!(!way_out.is_null(), "only a coroutine can pause");
    // SAFETY: `resume` nulls the cell when the coroutine that set it pauses or ends, and each sets it anew as
    // soon as it runs, so the yielder is that of the coroutine running now and lives on its stack.
    unsafe { (*way_out).suspend(()) };
    WAY_OUT.set(way_out);
}
