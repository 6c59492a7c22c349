//! Limits of every count and size that may appear in a frame. They keep invariant I10: no bytes of a peer cause a
//! panic, an allocation without a bound, or an endless loop.

/// Oldest protocol version that this code speaks.
pub const VERSION_MIN: u8 = 1;
/// Newest protocol version that this code speaks.
pub const VERSION_MAX: u8 = 4;
/// First protocol version whose requests carry a trace id.
pub const VERSION_TRACES: u8 = 2;
/// First protocol version in which nodes tell which memory they donate.
pub const VERSION_MEMORY: u8 = 2;
/// First protocol version in which published files may have several copies.
pub const VERSION_COPIES: u8 = 3;
/// First protocol version in which small published files share regions, and tables have snapshots.
pub const VERSION_SEGMENTS: u8 = 4;

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 40;
/// Most file bytes that one data frame carries, in either direction.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Most reads or writes in one batch frame.
pub const BATCH_OPS_MAX: usize = 256;
/// Most bytes of a frame body. A full batch with its table fits, and so does the largest control message.
pub const FRAME_BODY_BYTES_MAX: usize = 2 << 20;

/// Bytes of the smallest region that a node may donate.
pub const REGION_BYTES_MIN: u64 = 1 << 20;
/// Bytes of the largest region that a node may donate.
pub const REGION_BYTES_MAX: u64 = 2 << 30;
/// Bytes of a region if no size is given.
pub const REGION_BYTES_DEFAULT: u64 = 64 << 20;

/// Most regions of one node, in its memory and in its report.
pub const NODE_REGIONS_MAX: usize = 32_768;
/// Most regions that one ticket promises or one request names.
pub const LEASE_REGIONS_MAX: usize = 4_096;
/// Most ranges of one request to copy them into segments.
pub const SEALED_RANGES_MAX: usize = 4_096;
/// Most ranges of a node's segments of which it does not know yet whether a name owns them.
pub const PENDING_RANGES_MAX: usize = 32_768;
/// Most tickets in one answer of the broker.
pub const TICKETS_MAX: usize = 256;
/// Most nodes of one pool.
pub const NODES_MAX: usize = 512;
/// Most failure domains that one request excludes.
pub const APART_MAX: usize = 16;
/// Most levels of a host label, such as the three of `zone/rack/host`. Further slashes belong to the host's name.
pub const HOST_LABEL_LEVELS_MAX: usize = 8;
/// Most tenants of one pool that hold something at a time.
pub const TENANTS_MAX: usize = 1_024;
/// Most runs of one published file.
pub const NAMED_EXTENTS_MAX: usize = 16_384;
/// Most bytes of an extent that a client of a version before [`VERSION_COPIES`] reads.
pub const NAMED_EXTENT_BYTES_MAX: u64 = 1 << 20;
/// Most regions of one published file, with all copies.
pub const NAMED_REGIONS_MAX: usize = 16_384;
/// Most copies of a run of a published file.
pub const RUN_COPIES_MAX: usize = 2;
/// Bytes of the recipe of a published file, at most.
pub const RECIPE_BYTES_MAX: usize = 64 << 10;
/// Most runs with bytes of the file in a stripe of a published file.
pub const STRIPE_DATA_MAX: usize = 12;
/// Most runs with parity in a stripe.
pub const STRIPE_PARITY_MAX: usize = 4;
/// Most runs in a stripe.
pub const STRIPE_SHARDS_MAX: usize = STRIPE_DATA_MAX + STRIPE_PARITY_MAX;
/// Most stripes of one published file: each has a run with bytes and one with parity.
pub const STRIPES_MAX: usize = NAMED_EXTENTS_MAX / 2;
/// Most runs that one order has computed from others.
pub const REPAIR_COMPUTED_MAX: usize = 256;
/// Most runs that one order to make copies names.
pub const REPAIR_RUNS_MAX: usize = 4_096;
/// Most regions that such an order names.
pub const REPAIR_REGIONS_MAX: usize = 4_096;
/// Most nodes that such an order names.
pub const REPAIR_NODES_MAX: usize = 64;
/// Most files in the list of files that lack copies.
pub const REPAIRS_LISTED_MAX: usize = 100;
/// Most tables that one commit changes.
pub const COMMIT_TABLES_MAX: usize = 8;
/// Most parts that one request adds to a table. A transaction of etcd with them stays within its limits.
pub const COMMIT_PARTS_MAX: usize = 48;
/// Most ranges of parts that one commit removes from a table, or gives back to it.
pub const PARTS_REMOVED_MAX: usize = 16_384;
/// Most bytes of what clients show of a commit.
pub const SUMMARY_BYTES_MAX: usize = 1_024;
/// Most parts whose places one request asks for.
pub const OPENED_PARTS_MAX: usize = 1_024;
/// Most snapshots that a session holds.
pub const HELD_SNAPSHOTS_MAX: usize = 4_096;
/// Most snapshots in one page of a listing.
pub const SNAPSHOTS_PAGE_MAX: usize = 256;
/// Most names whose changes one request waits for.
pub const AWAITED_NAMES_MAX: usize = 256;
/// Longest time for which a broker delays the answer to such a request, in ms.
pub const AWAIT_MS_MAX: u32 = 30_000;
/// Most names in one page of a listing.
pub const NAMES_PAGE_MAX: usize = 1_000;
/// Most spent (redeemed) tickets that a node remembers until they expire.
pub const SPENT_TICKETS_MAX: usize = 4_096;

