//! A call: arguments, window, state and output of a function.

use crate::value::read;
use crate::{Columns, Failure, Output, Value, Window};

/// Which bytes of the window are here. Loads of other bytes travel to the caller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte in the window.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a call is made of: a test fills it in, and what a test leaves out is not there.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// The window.
    pub window: Window<'a>,
    /// The arguments.
    pub args: &'a [u8],
    /// Room for the output.
    pub output: &'a mut [u8],
    /// The table of columns, byte for byte.
    pub columns: Option<&'a [u8]>,
    /// The table of parts, byte for byte: 16 bytes each.
    pub parts: &'a [u8],
    /// What the call left that has hopped to this one.
    pub state: Option<&'a [u8]>,
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Pieces {
            window: Window::over(&[]),
            args: &[],
            output: &mut [],
            columns: None,
            parts: &[],
            state: None,
        }
    }
}

/// What a function gets and leaves.
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
    /// Most bytes of a state.
    pub const STATE_BYTES_MAX: usize = 65_536;

    /// A call of these pieces.
    pub fn new(pieces: Pieces<'a>) -> Self {
        let Pieces { window, args, output, columns, parts, state } = pieces;
        Call { window, args, output: Output::over(output), columns, parts, state, hop: None }
    }

    /// The arguments.
    pub fn args(&self) -> &'a [u8] {
        self.args
    }

    /// The argument at this byte of them. Where they end before: [`Failure::BAD_ARGUMENTS`].
    pub fn arg<T: Value>(&self, at: usize) -> Result<T, Failure> {
        read(self.args, at).ok_or(Failure::BAD_ARGUMENTS)
    }

    /// The window: a copy that can be kept while the output is written.
    pub fn window(&self) -> Window<'a> {
        self.window
    }

    /// So many bytes of the window from this one on.
    pub fn bytes(&self, byte: u64, bytes: u64) -> Result<&'a [u8], Failure> {
        self.window.bytes(byte, bytes)
    }

    /// The `u64` at a byte of the window.
    pub fn u64_at(&self, byte: u64) -> Result<u64, Failure> {
        self.window.value_at(byte)
    }

    /// So many values of the window, where they lie; the byte must be aligned for them.
    pub fn slice_of<T: Value>(&self, byte: u64, count: u64) -> Result<&'a [T], Failure> {
        self.window.slice_of(byte, count)
    }

    /// Parts of the window that are here, in order and without overlap.
    pub fn parts(&self) -> impl Iterator<Item = Part> + 'a {
        self.parts.as_chunks::<16>().0.iter().map(|part| {
            let [first, bytes] = [0, 8].map(|at| read(part, at).unwrap_or_default());
            Part { first, bytes }
        })
    }

    /// Whether so many bytes from this one on are here, so that reading them does not travel.
    pub fn is_here(&self, byte: u64, bytes: u64) -> bool {
        let Some(end) = byte.checked_add(bytes) else { return false };
        // Parts may touch one another.
        let reached = self.parts().fold(byte, |reached, part| {
            let is_inside = reached.checked_sub(part.first).is_some_and(|into| into < part.bytes);
            if is_inside { part.first + part.bytes } else { reached }
        });
        reached >= end
    }

    /// What the call left that has hopped to this one; `None` of a call that begins.
    pub fn state(&self) -> Option<&'a [u8]> {
        self.state
    }

    /// The columns, if the file is a far table.
    pub fn columns(&self) -> Option<Columns<'a>> {
        Columns::new(self.window, self.columns?)
    }

    /// The output.
    pub fn output(&mut self) -> &mut Output<'a> {
        &mut self.output
    }

    /// Has the function called anew where this byte of the window lies, with the same arguments and this state; what
    /// was put to the output is forgotten. Without room for the state: [`Failure::OUTPUT_SHORT`].
    pub fn hop(&mut self, byte: u64, state: &[u8]) -> Result<(), Failure> {
        if state.len() > Self::STATE_BYTES_MAX {
            return Err(Failure::OUTPUT_SHORT);
        }
        self.output.clear();
        self.output.put_bytes(state)?;
        self.hop = Some(byte);
        Ok(())
    }

    /// Where the function wants to go on.
    pub fn hops_to(&self) -> Option<u64> {
        self.hop
    }
}
