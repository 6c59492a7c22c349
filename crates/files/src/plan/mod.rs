//! Decisions of a session, without sockets or clocks: where extents are allocated, which extents hold a range of a
//! file, which bytes were never written, and how pages are encrypted against the node that holds them. The simulator
//! runs this code.

mod allocator;
mod apart;
mod file_map;
mod page_encryption;
mod range_locks;
mod range_set;
mod stripes;

pub use allocator::{Allocation, Allocator, Group};
pub use apart::Apart;
pub use file_map::{CopyId, ExtentCopy, FileMap, ReadPlan, Readable, Segment, Snapshot};
pub use page_encryption::{
    PAGE_BYTES, PAGES_PER_KEY_MAX, PageError, PageKey, PagePlace, PageSplit, PageTag, PageTags, pages_around,
};
pub use range_locks::{RangeLockId, RangeLockKind, RangeLocks};
pub use range_set::RangeSet;
pub use stripes::{Stripe, StripeAhead, Stripes, grouped};

/// Smallest extent in bytes. A file of one byte takes one.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// Largest extent in bytes. Large enough that a node's share of a large read fills a frame.
pub const EXTENT_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(EXTENT_BYTES_MAX as usize <= farpool_wire::limits::IO_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX <= farpool_wire::limits::REGION_BYTES_MIN);