/// Most bytes of a program that a scan runs.
pub const SCAN_PROGRAM_BYTES_MAX: usize = 64 << 10;
/// Most columns that a scan's program reads.
pub const SCAN_COLUMNS_MAX: usize = 1_024;
/// Most buffers of one column in a row group.
pub const SCAN_BUFFERS_MAX: usize = 4;
/// Most regions that the row groups of a scan lie in.
pub const SCAN_REGIONS_MAX: usize = 4_096;
/// Most row groups of a scan.
pub const SCAN_GROUPS_MAX: usize = 4_096;
/// Bytes of a key for a scan, and of a table's salt.
pub const SCAN_KEY_BYTES: usize = 16;
/// Most bytes of the columns of one row group that a scan reads.
pub const SCAN_GROUP_BYTES_MAX: usize = 64 << 20;
/// Most lookups (sets of keys, or Bloom filters of them, for semi-joins) of a scan.
pub const SCAN_LOOKUPS_MAX: usize = 16;
/// Most bytes of a lookup.
pub const LOOKUP_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a lookup that one `PutLookup` carries.
pub const LOOKUP_PART_BYTES_MAX: usize = 1 << 20;
/// Most bytes of batches of rows in one chunk of a scan.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Most ranges of regions that one window (range of a file that functions see) consists of.
pub const LANE_PARTS_MAX: usize = 16_384;
/// Most nodes to which calls of a lane may hop.
pub const LANE_PEERS_MAX: usize = 64;
/// Time that a node lets `OpenLane` wait for a process that runs functions, in ms.
pub const LANE_QUEUE_MS: u64 = 10_000;
/// Most bytes of a window: all that 32-bit addresses reach above a function's own memory, except the last 64 KiB.
/// Without that gap, the address just behind the window would be 0.
pub const WINDOW_BYTES_MAX: u64 = (3 << 30) - (64 << 10);
/// Bytes of a page. The ranges of a window begin and end on pages.
pub const WINDOW_PAGE_BYTES: u64 = 4_096;
/// Most bytes of a function: a module, or a shared object.
pub const FUNCTION_BYTES_MAX: usize = 3 << 19;
/// Most types, functions, tables, globals, exports or segments of a module, of each. The work of compiling and
/// starting a module grows with their number.
pub const FUNCTION_ITEMS_MAX: u32 = 10_000;
/// CPU time in which a function must be compiled or loaded, in ms. Most need a fraction of a second.
pub const FUNCTION_READY_CPU_MS_MAX: u32 = 60_000;
/// Time in which a function must be compiled or loaded, in ms. A process of low priority may have a hundredth of a CPU.
pub const FUNCTION_READY_MS_MAX: u32 = 300_000;
/// Most bytes of the arguments of a call.
pub const FUNCTION_ARGS_BYTES_MAX: usize = 1 << 20;
/// Most bytes that describe the columns of a window.
pub const FUNCTION_COLUMNS_BYTES_MAX: usize = 3 << 19;
/// Most bytes of the state that a function takes along when it moves to another node.
pub const FUNCTION_STATE_BYTES_MAX: usize = 64 << 10;
/// Largest limit on the output of a call that a client can ask for, in bytes.
pub const FUNCTION_OUTPUT_BYTES_MAX: u32 = 240 << 20;
/// Most bytes of an output in one message.
pub const FUNCTION_OUTPUT_PIECE_BYTES: usize = 1 << 20;
/// Bytes of the block that one `Supply` gives to a running function.
pub const FUNCTION_PIECE_BYTES: usize = 64 << 10;
/// Most stack frames in the report of a fault.
pub const FUNCTION_FRAMES_MAX: usize = 16;
/// Most running calls that a node lists in one answer.
pub const RUNNING_CALLS_MAX: usize = 64;

