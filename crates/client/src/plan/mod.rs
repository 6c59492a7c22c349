//! What a session decides, without a socket or a clock: where extents are cut, which extents a range of a
//! file lies in, and which of its bytes were never written. The simulator runs this very code.

mod allocator;
mod file_map;
mod range_set;

pub use allocator::{Allocator, Cut, Group};
pub use file_map::{FileMap, Piece, ReadPlan};
pub use range_set::RangeSet;

/// Smallest extent: what a file of one byte takes.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// Largest extent: large enough that a node's share of a large read is one frame.
pub const EXTENT_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(EXTENT_BYTES_MAX as usize <= farpool_wire::limits::IO_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX <= farpool_wire::limits::REGION_BYTES_MIN);
