//! Costs that are assumed before anything was measured.
//!
//! The values are rounded from `docs/measurements`. They only need to be good enough for a first choice, because the
//! first row groups correct them.

/// Bytes a second of columns copied out of shared memory: fetching 512 MiB took 76 to 116 ms.
pub const MEMORY_RATE: f64 = 6e9;
/// Bytes a second of columns over tcp between processes of one host: fetching 512 MiB took 214 to 295 ms.
pub const LOOPBACK_RATE: f64 = 2e9;
/// Bytes a second between hosts whose link was never measured: 10 Gbit/s.
pub const LINK_RATE: f64 = 1.17e9;
/// Round trip in ns, over tcp or the ring in shared memory: an empty call, with the time to wake the peer.
pub const ROUND_TRIP_NS: f64 = 50e3;

/// CPU nanoseconds of both ends for each byte over tcp: 0.56 to 0.64 s for a GiB.
pub const TCP_CPU_NS: f64 = 0.56;
/// CPU nanoseconds of both ends for each byte through shared memory: 0.15 s for a GiB.
pub const MEMORY_CPU_NS: f64 = 0.14;

/// Nanoseconds for each byte read, in each pass over it: selecting columns runs at 15 GB/s.
pub const PASS_NS: f64 = 0.07;
/// Nanoseconds for each byte of rows that are looked up among groups or in keys of a join. Rows of 64 bytes, of which
/// 16 are used, were grouped into a thousand groups at 29 GB/s: 7 GB/s of the bytes used.
pub const LOOK_UP_NS: f64 = 0.14;
/// Nanoseconds for each byte of text that a pattern is searched in: 2 to 5 GB/s.
pub const PATTERN_NS: f64 = 0.4;
/// Nanoseconds to decrypt each byte: AES-128-GCM runs at 11 GB/s.
pub const DECRYPT_NS: f64 = 0.09;
/// Nanoseconds at the client to decode each byte of results.
pub const UNPACK_NS: f64 = 0.1;
/// Nanoseconds to merge each byte of partial results that are rows. They are only concatenated.
pub const MERGE_ROWS_NS: f64 = 0.02;
/// Nanoseconds to merge each byte of partial results that are groups: two million of 24 bytes took some 100 ms.
pub const MERGE_GROUPS_NS: f64 = 2.0;

/// Share of rows that pass a filter, if nothing is known of it.
pub const PASSING: f64 = 0.25;
/// Number of groups of a grouping, if nothing is known of it.
pub const GROUPS: f64 = 4_096.0;

/// Nanoseconds to start a fetch: it starts a thread.
pub const FETCH_START_NS: f64 = 60e3;
/// Nanoseconds to start a shipped step: it opens and closes scans at nodes. A shipped query over 64 KiB takes 80 to
/// 400 us.
pub const SHIP_START_NS: f64 = 120e3;
/// Nanoseconds to start a split: it starts a thread, opens scans, and claims row groups for the client.
pub const SPLIT_START_NS: f64 = 220e3;
/// Bytes of the first request of a fetch; the client begins when they have arrived.
pub const FETCH_BYTES: f64 = (8 << 20) as f64;
