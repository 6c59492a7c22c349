//! Calls of a function: arguments, window, state and output.

use crate::value::read;
use crate::{Columns, Failure, Output, Value, Window};

/// Range of the window that is in the memory of the machine on which the function runs. A load from any other byte
/// first fetches it over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of the first byte in the window.
    pub first: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Inputs of a [`Call`], for tests of functions. A field that a test leaves out is empty.
#[derive(Debug)]
pub struct CallInputs<'a> {
    /// Window that the function reads.
    pub window: Window<'a>,
    /// Arguments.
    pub args: &'a [u8],
    /// Buffer for the output.
    pub output: &'a mut [u8],
    /// Table of columns in the encoding of `spec/function.md`; `None` if the file is not a far table.
    pub columns: Option<&'a [u8]>,
    /// Table of parts (ranges of the window in this machine's memory) in the encoding of `spec/function.md`: 16 bytes
    /// each.
    pub parts: &'a [u8],
    /// State from the call of this function on another node that asked to be continued here ([`Call::hop`]). `None` for
    /// a first call.
    pub state: Option<&'a [u8]>,
}

impl Default for CallInputs<'_> {
    fn default() -> Self {
        CallInputs {
            window: Window::over(&[]),
            args: &[],
            output: &mut [],
            columns: None,
            parts: &[],
            state: None,
        }
    }
}

/// One call of a function: its inputs ([`Call::args`], [`Call::window`], [`Call::columns`], [`Call::state`]) and its
/// results ([`Call::output`], [`Call::hop`]).
#[derive(Debug)]
pub struct Call<'a> {
    window: Window<'a>,
    args: &'a [u8],
    output: Output<'a>,
    columns: Option<&'a [u8]>,
    parts: &'a [u8],
    state: Option<&'a [u8]>,
    hop: Option<u64>,
}

impl<'a> Call<'a> {
    /// Largest state in bytes that a call may pass to the next one by [`Call::hop`].
    pub const STATE_BYTES_MAX: usize = 65_536;

    /// Makes a call of these inputs.
    pub fn new(inputs: CallInputs<'a>) -> Self {
        let CallInputs { window, args, output, columns, parts, state } = inputs;
        Call { window, args, output: Output::over(output), columns, parts, state, hop: None }
    }

    /// Returns the arguments.
    pub fn args(&self) -> &'a [u8] {
        self.args
    }

    /// Returns the argument at byte `at`. Fails with [`Failure::BAD_ARGUMENTS`] if the arguments end before it does.
    pub fn arg<T: Value>(&self, at: usize) -> Result<T, Failure> {
        read(self.args, at).ok_or(Failure::BAD_ARGUMENTS)
    }

    /// Returns the window. It is a copyable handle, which can be kept while the output is written.
    pub fn window(&self) -> Window<'a> {
        self.window
    }

    /// Returns `bytes` bytes of the window, starting at offset `byte`. Fails with [`Failure::BAD_DATA`] if they are
    /// not inside.
    pub fn bytes(&self, byte: u64, bytes: u64) -> Result<&'a [u8], Failure> {
        self.window.bytes(byte, bytes)
    }

    /// Returns the `u64` at an offset of the window, aligned or not.
    pub fn u64_at(&self, byte: u64) -> Result<u64, Failure> {
        self.window.value_at(byte)
    }

    /// Returns `count` values of the window, starting at offset `byte`, without copying them. Fails with
    /// [`Failure::BAD_DATA`] if they are not aligned for `T` or not inside.
    pub fn slice_of<T: Value>(&self, byte: u64, count: u64) -> Result<&'a [T], Failure> {
        self.window.slice_of(byte, count)
    }

    /// Returns the parts of the window that are in the memory of this machine, in order and without overlap.
    pub fn parts(&self) -> impl Iterator<Item = Part> + 'a {
        self.parts.as_chunks::<16>().0.iter().map(|part| {
            let [first, bytes] = [0, 8].map(|at| read(part, at).unwrap_or_default());
            Part { first, bytes }
        })
    }

    /// Reports whether a range of the window is in the memory of this machine, so that reading it needs no network
    /// round trip.
    pub fn is_here(&self, byte: u64, bytes: u64) -> bool {
        let Some(end) = byte.checked_add(bytes) else { return false };
        // The range may continue in an adjacent part.
        let reached = self.parts().fold(byte, |reached, part| {
            let is_inside = reached.checked_sub(part.first).is_some_and(|into| into < part.bytes);
            if is_inside { part.first + part.bytes } else { reached }
        });
        reached >= end
    }

    /// Returns the state from the call on another node that asked to be continued here ([`Call::hop`]). `None` for a
    /// first call.
    pub fn state(&self) -> Option<&'a [u8]> {
        self.state
    }

    /// Returns the columns; `None` if the file is not a far table.
    pub fn columns(&self) -> Option<Columns<'a>> {
        Columns::new(self.window, self.columns?)
    }

    /// Returns the output, to be written.
    pub fn output(&mut self) -> &mut Output<'a> {
        &mut self.output
    }

    /// Asks for the function to be called again, with the same arguments and this state, on the node that holds byte
    /// `byte` of the window. Discards all output. Fails with [`Failure::OUTPUT_SHORT`] if the state does not fit the
    /// output buffer, through which it is passed, or exceeds [`Call::STATE_BYTES_MAX`].
    pub fn hop(&mut self, byte: u64, state: &[u8]) -> Result<(), Failure> {
        if state.len() > Self::STATE_BYTES_MAX {
            return Err(Failure::OUTPUT_SHORT);
        }
        self.output.clear();
        self.output.put_bytes(state)?;
        self.hop = Some(byte);
        Ok(())
    }

    /// Returns the byte of the window on whose node [`Call::hop`] has asked to continue. `None` if it was not called.
    pub fn hops_to(&self) -> Option<u64> {
        self.hop
    }
}
