//! Loads and stores that fault: told to the call whose they are.
//!
//! The idea: three kinds of faults are no mistake of this program's. A load of a byte of the window that lies
//! elsewhere: the bytes are asked for on the lane, mapped, and the load is done again. A load of memory that was taken
//! back or cut off: zeros are mapped, and the call counts for nothing. Anything else in a module's space: where it was
//! is noted, and Wasmtime, whose handler comes next, makes a trap of it. The handler runs on the lane's own thread, in
//! place of the instruction that faulted, which is the function's: nothing of this program is interrupted.
#![allow(unsafe_code)]

use crate::namespaces::ABORTED;
use crate::space::Space;
use farpool_wire::limits::FUNCTION_PIECE_BYTES;
use std::cell::Cell;
use std::io;
use std::ptr::{addr_of, addr_of_mut};

/// Bytes of the stack that the handler has: it asks on the lane, which takes buffers.
const STACK_BYTES: usize = 512 << 10;

/// A call that runs on this thread.
pub struct Running<'r> {
    /// Where.
    pub space: &'r Space,
    /// Whether a module runs: faults are traps. Otherwise they end the process.
    pub is_module: bool,
    /// Gets a piece from elsewhere to where `Space::map_supplied` finds it. Whether it was to be had.
    pub supply: &'r dyn Fn(u64) -> bool,
    /// What the handler has noted.
    pub noted: &'r Noted,
}

/// What faults have shown.
#[derive(Debug, Default)]
pub struct Noted {
    /// The last address, and whether it was a store.
    pub fault: Cell<Option<(usize, bool)>>,
    /// Memory of the window was not there.
    pub is_void: Cell<bool>,
    /// A piece that was not to be had.
    pub not_supplied: Cell<Option<u64>>,
}

thread_local! {
    /// A pointer to a `Running` of a frame further down this thread's stack, or null.
    static RUNNING: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// Runs something as this call.
pub fn during<T>(running: &Running<'_>, run: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            RUNNING.set(std::ptr::null());
        }
    }
    RUNNING.set(std::ptr::from_ref(running).cast());
    let _reset = Reset;
    run()
}

static mut NEXT_SEGV: libc::sigaction = EMPTY;
static mut NEXT_BUS: libc::sigaction = EMPTY;
// SAFETY: all-zero is a valid `sigaction`: the default.
const EMPTY: libc::sigaction = unsafe { std::mem::zeroed() };

/// Installs the handler, before that of Wasmtime, which must have been installed. Once, before there are lanes.
pub fn install() -> io::Result<()> {
    for (signal, next) in [(libc::SIGSEGV, addr_of_mut!(NEXT_SEGV)), (libc::SIGBUS, addr_of_mut!(NEXT_BUS))] {
        // SAFETY: `sigaction` is given a handler of the right type, and a place for the one before, which nobody reads
        // until this has returned: there are no lanes yet.
        let result = unsafe {
            let mut action = EMPTY;
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, next)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: as above; nobody asks for the one before.
    let result = unsafe {
        let mut action = EMPTY;
        action.sa_sigaction = end_aborted as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the process with the status that says it was aborted. The first process of a namespace is not ended by a signal
/// that it sends itself.
extern "C" fn end_aborted(_signal: libc::c_int) {
    // SAFETY: it ends the process, and may be called in a handler.
    unsafe { libc::_exit(ABORTED) }
}

/// A stack of this thread's for the handler, until it is dropped, on this thread.
pub struct HandlerStack(*mut [u8]);

impl HandlerStack {
    /// Takes the place of what Wasmtime would make, which is too small.
    pub fn new() -> io::Result<HandlerStack> {
        let memory = Box::into_raw(vec![0u8; STACK_BYTES].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: memory.cast(), ss_flags: 0, ss_size: STACK_BYTES };
        // SAFETY: the stack is memory that lives until `drop`, which takes it back first, and that nobody else uses.
        match unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) } {
            0 => Ok(HandlerStack(memory)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for HandlerStack {
    fn drop(&mut self) {
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: no handler runs while this thread is here; once the kernel has forgotten the stack, nobody knows the
        // memory, which `new` took out of a box.
        unsafe {
            if libc::sigaltstack(&none, std::ptr::null_mut()) == 0 {
                drop(Box::from_raw(self.0));
            }
        }
    }
}

/// Whether the instruction stored.
#[cfg(target_arch = "x86_64")]
fn is_store(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel passes a `ucontext_t` to a handler installed with `SA_SIGINFO`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// Whether the instruction stored: not told here.
#[cfg(not(target_arch = "x86_64"))]
fn is_store(_context: *mut libc::c_void) -> bool {
    false
}

/// Answers a fault. Whether the instruction is to be done again.
fn answer(running: &Running<'_>, signal: libc::c_int, address: usize, is_store: bool) -> bool {
    let Running { space, is_module, supply, noted } = *running;
    noted.fault.set(Some((address, is_store)));
    let Some(byte) = space.window_byte(address) else { return false };
    if signal == libc::SIGBUS {
        noted.is_void.set(true);
        return space.map_zeros(byte).is_ok();
    }
    if is_store || space.is_here(byte) {
        return false;
    }
    let first = byte - byte % FUNCTION_PIECE_BYTES as u64;
    if noted.not_supplied.get().is_none() && supply(first) {
        return space.map_supplied(first).is_ok();
    }
    noted.not_supplied.set(noted.not_supplied.get().or(Some(first)));
    // A module traps. Anything else goes on with zeros, to an end that counts for nothing.
    !is_module && space.map_zeros(byte).is_ok()
}

unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let running: *const Running<'_> = RUNNING.get().cast();
    // SAFETY: the kernel passes a `siginfo_t` of a fault, which has an address. `RUNNING` is null, or points to what
    // `during` was given further down this very stack, which has not returned.
    let again = unsafe {
        let address = (*info).si_addr() as usize;
        !running.is_null() && answer(&*running, signal, address, is_store(context))
    };
    if again {
        return;
    }
    // SAFETY: written once, in `install`, before any lane; `sa_sigaction` is then what Wasmtime installed, of the type
    // that its flags say, or the default.
    unsafe {
        let next = if signal == libc::SIGBUS { addr_of!(NEXT_BUS) } else { addr_of!(NEXT_SEGV) };
        match (*next).sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The fault comes again, and then ends the process.
                libc::sigaction(signal, &EMPTY, std::ptr::null_mut());
            }
            handler if (*next).sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
