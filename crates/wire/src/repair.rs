//! Control messages about copies of published files that are missing, and about making them again. [`crate::control`]
//! re-exports them.
//!
//! The broker decides which node makes a copy of which runs, and the node asks for the next such order. It reads the
//! bytes from the nodes that have them, puts them into a free region, and reports that region. Then the broker lists
//! it.

use crate::catalog::{NamedRegion, RunCopy};
use crate::codec::{List, Name, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::NodeInfo;

wire_struct! {
    /// Range of a region.
    RegionRange {
        /// First byte in the region.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
    }
}

wire_struct! {
    /// Request for the checksums of ranges of an immutable region.
    Checksums {
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
        /// Right to read the region.
        handle: Handle,
        /// Ranges of the region.
        ranges: List<RegionRange, NAMED_EXTENTS_MAX>,
    }
}

wire_struct! {
    /// Answer to `Checksums`.
    ChecksumsTaken {
        /// CRC32C of each range, in the order of the request.
        checksums: List<u32, NAMED_EXTENTS_MAX>,
    }
}

wire_struct! {
    /// Request by which a node asks whether it should make copies of published files. An order that it had before is
    /// over.
    NextRepair {
        /// Node that asks.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
    }
}

wire_struct! {
    /// Answer to `NextRepair`.
    RepairGiven {
        /// The order; empty: there is nothing to do.
        order: List<RepairOrder, 1>,
    }
}

wire_struct! {
    /// Order to make copies of runs of a published file, in one free region.
    RepairOrder {
        /// Part that the node repeats in its report.
        signed: SignedRepair,
        /// Tenant that owns the file.
        tenant: Name,
        /// Regions that have the bytes. Their handles are not bound to the name of the file: they can be used at once.
        regions: List<NamedRegion, REPAIR_REGIONS_MAX>,
        /// Copies to read from, any of them, for each run of `signed`. They name the regions by index.
        sources: List<List<RunCopy, RUN_COPIES_MAX>, REPAIR_RUNS_MAX>,
        /// Nodes that have the regions.
        nodes: List<NodeInfo, REPAIR_NODES_MAX>,
        /// Runs without sources, in the order of `signed`.
        computed: List<ComputedRun, REPAIR_COMPUTED_MAX>,
    }
}

wire_struct! {
    /// Run of an order that no node has. It is computed from others of its stripe.
    ComputedRun {
        /// Index of the run in the order.
        run: u32,
        /// Number of shards of its stripe that have bytes of the file.
        data: u8,
        /// Number of shards of its stripe that have parity.
        parity: u8,
        /// Number of the run among the shards of the stripe: data first, then parity.
        shard: u8,
        /// Shards to read, any `data` of them.
        sources: List<ShardSource, STRIPE_SHARDS_MAX>,
    }
}

wire_struct! {
    /// Shard of a stripe that can be read.
    ShardSource {
        /// Number of the shard: data first, then parity.
        shard: u8,
        /// Bytes of the shard. Zeros follow.
        bytes: u32,
        /// Place of the shard, in a region of the order.
        copy: RunCopy,
    }
}

wire_struct! {
    /// Part of an order that the node repeats in its report. The signature shows any broker of the pool, also one that
    /// has begun to lead since, that the order was given.
    SignedRepair {
        /// Node that makes the copies.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Term of the broker that gave the order.
        term: Term,
        /// Id of the file. The runs of a file with this id never change.
        file: FileId,
        /// Runs to copy.
        runs: List<RepairRun, REPAIR_RUNS_MAX>,
        /// HMAC-SHA-256 of all the fields before, under the node's ticket key.
        mac: [u8; 32],
    }
}

wire_struct! {
    /// Run of a published file that a node copies.
    RepairRun {
        /// Index of the run in the file.
        run: u32,
        /// Bytes of the run.
        bytes: u32,
        /// CRC32C of these bytes; 0: not known.
        checksum: u32,
        /// Place of the copy: its first byte in the region that the node chooses.
        offset: u32,
    }
}

wire_struct! {
    /// Report of a node that it has carried out an order.
    EndRepair {
        /// Order, as it was given.
        order: SignedRepair,
        /// Indices of the runs of the order that were copied, in order. Others could not be read, or were damaged.
        copied: List<u32, REPAIR_RUNS_MAX>,
        /// Region that has the copies. No client has written or mapped it.
        region: RegionIndex,
        /// Epoch of the region, at which it is immutable.
        epoch: Epoch,
        /// Right to read the region.
        handle: Handle,
    }
}

wire_struct! {
    /// Answer to `EndRepair`.
    RepairEnded {
        /// Number of runs that have a copy in the region now. If it is 0, nobody needs the region any more.
        runs: u32,
    }
}

wire_struct! {
    /// Answer to `ListRepairs`: what published files lack. Somebody who may not look at the whole pool is told of his
    /// own files.
    RepairsListed {
        /// Number of files that have fewer copies than they should.
        endangered_files: u64,
        /// Bytes of the copies that they lack.
        endangered_bytes: u64,
        /// Number of files whose copies are complete, but lie on nodes that are being drained.
        leaving_files: u64,
        /// Bytes of these copies.
        leaving_bytes: u64,
        /// Number of files of which some bytes have no copy left.
        lost_files: u64,
        /// Some of these files, those in most danger first.
        first: List<EndangeredFile, REPAIRS_LISTED_MAX>,
        /// Copies that are being made now.
        under_way: List<RepairUnderWay, NODES_MAX>,
    }
}

wire_struct! {
    /// Published file that lacks copies.
    EndangeredFile {
        /// Name of the file.
        name: Name,
        /// Bytes of the copies that it lacks, or that lie on nodes that are being drained.
        bytes: u64,
        /// Fewest copies that some of its bytes have.
        copies: u8,
        /// Copies that all of its bytes should have.
        copies_wanted: u8,
        /// True if no node of the pool, however much memory it has, is on a host without a copy.
        needs_host: bool,
    }
}

wire_struct! {
    /// Copies that a node is making.
    RepairUnderWay {
        /// Node that makes them.
        node: NodeId,
        /// Name of the file.
        name: Name,
        /// Bytes of the copies.
        bytes: u64,
    }
}
