//! Where a call comes in: from a call record to a [`Call`], and back. A home of `unsafe`.

use crate::{Call, Failure, Pieces, Window};

/// Flag: the call goes on where another has hopped from.
const GOES_ON: u32 = 1;

/// The call record, byte for byte. Addresses are those of the function's memory.
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

/// Exports a function under a name: of a function or closure that takes a `&mut` [`Call`] and returns
/// `Result<(), Failure>`.
///
/// Nothing may be kept from one call to another. With the feature `heap`, what was allocated is gone when the next call
/// begins, so that a `static` must not hold on to it.
#[macro_export]
macro_rules! export {
    ($name:ident, $body:expr) => {
        const _: () = {
            // SAFETY: the name is the one that the function is to be known by; it is exported once.
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C" fn entry(record: *mut $crate::Record) -> i64 {
                // SAFETY: whoever calls an exported function gives it a call record, as the specification says.
                unsafe { $crate::enter(record, $body) }
            }
        };
    };
}

/// What an exported function does: runs the body on a call, and returns what the specification asks for.
///
/// # Safety
///
/// The address must be that of a call record, and what it names must be there until this returns, as
/// `spec/function.md` says: the output for this function alone, all else unchanged.
pub unsafe fn enter(record: *mut Record, body: impl FnOnce(&mut Call<'_>) -> Result<(), Failure>) -> i64 {
    #[cfg(all(target_arch = "wasm32", feature = "heap"))]
    // SAFETY: no call is under way in this module but the one that begins, and it has allocated nothing.
    unsafe {
        crate::heap::begin();
    }
    // SAFETY: that the record and what it names are there is the caller's promise. Addresses are what the function
    // itself loads from, and none of these ranges but the window is larger than a slice may be.
    let mut call = unsafe {
        let record = &*record;
        Call::new(Pieces {
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
                // SAFETY: the record is there, as above, and `hop` is the field that a function may write.
                unsafe { (*record).hop = byte };
            }
            call.output().written().len() as i64
        }
    }
}

/// # Safety
///
/// So many bytes must be readable and unchanged for 'a; the address may be anything if they are none.
unsafe fn slice<'a>(address: u64, bytes: u64) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe {
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address as usize), bytes as usize)
    }
}

/// # Safety
///
/// As [`slice`], and nobody else may use these bytes.
unsafe fn slice_mut<'a>(address: u64, bytes: u64) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    let first = core::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(first, bytes as usize) }
}

/// Without a message: there is nobody to tell it to, and formatting would be most of a module.
#[cfg(all(target_arch = "wasm32", feature = "panic", not(test)))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
