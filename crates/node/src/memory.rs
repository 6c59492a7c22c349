//! The memory of a node as a trait.
//!
//! [`Arena`] is the real one, and keeps the contract with mapped pages and atomic words. The simulator has another one
//! that keeps the same contract without either. The arena documents the contract of each method.
//!
//! Never here: a rule about who may do what.

use farpool_region::donation::Donation;
use farpool_region::{Arena, Entered, Fence, RegionError, SealedSlice, SharedAccess};
use farpool_transport::{Mappable, Shared};
use farpool_wire::control::{Attached, MemoryKind, NodeMemory};
use farpool_wire::{Epoch, Handle, List, NodeId, Refusal, RegionIndex, Text};
use std::io;
use std::os::fd::BorrowedFd;

/// Regions, each behind a gate: it counts the operations inside, and closing it waits until they have left. The methods
/// are called from many threads at once.
pub trait Memory: Send + Sync + 'static {
    /// Guard of an entered gate.
    type Entered<'a>: Inside
    where
        Self: 'a;

    /// Returns the bytes of each region.
    fn region_bytes(&self) -> u64;
    /// Returns the number of regions.
    fn region_count(&self) -> u32;
    /// Reports whether regions begin clean; see [`Arena::begins_clean`].
    fn begins_clean(&self) -> bool {
        true
    }
    /// Describes the memory, as the broker is told. `None` if nobody need know.
    fn description(&self, _node: NodeId) -> Option<NodeMemory> {
        None
    }
    /// Enters a region's gate and shows its fence. Refused with `NoSuchRegion`.
    fn enter(&self, region: RegionIndex) -> Result<Self::Entered<'_>, Refusal>;
    /// Opens a region to its holders; see [`Arena::open`].
    fn open(
        &self,
        region: RegionIndex,
        epoch: Epoch,
        write: Option<Handle>,
        read: Option<Handle>,
    ) -> Result<(), RegionError>;
    /// Refuses all operations for now; see [`Arena::suspend`].
    fn suspend(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Lets the same holders in again; see [`Arena::resume`].
    fn resume(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Ends the region's epoch: refuses its holders for good; see [`Arena::close`].
    fn close(&self, region: RegionIndex, next_epoch: Epoch) -> Result<(), RegionError>;
    /// Makes a closed, clean region mappable; see [`Arena::share`].
    fn share(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Moves a closed region's bytes to memory that its writer has not mapped; see [`Arena::reseat`].
    fn reseat(&self, region: RegionIndex, spare: Option<RegionIndex>) -> Result<(), RegionError>;
    /// Reports whether `reseat` would copy bytes, for which it can use a spare file; see [`Arena::is_copied_to_seal`].
    fn is_copied_to_seal(&self, _region: RegionIndex) -> bool {
        false
    }
    /// Reports whether the region can be mapped. `None` if there is no such region.
    fn is_shared(&self, region: RegionIndex) -> Option<bool>;
    /// Returns what a client on this host needs to map the region; see [`Arena::shared_fd`].
    fn hand_out(&self, region: RegionIndex, access: SharedAccess) -> Result<Shared, RegionError>;
    /// Sends `head` and then ranges of entered regions, by one call that does not wait; see [`farpool_region::send`].
    /// At most `RANGES_MAX` ranges. Memory that no socket can reach keeps the default.
    fn send(
        &self,
        _socket: BorrowedFd<'_>,
        _head: &[u8],
        _from: &[Range<Self::Entered<'_>>],
    ) -> Result<io::Result<usize>, Refusal> {
        Ok(Err(io::ErrorKind::Unsupported.into()))
    }
    /// Receives into ranges of entered regions, by one call that does not wait; see [`farpool_region::receive`].
    fn receive(
        &self,
        _socket: BorrowedFd<'_>,
        _into: &[Range<Self::Entered<'_>>],
    ) -> Result<io::Result<usize>, Refusal> {
        Ok(Err(io::ErrorKind::Unsupported.into()))
    }
    /// Returns a range of an immutable region in place; see [`Arena::sealed`]. `None` if the memory cannot be borrowed.
    fn sealed(&self, _region: RegionIndex, _offset: u64, _bytes: usize) -> Option<SealedSlice> {
        None
    }
    /// Zeroes a closed region; see [`Arena::scrub`].
    fn scrub(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Zeroes a closed region by returning its pages to the host; see [`Arena::scrub_away`].
    fn scrub_away(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Returns the pages of a closed, clean region to the host; see [`Arena::give_back`].
    fn give_back(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Reports whether every byte of a closed region is zero; see [`Arena::verify_zero`].
    fn verify_zero(&self, region: RegionIndex) -> Result<bool, RegionError>;
    /// Makes the pages of a closed region present; see [`Arena::prefault`].
    fn prefault(&self, region: RegionIndex) -> Result<(), RegionError>;
    /// Returns the number of regions that are locked into RAM.
    fn locked_count(&self) -> u32;
}

/// Memory that a region has when it is opened to a new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Memory that clients of this host can map.
    Mappable,
    /// Any memory.
    Any,
}

/// Range of a region whose gate was entered.
#[derive(Debug)]
pub struct Range<E> {
    /// Guard of its gate.
    pub entered: E,
    /// Offset of its first byte in the region.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// Guard of an entered gate: enter, check the fence, copy, then leave by dropping the guard.
pub trait Inside {
    /// Returns the fence against which the operation is checked.
    fn fence(&self) -> Fence;
    /// Copies bytes of the region to `into`; see [`Entered::copy_out`].
    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal>;
    /// Copies `from` into the region; see [`Entered::copy_in`].
    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), Refusal>;
}

impl Inside for Entered<'_> {
    fn fence(&self) -> Fence {
        Entered::fence(self)
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        Entered::copy_out(self, offset, into)
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), Refusal> {
        Entered::copy_in(self, offset, from)
    }
}

impl Memory for Arena {
    type Entered<'a> = Entered<'a>;

    fn region_bytes(&self) -> u64 {
        Arena::region_bytes(self)
    }

    fn region_count(&self) -> u32 {
        Arena::region_count(self)
    }

    fn begins_clean(&self) -> bool {
        Arena::begins_clean(self)
    }

    fn description(&self, node: NodeId) -> Option<NodeMemory> {
        let (kind, page_bytes, device) = match self.donation() {
            Donation::Ordinary => (MemoryKind::Ordinary, 0, Text::default()),
            Donation::HugePages { page_bytes } => (MemoryKind::HugePages, *page_bytes, Text::default()),
            Donation::Device(path) => {
                // A path that is no text of the wire is left out; the kind tells enough.
                let path = Text::new(path.display().to_string()).unwrap_or_default();
                (MemoryKind::Device, 0, path)
            }
        };
        let numa_node = List::new(self.numa_node().into_iter().collect()).unwrap_or_default();
        Some(NodeMemory { node, kind, page_bytes, numa_node, device })
    }

    fn enter(&self, region: RegionIndex) -> Result<Entered<'_>, Refusal> {
        Arena::enter(self, region)
    }

    fn open(
        &self,
        region: RegionIndex,
        epoch: Epoch,
        write: Option<Handle>,
        read: Option<Handle>,
    ) -> Result<(), RegionError> {
        Arena::open(self, region, epoch, write, read)
    }

    fn suspend(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::suspend(self, region)
    }

    fn resume(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::resume(self, region)
    }

    fn close(&self, region: RegionIndex, next_epoch: Epoch) -> Result<(), RegionError> {
        Arena::close(self, region, next_epoch)
    }

    fn share(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::share(self, region)
    }

    fn reseat(&self, region: RegionIndex, spare: Option<RegionIndex>) -> Result<(), RegionError> {
        Arena::reseat(self, region, spare)
    }

    fn is_copied_to_seal(&self, region: RegionIndex) -> bool {
        Arena::is_copied_to_seal(self, region)
    }

    fn is_shared(&self, region: RegionIndex) -> Option<bool> {
        Arena::is_shared(self, region)
    }

    fn hand_out(&self, index: RegionIndex, access: SharedAccess) -> Result<Shared, RegionError> {
        let region = self.shared_fd(index, access)?;
        let words = self.words_fd().try_clone_to_owned().map_err(|source| RegionError::System {
            what: "duplicate the descriptor of the fence words",
            bytes: 0,
            source,
        })?;
        let attached = Attached {
            region_bytes: Arena::region_bytes(self),
            word_offset: self.word_offset(index),
            words_bytes: self.words_bytes(),
        };
        Ok(Shared { memory: Mappable::Files { region, words }, attached })
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        from: &[Range<Entered<'_>>],
    ) -> Result<io::Result<usize>, Refusal> {
        let ranges = from.iter().map(|range| range.entered.range_out(range.offset, range.bytes));
        Ok(farpool_region::send(socket, head, &ranges.collect::<Result<Vec<_>, _>>()?))
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        into: &[Range<Entered<'_>>],
    ) -> Result<io::Result<usize>, Refusal> {
        let ranges = into.iter().map(|range| range.entered.range_in(range.offset, range.bytes));
        Ok(farpool_region::receive(socket, &ranges.collect::<Result<Vec<_>, _>>()?))
    }

    fn sealed(&self, region: RegionIndex, offset: u64, bytes: usize) -> Option<SealedSlice> {
        Arena::sealed(self, region, offset, bytes)
    }

    fn scrub(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::scrub(self, region)
    }

    fn scrub_away(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::scrub_away(self, region)
    }

    fn give_back(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::give_back(self, region)
    }

    fn verify_zero(&self, region: RegionIndex) -> Result<bool, RegionError> {
        Arena::verify_zero(self, region)
    }

    fn prefault(&self, region: RegionIndex) -> Result<(), RegionError> {
        Arena::prefault(self, region)
    }

    fn locked_count(&self) -> u32 {
        Arena::locked_count(self)
    }
}
