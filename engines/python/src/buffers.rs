//! Python buffers as byte slices, without a copy.
//!
//! While a buffer is exported, Python neither frees nor moves it. It does not keep other threads from writing to it. As
//! with `socket.recv_into`, the caller must avoid that; otherwise the bytes of that buffer may be a mixture of old and
//! new, and nothing else is affected.
#![allow(unsafe_code)]

use crate::errors;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// Contiguous buffer to read from.
pub(crate) struct Source(PyUntypedBuffer);

/// Contiguous buffer to write to.
pub(crate) struct Target(PyUntypedBuffer);

fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    let buffer = PyUntypedBuffer::get(object)
        .map_err(|error| errors::invalid(py, format!("a contiguous buffer is needed: {error}")))?;
    if !buffer.is_c_contiguous() {
        return Err(errors::invalid(py, "the buffer has gaps; a contiguous one is needed (copy it first)"));
    }
    Ok(buffer)
}

impl Source {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        contiguous(object).map(Source)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the export held by `self` keeps this contiguous block of `len_bytes` in place and alive; any bytes
        // are valid `u8`s. The caller lets no other thread write to the buffer meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl Target {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Target> {
        let buffer = contiguous(object)?;
        if buffer.readonly() {
            return Err(errors::invalid(object.py(), "the buffer is read-only; a writable one is needed"));
        }
        Ok(Target(buffer))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the export held by `self` keeps this contiguous block of `len_bytes` in place and alive, and the
        // buffer was checked to be writable. `&mut self` makes this the only slice made from this export. The caller
        // lets no other thread use the buffer meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}
