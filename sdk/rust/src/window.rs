//! Window of far memory that a function reads. One of the modules with `unsafe` code.
//!
//! A window can be larger than Rust's slices on wasm32 (2 GiB). It is therefore a pointer and a length, and only
//! ranges of it become slices. Its bytes belong to a published file, so nobody writes to them. If the node revokes
//! them while a function runs, the output of that call is discarded.

use crate::value::slice_of;
use crate::{Failure, Value};
use core::marker::PhantomData;

/// Bytes of a published file. Offsets count from the first byte of the window. Access to bytes that are not inside
/// fails with [`Failure::BAD_DATA`].
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    first: *const u8,
    bytes: u64,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> Window<'a> {
    /// Makes a window over ordinary bytes, for tests.
    pub fn over(bytes: &'a [u8]) -> Self {
        Window { first: bytes.as_ptr(), bytes: bytes.len() as u64, lives: PhantomData }
    }

    /// # Safety
    ///
    /// `bytes` bytes at `address` must be readable and unchanged for as long as the window lives.
    pub(crate) unsafe fn at(address: u64, bytes: u64) -> Self {
        Window { first: core::ptr::with_exposed_provenance(address as usize), bytes, lives: PhantomData }
    }

    /// Returns the length in bytes.
    pub fn len(self) -> u64 {
        self.bytes
    }

    /// Reports whether the window has no bytes.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Returns `bytes` bytes, starting at offset `byte`.
    pub fn bytes(self, byte: u64, bytes: u64) -> Result<&'a [u8], Failure> {
        let end = byte.checked_add(bytes).ok_or(Failure::BAD_DATA)?;
        if end > self.bytes || bytes > isize::MAX as u64 {
            return Err(Failure::BAD_DATA);
        }
        // SAFETY: the range is inside the window, which is readable for 'a, and not larger than a slice may be.
        // `wrapping_add` is used because a window may cross the middle of a 32-bit address space.
        Ok(unsafe { core::slice::from_raw_parts(self.first.wrapping_add(byte as usize), bytes as usize) })
    }

    /// Returns `count` values, starting at offset `byte`, without copying them. Fails if they are not aligned for
    /// `T`.
    pub fn slice_of<T: Value>(self, byte: u64, count: u64) -> Result<&'a [T], Failure> {
        let bytes = count.checked_mul(size_of::<T>() as u64).ok_or(Failure::BAD_DATA)?;
        slice_of(self.bytes(byte, bytes)?).ok_or(Failure::BAD_DATA)
    }

    /// Returns the value at offset `byte`, aligned or not.
    pub fn value_at<T: Value>(self, byte: u64) -> Result<T, Failure> {
        let bytes = self.bytes(byte, size_of::<T>() as u64)?;
        crate::value::read(bytes, 0).ok_or(Failure::BAD_DATA)
    }
}
