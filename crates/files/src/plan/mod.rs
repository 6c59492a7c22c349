//! What a session decides, without a socket or a clock: where extents are cut, which extents a range of a
//! file lies in, which of its bytes were never written, and how pages are sealed against the node that holds
//! them. The simulator runs this very code.

mod allocator;
mod file_map;
mod flights;
mod page_seal;
mod range_set;

pub use allocator::{Allocator, Cut, Group};
pub use file_map::{CopyId, ExtentCopy, FileMap, Piece, ReadPlan, Readable, Snapshot};
pub use flights::{FlightId, FlightKind, Flights};
pub use page_seal::{
    PageError, PageKey, PagePlace, PageSealed, PageSeals, PageSplit, SEAL_PAGE_BYTES, SEAL_PAGES_PER_KEY_MAX,
    pages_around,
};
pub use range_set::RangeSet;

/// Smallest extent: what a file of one byte takes.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// Largest extent: large enough that a node's share of a large read is one frame.
pub const EXTENT_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(EXTENT_BYTES_MAX as usize <= farpool_wire::limits::IO_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX <= farpool_wire::limits::REGION_BYTES_MIN);
