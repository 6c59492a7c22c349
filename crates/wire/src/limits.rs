//! Every count and size that may appear in a frame has its limit here (invariant I10).

/// Oldest protocol version this code speaks.
pub const VERSION_MIN: u8 = 1;
/// Newest protocol version this code speaks.
pub const VERSION_MAX: u8 = 1;

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 40;
/// File bytes that one data frame may carry, in either direction.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Reads or writes in one batch frame.
pub const BATCH_OPS_MAX: usize = 256;
/// Bytes of one frame body: a full batch and its table, or the largest control message.
pub const FRAME_BODY_BYTES_MAX: usize = 2 << 20;

/// Smallest region a node may donate.
pub const REGION_BYTES_MIN: u64 = 1 << 20;
/// Largest region a node may donate.
pub const REGION_BYTES_MAX: u64 = 2 << 30;
/// Region size where none is given.
pub const REGION_BYTES_DEFAULT: u64 = 64 << 20;

/// Regions of one node: its arena, its inventory.
pub const NODE_REGIONS_MAX: usize = 32_768;
/// Regions that one ticket may promise, and one request may name.
pub const LEASE_REGIONS_MAX: usize = 4_096;
/// Tickets in one answer of the broker.
pub const TICKETS_MAX: usize = 256;
/// Nodes of one pool.
pub const NODES_MAX: usize = 512;
/// Host labels that one request may exclude.
pub const APART_MAX: usize = 16;
/// Tenants of one pool that hold something at a time.
pub const TENANTS_MAX: usize = 1_024;
/// Extents of one published file.
pub const NAMED_EXTENTS_MAX: usize = 16_384;
/// Names in one page of a listing.
pub const NAMES_PAGE_MAX: usize = 1_000;
/// Tickets a node remembers as spent until they expire.
pub const SPENT_TICKETS_MAX: usize = 4_096;

/// Bytes of a program that a scan runs.
pub const SCAN_PROGRAM_BYTES_MAX: usize = 64 << 10;
/// Columns that it reads.
pub const SCAN_COLUMNS_MAX: usize = 1_024;
/// Buffers of one of them in a row group.
pub const SCAN_BUFFERS_MAX: usize = 4;
/// Regions that the row groups of a scan lie in.
pub const SCAN_REGIONS_MAX: usize = 4_096;
/// Row groups of a scan.
pub const SCAN_GROUPS_MAX: usize = 4_096;
/// Bytes of a key that a scan needs, and of a table's salt.
pub const SCAN_KEY_BYTES: usize = 16;
/// Bytes of the columns of a row group that a scan reads.
pub const SCAN_GROUP_BYTES_MAX: usize = 64 << 20;
/// Lookups of a scan.
pub const SCAN_LOOKUPS_MAX: usize = 16;
/// Bytes of a lookup.
pub const LOOKUP_BYTES_MAX: usize = 16 << 20;
/// Bytes of a part of one.
pub const LOOKUP_PART_BYTES_MAX: usize = 1 << 20;
/// Bytes of packed batches in one step of a scan.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Ranges of regions that one window is made of.
pub const LANE_PARTS_MAX: usize = 16_384;
/// Milliseconds for which a node lets `OpenLane` wait for a process to run functions in.
pub const LANE_QUEUE_MS: u64 = 10_000;
/// Bytes of a window: what 32-bit addresses reach above a function's own memory, but for the last, so that an address
/// just behind the window is not 0.
pub const WINDOW_BYTES_MAX: u64 = (3 << 30) - (64 << 10);
/// Window parts begin and end on pages.
pub const WINDOW_PAGE_BYTES: u64 = 4_096;
/// Bytes of a function: a module, or a shared object.
pub const FUNCTION_BYTES_MAX: usize = 3 << 19;
/// Types, functions, tables, globals, exports and segments of a module, at most so many of each: what compiling and
/// starting it takes grows with their number.
pub const FUNCTION_ITEMS_MAX: u32 = 10_000;
/// Milliseconds in which a function must be compiled, or loaded.
pub const FUNCTION_READY_MS_MAX: u32 = 10_000;
/// Bytes of the arguments of a call.
pub const FUNCTION_ARGS_BYTES_MAX: usize = 1 << 20;
/// Bytes that say where the columns of a window are.
pub const FUNCTION_COLUMNS_BYTES_MAX: usize = 3 << 19;
/// Bytes of the state that a function hops with.
pub const FUNCTION_STATE_BYTES_MAX: usize = 64 << 10;
/// The most bytes that the output of a call can be asked to have.
pub const FUNCTION_OUTPUT_BYTES_MAX: u32 = 240 << 20;
/// Bytes of an output that travel at once.
pub const FUNCTION_OUTPUT_PIECE_BYTES: usize = 1 << 20;
/// Bytes that a running function is supplied with at once.
pub const FUNCTION_PIECE_BYTES: usize = 64 << 10;
/// Calls inside one another that are told of a fault.
pub const FUNCTION_FRAMES_MAX: usize = 16;
/// Calls that a node tells of when it is asked which run.
pub const RUNNING_CALLS_MAX: usize = 64;

/// Bytes of a name (file, node, host label, client label).
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a tenant's name: one label of a domain name.
pub const TENANT_BYTES_MAX: usize = 63;

/// Bytes of an address or socket name.
pub const TEXT_BYTES_MAX: usize = 512;

// The largest messages of lanes: a window in parts (52 bytes each), a function, a call.
const _: () = assert!(LANE_PARTS_MAX * 52 + 64 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(FUNCTION_BYTES_MAX + NAME_BYTES_MAX + 256 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(FUNCTION_ARGS_BYTES_MAX + FUNCTION_STATE_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(REGION_BYTES_MIN.is_power_of_two() && REGION_BYTES_MAX.is_power_of_two());
// A batch of full size must fit its frame: 40 bytes of table entry per operation.
const _: () = assert!(IO_BYTES_MAX + 8 + BATCH_OPS_MAX * 40 <= FRAME_BODY_BYTES_MAX);
// The largest control messages: a full inventory (21 bytes a region) and a full file (60 bytes an extent).
// (A tenant's name has its length before it, and a count behind it.)
const _: () = assert!(
    NODE_REGIONS_MAX * 21 + SPENT_TICKETS_MAX * 8 + TENANTS_MAX * (NAME_BYTES_MAX + 16) + 4096
        <= FRAME_BODY_BYTES_MAX
);
// A file on every node, each with a name, a label and two addresses of full length.
const NODE_INFO_BYTES_MAX: usize = 2 * (NAME_BYTES_MAX + 8) + 2 * (TEXT_BYTES_MAX + 8) + 48;
const _: () =
    assert!(NAMED_EXTENTS_MAX * 60 + NODES_MAX * NODE_INFO_BYTES_MAX + 4096 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(
    NODES_MAX * (NODE_INFO_BYTES_MAX + 96) + TENANTS_MAX * (NAME_BYTES_MAX + 40) + 4096
        <= FRAME_BODY_BYTES_MAX
);
