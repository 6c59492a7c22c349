//! What a copy is judged by, and how. Pure: a gate of real memory and one of the simulator judge by the same lines.

use farpool_wire::{Code, Epoch, Handle, Refusal};

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

impl Fence {
    /// Why nothing is copied while the gate is not open.
    pub fn closed(&self) -> Refusal {
        match self.suspended {
            true => Refusal::new(Code::LeaseExpired, 0),
            false => Refusal::new(Code::StaleEpoch, self.epoch.0),
        }
    }

    /// Admits a copy of that range through an open gate, behind which so many bytes have moved since it was entered.
    /// Returns how many have moved with these.
    ///
    /// Refused: `OutOfBounds`; `LimitReached` if they are more than [`GATE_BYTES_MAX`].
    pub fn admit(&self, offset: u64, bytes: usize, moved_bytes: usize) -> Result<usize, Refusal> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.region_bytes) {
            return Err(Refusal::new(Code::OutOfBounds, self.region_bytes));
        }
        match moved_bytes.saturating_add(bytes) {
            moved if moved > GATE_BYTES_MAX => Err(Refusal::new(Code::LimitReached, GATE_BYTES_MAX as u64)),
            moved => Ok(moved),
        }
    }

    /// Admits writing to what [`Fence::admit`] has admitted. Refused: `Sealed` if nobody may write.
    pub fn admit_write(&self) -> Result<(), Refusal> {
        match self.write_handle {
            Some(_) => Ok(()),
            None => Err(Refusal::new(Code::Sealed, 0)),
        }
    }
}
