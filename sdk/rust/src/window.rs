//! The window of far memory that a function reads. A home of `unsafe`.
//!
//! On wasm32 a window can be larger than Rust's slices (2 GiB), so it is a pointer and a length, and only ranges of it
//! become slices. Its bytes belong to a sealed file, so nobody writes to them; if they are taken away while a function
//! runs, its output is thrown away.

use crate::value::slice_of;
use crate::{Failure, Value};
use core::marker::PhantomData;

/// Bytes of a published file. Offsets count from the window's first byte; what is not inside is
/// [`Failure::BAD_DATA`].
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    first: *const u8,
    bytes: u64,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> Window<'a> {
    /// A window over bytes at hand, for tests.
    pub fn over(bytes: &'a [u8]) -> Self {
        Window { first: bytes.as_ptr(), bytes: bytes.len() as u64, lives: PhantomData }
    }

    /// # Safety
    ///
    /// From the address on, so many bytes must be readable and unchanged for as long as the window lives.
    pub(crate) unsafe fn at(address: u64, bytes: u64) -> Self {
        Window { first: core::ptr::with_exposed_provenance(address as usize), bytes, lives: PhantomData }
    }

    /// How many bytes it has.
    pub fn len(self) -> u64 {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// So many bytes from this one on.
    pub fn bytes(self, byte: u64, bytes: u64) -> Result<&'a [u8], Failure> {
        let end = byte.checked_add(bytes).ok_or(Failure::BAD_DATA)?;
        if end > self.bytes || bytes > isize::MAX as u64 {
            return Err(Failure::BAD_DATA);
        }
        // SAFETY: the range is inside the window, which is readable as long as 'a, and no larger than slices may be.
        // The pointer is moved by arithmetic that may pass half of a 32-bit address space, as a window may.
        Ok(unsafe { core::slice::from_raw_parts(self.first.wrapping_add(byte as usize), bytes as usize) })
    }

    /// So many values from this byte on, where they lie. The byte must be aligned for them.
    pub fn slice_of<T: Value>(self, byte: u64, count: u64) -> Result<&'a [T], Failure> {
        let bytes = count.checked_mul(size_of::<T>() as u64).ok_or(Failure::BAD_DATA)?;
        slice_of(self.bytes(byte, bytes)?).ok_or(Failure::BAD_DATA)
    }

    /// The value at this byte, which need not be aligned.
    pub fn value_at<T: Value>(self, byte: u64) -> Result<T, Failure> {
        let bytes = self.bytes(byte, size_of::<T>() as u64)?;
        crate::value::read(bytes, 0).ok_or(Failure::BAD_DATA)
    }
}