/// Most bytes of a name (file, node, host label, client label).
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a tenant's name, which is one label of a domain name.
pub const TENANT_BYTES_MAX: usize = 63;

/// Most bytes of an address or socket name.
pub const TEXT_BYTES_MAX: usize = 512;

// The largest messages of lanes fit: a window with all its ranges (52 bytes each), a function, a call.
const _: () = assert!(LANE_PARTS_MAX * 52 + 64 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(FUNCTION_BYTES_MAX + NAME_BYTES_MAX + 256 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(FUNCTION_ARGS_BYTES_MAX + FUNCTION_STATE_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(REGION_BYTES_MIN.is_power_of_two() && REGION_BYTES_MAX.is_power_of_two());
// A request for memory excludes the hosts of all other runs of a stripe.
const _: () = assert!(STRIPE_SHARDS_MAX - 1 <= APART_MAX);
// A batch of full size fits: 40 bytes of table entry for each operation.
const _: () = assert!(IO_BYTES_MAX + 8 + BATCH_OPS_MAX * 40 <= FRAME_BODY_BYTES_MAX);
// The largest control messages fit: a full inventory (21 bytes for each region) and a full file (60 bytes for each
// extent). A tenant's name stands between its length and a count.
const _: () = assert!(
    NODE_REGIONS_MAX * 21 + SPENT_TICKETS_MAX * 8 + TENANTS_MAX * (NAME_BYTES_MAX + 16) + 4096
        <= FRAME_BODY_BYTES_MAX
);
// A file on every node, each with a name, a label and two addresses of full length, fits as well. So does one with
// copies: 44 bytes for each region, 12 for each run and 8 for each of its copies. Stripes take no more: 8 bytes each
// and 4 for each run, which then has one copy.
const NODE_INFO_BYTES_MAX: usize = 2 * (NAME_BYTES_MAX + 8) + 2 * (TEXT_BYTES_MAX + 8) + 48;
const _: () =
    assert!(NAMED_EXTENTS_MAX * 60 + NODES_MAX * NODE_INFO_BYTES_MAX + 4096 <= FRAME_BODY_BYTES_MAX);
const _: () =
    assert!(STRIPES_MAX * 8 + NAMED_EXTENTS_MAX * (4 + 8) <= NAMED_EXTENTS_MAX * 8 * RUN_COPIES_MAX);
const _: () = assert!(
    NAMED_REGIONS_MAX * 44
        + NAMED_EXTENTS_MAX * (12 + 8 * RUN_COPIES_MAX)
        + NODES_MAX * NODE_INFO_BYTES_MAX
        + RECIPE_BYTES_MAX
        + 4096
        <= FRAME_BODY_BYTES_MAX
);
const _: () = assert!(
    PENDING_RANGES_MAX * 16 + NODE_REGIONS_MAX * 16 + TENANTS_MAX * (NAME_BYTES_MAX + 8) + 4096
        <= FRAME_BODY_BYTES_MAX
);
const _: () = assert!(
    NODES_MAX * (NODE_INFO_BYTES_MAX + 96) + TENANTS_MAX * (NAME_BYTES_MAX + 40) + 4096
        <= FRAME_BODY_BYTES_MAX
);
// So does an order to make copies: 20 bytes for each run and 8 for each source of it, and one behind its length. A run
// that is computed takes 11 bytes, and 13 for each run that it is computed from.
const _: () = assert!(
    REPAIR_RUNS_MAX * (20 + 4 + 8 * RUN_COPIES_MAX)
        + REPAIR_REGIONS_MAX * 44
        + REPAIR_COMPUTED_MAX * (11 + 13 * STRIPE_SHARDS_MAX)
        + REPAIR_NODES_MAX * NODE_INFO_BYTES_MAX
        + 4096
        <= FRAME_BODY_BYTES_MAX
);
