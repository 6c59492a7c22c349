//! What a copy is judged by, and how: pure.

use farpool_wire::{Epoch, Handle};

/// Most bytes moved between entering a gate and leaving it: bounds how long a close waits.
pub const GATE_BYTES_MAX: usize = 256 << 10;

/// What an operation on a region is judged by. All of it was true at one moment after entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The region's epoch.
    pub epoch: Epoch,
    /// The lease is in its grace time: it has holders, but they must renew first.
    pub suspended: bool,
    /// Who shows this may read and write; nobody if there is none.
    pub write_handle: Option<Handle>,
    /// Who shows this may read; nobody if there is none.
    pub read_handle: Option<Handle>,
    /// It can be read and not written.
    pub sealed: bool,
    /// Bytes of the region.
    pub region_bytes: u64,
}
