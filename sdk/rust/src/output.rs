//! Where a function writes.

use crate::value::bytes_of;
use crate::{Failure, Value};

/// The output: what is put is appended.
#[derive(Debug)]
pub struct Output<'a> {
    room: &'a mut [u8],
    written: usize,
}

impl<'a> Output<'a> {
    pub(crate) fn over(room: &'a mut [u8]) -> Self {
        Output { room, written: 0 }
    }

    /// Appends a value. Without room for it: [`Failure::OUTPUT_SHORT`].
    pub fn put<T: Value>(&mut self, value: &T) -> Result<(), Failure> {
        self.put_bytes(bytes_of(value))
    }

    /// Appends bytes. Without room for them: [`Failure::OUTPUT_SHORT`].
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.reserve(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Appends so many bytes, to be written by the caller: what they hold until then is not known.
    pub fn reserve(&mut self, bytes: usize) -> Result<&mut [u8], Failure> {
        let begins = self.written;
        let ends = begins.checked_add(bytes).ok_or(Failure::OUTPUT_SHORT)?;
        let reserved = self.room.get_mut(begins..ends).ok_or(Failure::OUTPUT_SHORT)?;
        self.written = ends;
        Ok(reserved)
    }

    /// What was written until now.
    pub fn written(&self) -> &[u8] {
        &self.room[..self.written]
    }

    /// How many bytes there is room for in all.
    pub fn capacity(&self) -> usize {
        self.room.len()
    }

    /// Forgets what was written.
    pub fn clear(&mut self) {
        self.written = 0;
    }
}
