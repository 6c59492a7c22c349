//! Rules that admit a copy to or from a region. They are pure: the gate of real memory and the gate of the simulator
//! use the same code.

use farpool_wire::{Code, Epoch, Handle, Refusal};

/// Most bytes that are moved between entering a gate and leaving it. It bounds how long a close waits (decision 0011).
pub const GATE_BYTES_MAX: usize = 256 << 10;

/// State of a region by which an operation is admitted or refused. All fields were true at one moment after entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Epoch of the region.
    pub epoch: Epoch,
    /// True if the lease is in its grace: the region has holders, but they must renew first.
    pub suspended: bool,
    /// Handle that permits reading and writing; `None` if nobody may write.
    pub write_handle: Option<Handle>,
    /// Handle that permits only reading; `None` if there is none.
    pub read_handle: Option<Handle>,
    /// True if the region can be read and not written.
    pub sealed: bool,
    /// Bytes of the region.
    pub region_bytes: u64,
}

impl Fence {
    /// Returns the refusal of a copy while the gate is not open: the lease has expired, or its epoch is over.
    pub fn closed(&self) -> Refusal {
        match self.suspended {
            true => Refusal::new(Code::LeaseExpired, 0),
            false => Refusal::new(Code::StaleEpoch, self.epoch.0),
        }
    }

    /// Admits a copy of a range through an open gate. `moved_bytes` have moved since the gate was entered. Returns
    /// the sum of those and the bytes of this copy.
    ///
    /// Refused: `OutOfBounds`; `LimitReached` if the sum is above [`GATE_BYTES_MAX`].
    pub fn admit(&self, offset: u64, bytes: usize, moved_bytes: usize) -> Result<usize, Refusal> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.region_bytes) {
            return Err(Refusal::new(Code::OutOfBounds, self.region_bytes));
        }
        match moved_bytes.saturating_add(bytes) {
            moved if moved > GATE_BYTES_MAX => Err(Refusal::new(Code::LimitReached, GATE_BYTES_MAX as u64)),
            moved => Ok(moved),
        }
    }

    /// Admits writing to a range that [`Fence::admit`] has admitted. Refused: `Sealed` if nobody may write.
    pub fn admit_write(&self) -> Result<(), Refusal> {
        match self.write_handle {
            Some(_) => Ok(()),
            None => Err(Refusal::new(Code::Sealed, 0)),
        }
    }
}
