//! Entry of a call: makes a [`Call`] of a call record, and turns its result into the number that an exported function
//! returns. One of the modules with `unsafe` code.

use crate::{Call, CallInputs, Failure, Window};

/// Flag of a call record: a call on another node has asked to be continued by this one, and left its state.
const GOES_ON: u32 = 1;

/// Call record, laid out as in `spec/function.md`. Addresses are those that the function loads from.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "spec/function.md says what the fields are")]
pub struct Record {
    pub version: u32,
    pub flags: u32,
    pub window: u64,
    pub window_bytes: u64,
    pub args: u64,
    pub args_bytes: u64,
    pub output: u64,
    pub output_capacity: u64,
    pub columns: u64,
    pub columns_bytes: u64,
    pub parts: u64,
    pub part_count: u64,
    pub state: u64,
    pub state_bytes: u64,
    pub hop: u64,
    pub reserved: [u64; 5],
}

const _: () = assert!(size_of::<Record>() == 152);

/// Exports a function under a name. The second argument is a function or closure that takes a `&mut` [`Call`] and
/// returns `Result<(), Failure>`.
///
/// Nothing may be kept from one call to the next. With the feature `heap`, all allocations are freed when the next
/// call begins, so a `static` must not refer to one.
#[macro_export]
macro_rules! export {
    ($name:ident, $body:expr) => {
        const _: () = {
            // SAFETY: the name is the one under which callers find the function, and it is exported once.
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C" fn entry(record: *mut $crate::Record) -> i64 {
                // SAFETY: `spec/function.md` obliges the caller of an exported function to pass a call record.
                unsafe { $crate::enter(record, $body) }
            }
        };
    };
}

/// Runs the body of an exported function on a call. Returns the number that `spec/function.md` asks for: the bytes of
/// output, or the negated code of a failure.
///
/// # Safety
///
/// `record` must be the address of a call record. All that its addresses lead to must stay valid until this returns,
/// as `spec/function.md` says: the output is used by this function alone, and everything else is unchanged.
pub unsafe fn enter(record: *mut Record, body: impl FnOnce(&mut Call<'_>) -> Result<(), Failure>) -> i64 {
    #[cfg(all(target_arch = "wasm32", feature = "heap"))]
    // SAFETY: the only call in progress in this module is the one that begins here, and it has allocated nothing.
    unsafe {
        crate::heap::begin();
    }
    // SAFETY: the caller promises that the record and what its addresses lead to are valid. The addresses are those
    // that the function itself loads from. Only the window may be larger than a slice may be, and it does not become
    // one.
    let mut call = unsafe {
        let record = &*record;
        Call::new(CallInputs {
            window: Window::at(record.window, record.window_bytes),
            args: slice(record.args, record.args_bytes),
            output: slice_mut(record.output, record.output_capacity),
            columns: (record.columns != 0).then(|| slice(record.columns, record.columns_bytes)),
            parts: slice(record.parts, record.part_count.saturating_mul(16)),
            state: (record.flags & GOES_ON != 0).then(|| slice(record.state, record.state_bytes)),
        })
    };
    match body(&mut call) {
        Err(failure) => -i64::from(failure.code()),
        Ok(()) => {
            if let Some(byte) = call.hops_to() {
                // SAFETY: the record is valid, as above, and a function may write the field `hop`.
                unsafe { (*record).hop = byte };
            }
            call.output().written().len() as i64
        }
    }
}

/// # Safety
///
/// `bytes` bytes at `address` must be readable and unchanged for 'a. If `bytes` is 0, `address` may be anything.
unsafe fn slice<'a>(address: u64, bytes: u64) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller promises that these bytes are readable and unchanged for 'a.
    unsafe {
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address as usize), bytes as usize)
    }
}

/// # Safety
///
/// The conditions are those of [`slice`], and these bytes must be writable and used by nobody else for 'a.
unsafe fn slice_mut<'a>(address: u64, bytes: u64) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    let first = core::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller promises that these bytes are writable and used by nobody else for 'a.
    unsafe { core::slice::from_raw_parts_mut(first, bytes as usize) }
}

/// Ends the call with outcome `Unreachable`. There is no message, because nobody could read it, and code to format it
/// would make up most of a module.
#[cfg(all(target_arch = "wasm32", feature = "panic", not(test)))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
