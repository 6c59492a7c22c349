//! Output of a function.

use crate::value::bytes_of;
use crate::{Failure, Value};

/// Output buffer of a call. Each write appends.
#[derive(Debug)]
pub struct Output<'a> {
    room: &'a mut [u8],
    written: usize,
}

impl<'a> Output<'a> {
    pub(crate) fn over(room: &'a mut [u8]) -> Self {
        Output { room, written: 0 }
    }

    /// Appends a value. Fails with [`Failure::OUTPUT_SHORT`] if it does not fit.
    pub fn put<T: Value>(&mut self, value: &T) -> Result<(), Failure> {
        self.put_bytes(bytes_of(value))
    }

    /// Appends bytes. Fails with [`Failure::OUTPUT_SHORT`] if they do not fit.
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.reserve(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Appends `bytes` bytes and returns them for the caller to fill. Their contents are unspecified until then.
    /// Fails with [`Failure::OUTPUT_SHORT`] if they do not fit.
    pub fn reserve(&mut self, bytes: usize) -> Result<&mut [u8], Failure> {
        let begins = self.written;
        let ends = begins.checked_add(bytes).ok_or(Failure::OUTPUT_SHORT)?;
        let reserved = self.room.get_mut(begins..ends).ok_or(Failure::OUTPUT_SHORT)?;
        self.written = ends;
        Ok(reserved)
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> &[u8] {
        &self.room[..self.written]
    }

    /// Returns the size of the whole buffer in bytes, written or not.
    pub fn capacity(&self) -> usize {
        self.room.len()
    }

    /// Discards what was written.
    pub fn clear(&mut self) {
        self.written = 0;
    }
}
