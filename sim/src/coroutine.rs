//! Coroutines, which take the place of threads: where real code would block its thread, the coroutine pauses and
//! keeps its stack until it is resumed.
//!
//! The idea: [`Coroutine::resume`] leaves the address of the running coroutine's `Yielder` in a thread-local cell.
//! [`pause`] can then be called from any depth of code that knows nothing of coroutines.
//!
//! The kernel decides which coroutine runs next, not this module.
//!
//! Invariant: the cell holds the yielder of the coroutine that runs, or null.
#![allow(unsafe_code)]

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Size of a stack in bytes. Most pages are never touched, so they take no memory.
const STACK_BYTES: usize = 512 << 10;
/// Number of unused stacks that are kept for the next coroutines.
const STACKS_MAX: usize = 256;

type Ways = Yielder<(), ()>;

thread_local! {
    static WAY_OUT: Cell<*const Ways> = const { Cell::new(ptr::null()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Coroutine(corosensei::Coroutine<(), (), ()>);

/// Outcome of running a coroutine.
pub(crate) enum Progress {
    /// It called [`pause`].
    Paused,
    /// It returned.
    Ended,
    /// It panicked with this payload.
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

    /// Runs the coroutine until it pauses or ends.
    pub(crate) fn resume(&mut self) -> Progress {
        let result = catch_unwind(AssertUnwindSafe(|| self.0.resume(())));
        WAY_OUT.set(ptr::null());
        match result {
            Ok(CoroutineResult::Yield(())) => Progress::Paused,
            Ok(CoroutineResult::Return(())) => Progress::Ended,
            Err(payload) => Progress::Panicked(payload),
        }
    }

    /// Ends the coroutine: unwinds its stack and drops its values in order. Their destructors must not pause.
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

/// Reports whether the caller runs inside a coroutine, so that [`pause`] may be called.
pub(crate) fn may_pause() -> bool {
    !WAY_OUT.get().is_null()
}

/// Suspends the running coroutine until it is resumed. Panics if no coroutine runs.
pub(crate) fn pause() {
    let way_out = WAY_OUT.get();
    assert!(!way_out.is_null(), "only a coroutine can pause");
    // SAFETY: `resume` nulls the cell when the coroutine that set it pauses or ends, and each coroutine sets it as
    // soon as it runs. So the yielder belongs to the coroutine that runs now and lives on its stack.
    unsafe { (*way_out).suspend(()) };
    WAY_OUT.set(way_out);
}
