//! Control messages about segments: regions that a node fills with ranges of many small published files.
//! [`crate::control`] re-exports them.
//!
//! A session asks a node to copy ranges of its leased regions into a segment. From then on they are immutable, and the
//! session can publish them. The node reports its segments to the broker, which says of which ranges the fate is
//! decided, and which segments are freed because nothing in them belongs to a name any more.

use crate::codec::{List, Name, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::RegionOwner;

wire_struct! {
    /// Range of a leased region that is to become immutable.
    LeasedRange {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// First byte in the region.
        offset: u32,
        /// Number of bytes, at most a quarter of a region.
        bytes: u32,
    }
}

wire_struct! {
    /// Request to make ranges of leased regions immutable, by copying them into segments.
    SealRanges {
        /// Session that holds the regions.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Number of the request in the session. A repeated request gets the same answer.
        number: u64,
        /// Ranges to copy.
        ranges: List<LeasedRange, SEALED_RANGES_MAX>,
        /// Copies of earlier requests that the session will not publish.
        given_up: List<RangeAt, SEALED_RANGES_MAX>,
    }
}

wire_struct! {
    /// Range of a segment.
    SealedRange {
        /// Index of the segment's region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Right to read the region.
        handle: Handle,
        /// First byte in the region.
        offset: u32,
        /// CRC32C of the bytes.
        checksum: u32,
    }
}

wire_struct! {
    /// Answer to `SealRanges`.
    RangesSealed {
        /// Copies of the ranges, in the order of the request.
        ranges: List<SealedRange, SEALED_RANGES_MAX>,
    }
}

wire_struct! {
    /// Report of a node about all of its segments.
    SegmentReport {
        /// Node that reports.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Segments, in the order of their regions.
        segments: List<SegmentHeld, NODE_REGIONS_MAX>,
    }
}

wire_struct! {
    /// Segment of a node.
    SegmentHeld {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Number of bytes that are in use, or were: what comes next lies behind them.
        end: u32,
        /// True if further ranges may come.
        is_open: bool,
        /// Ranges of which the node does not know yet whether a name owns them, in order.
        pending: List<PendingRange, PENDING_RANGES_MAX>,
    }
}

wire_struct! {
    /// Range of a segment of which the node does not know yet whether a name owns it.
    PendingRange {
        /// First byte in the region.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
        /// Session that has sealed it and may publish it, session 0 for copies that the node has made itself, or an
        /// orphan. While the node copies bytes there, it is leased by session 0, which is the node itself.
        owner: RegionOwner,
    }
}

wire_struct! {
    /// Answer to `SegmentReport`.
    SegmentRuling {
        /// Term of the broker.
        term: Term,
        /// Pending ranges of which the fate is decided: a name owns them, or nobody will.
        settled: List<RangeAt, PENDING_RANGES_MAX>,
        /// Segments to free, unless something was added since the report.
        dropped: List<SegmentAt, NODE_REGIONS_MAX>,
        /// Segments that the node may open until the next ruling, for tenants that have a quota and something at the
        /// node.
        limited: List<TenantSegments, TENANTS_MAX>,
        /// Segments that it may open until then for each other tenant; [`SEGMENTS_UNLIMITED`]: any number.
        others: u32,
    }
}

/// Number of segments that sets no limit.
pub const SEGMENTS_UNLIMITED: u32 = u32::MAX;

wire_struct! {
    /// Number of segments that a node may open for a tenant.
    TenantSegments {
        /// The tenant.
        tenant: Name,
        /// Number of segments.
        segments: u32,
    }
}

wire_struct! {
    /// Range of a segment, by its first byte.
    RangeAt {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// First byte in the region.
        offset: u32,
    }
}

wire_struct! {
    /// Segment as a report showed it.
    SegmentAt {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Number of bytes that were in use.
        end: u32,
    }
}
