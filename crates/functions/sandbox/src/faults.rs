//! Page faults of running functions: supplies missing bytes, or attributes the fault to the call that caused it.
//!
//! The idea: a function loads from its window (a range of far memory) like from an array, although some of it lies at
//! other nodes. The first load of such a byte faults. The handler asks the caller, over the connection on which it has
//! called the function (its lane), for the block of bytes around it. It maps the block, and the load is
//! repeated. Loads of memory that was revoked or truncated fault too: the handler maps zeros, and the call's result
//! is discarded. Any other fault in a module's space is recorded, and Wasmtime, whose handler is next, turns it into
//! a trap.
//!
//! The handler runs on the lane's own thread, at the instruction that faulted. That instruction is the function's, so
//! no code of this program is interrupted.
#![allow(unsafe_code)]

use crate::namespaces::ABORTED;
use crate::space::AddressSpace;
use farpool_wire::limits::FUNCTION_PIECE_BYTES;
use std::cell::Cell;
use std::io;
use std::ptr::{addr_of, addr_of_mut};

/// Size of the handler's stack, in bytes. The handler asks the function's caller for bytes, which takes buffers.
const STACK_BYTES: usize = 512 << 10;

/// The call that runs on this thread.
pub struct ThreadCall<'r> {
    /// Address space of the call.
    pub space: &'r AddressSpace,
    /// True if a Wasm module runs, so that faults become traps. In native code they end the process.
    pub is_module: bool,
    /// Function that obtains the block of the window that starts at this byte from the caller, and stores it where
    /// `AddressSpace::map_supplied` finds it. It returns false if it could not.
    pub supply: &'r dyn Fn(u64) -> bool,
    /// Record of the faults, which the handler fills.
    pub noted: &'r Noted,
}

/// Record of the faults of a call.
#[derive(Debug, Default)]
pub struct Noted {
    /// Address of the last fault, and true if a store caused it.
    pub fault: Cell<Option<(usize, bool)>>,
    /// True if a load found that memory of the window was revoked or truncated.
    pub is_void: Cell<bool>,
    /// Offset in the window of a block that lies at another node and that the caller did not send; `None` if there was
    /// no such block.
    pub not_supplied: Cell<Option<u64>>,
}

thread_local! {
    /// Pointer to a `ThreadCall` of a frame further down this thread's stack, or null.
    static RUNNING: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// Runs a closure while this thread's faults are handled as faults of this call.
pub fn during<T>(running: &ThreadCall<'_>, run: impl FnOnce() -> T) -> T {
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

/// Handlers of the two signals that were installed before, which are Wasmtime's. They get the faults that this one does
/// not resolve.
static mut NEXT_SEGV: libc::sigaction = EMPTY;
static mut NEXT_BUS: libc::sigaction = EMPTY;
// SAFETY: all zeros is a valid `sigaction`, the default.
const EMPTY: libc::sigaction = unsafe { std::mem::zeroed() };

/// Installs the fault handler in front of Wasmtime's, which must have been installed before. It is called once, before
/// there are lanes (threads that run functions).
pub fn install() -> io::Result<()> {
    for (signal, next) in [(libc::SIGSEGV, addr_of_mut!(NEXT_SEGV)), (libc::SIGBUS, addr_of_mut!(NEXT_BUS))] {
        // SAFETY: `sigaction` gets a handler of the right type, and a place for the previous one, which nobody reads
        // until this function has returned, because there are no lanes yet.
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
    // SAFETY: `sigaction` gets a handler of the right type, and no place for the previous one.
    let result = unsafe {
        let mut action = EMPTY;
        action.sa_sigaction = end_aborted as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the process with the exit status of an abort. The signal alone would not: the kernel ignores signals that the
/// first process of a namespace sends to itself, unless they have a handler.
extern "C" fn end_aborted(_signal: libc::c_int) {
    // SAFETY: it ends the process, and may be called in a signal handler.
    unsafe { libc::_exit(ABORTED) }
}

/// Stack of this thread's signal handler. It must be dropped on this thread.
pub struct HandlerStack(*mut [u8]);

impl HandlerStack {
    /// Installs a stack for this thread's signal handlers, in place of Wasmtime's, which is too small.
    pub fn new() -> io::Result<HandlerStack> {
        let memory = Box::into_raw(vec![0u8; STACK_BYTES].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: memory.cast(), ss_flags: 0, ss_size: STACK_BYTES };
        // SAFETY: the stack is memory that lives until `drop`, which uninstalls it first, and that nobody else uses.
        match unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) } {
            0 => Ok(HandlerStack(memory)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for HandlerStack {
    fn drop(&mut self) {
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: no handler runs while this thread is here. Once the kernel has forgotten the stack, nothing refers
        // to the memory, which `new` took out of a box.
        unsafe {
            if libc::sigaltstack(&none, std::ptr::null_mut()) == 0 {
                drop(Box::from_raw(self.0));
            }
        }
    }
}

/// Reports whether the faulting instruction was a store.
#[cfg(target_arch = "x86_64")]
fn is_store(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel passes a `ucontext_t` to a handler that was installed with `SA_SIGINFO`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// Returns false: on this architecture it is not known whether the faulting instruction was a store.
#[cfg(not(target_arch = "x86_64"))]
fn is_store(_context: *mut libc::c_void) -> bool {
    false
}

/// Handles a fault at this address. Returns true if the instruction should be repeated, false if the next handler
/// should turn the fault into a trap or end the process.
fn answer(running: &ThreadCall<'_>, signal: libc::c_int, address: usize, is_store: bool) -> bool {
    let ThreadCall { space, is_module, supply, noted } = *running;
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
    // A module traps. Native code continues with zeros until it ends, and its result is discarded.
    !is_module && space.map_zeros(byte).is_ok()
}

unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let running: *const ThreadCall<'_> = RUNNING.get().cast();
    // SAFETY: the kernel passes the `siginfo_t` of a fault, which has an address. `RUNNING` is null, or points to the
    // argument of `during` further down this very stack, which has not returned.
    let again = unsafe {
        let address = (*info).si_addr() as usize;
        !running.is_null() && answer(&*running, signal, address, is_store(context))
    };
    if again {
        return;
    }
    // SAFETY: both are written once, in `install`, before there are lanes. `sa_sigaction` is then what Wasmtime has
    // installed, of the type that its flags say, or the default.
    unsafe {
        let next = if signal == libc::SIGBUS { addr_of!(NEXT_BUS) } else { addr_of!(NEXT_SEGV) };
        match (*next).sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The fault happens again, and then ends the process.
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
