//! What is believed before anything was measured. From the figures of `docs/performance.md`, rounded: they only have
//! to be right enough for a first choice, which is corrected by the first row groups.

/// Bytes a second of columns copied out of shared memory: 512 MiB were fetched in 76 to 116 ms.
pub const MEMORY_RATE: f64 = 6e9;
/// The same by tcp between processes of one host: 512 MiB in 214 to 295 ms.
pub const LOOPBACK_RATE: f64 = 2e9;
/// The same between hosts of which nothing is known: 10 Gbit/s.
pub const LINK_RATE: f64 = 1.17e9;
/// An empty call over tcp, and over the ring of shared memory, with what waking takes.
pub const ROUND_TRIP_NS: f64 = 50e3;

/// CPU time of both ends for each byte over tcp: 0.56 to 0.64 s for a GiB.
pub const TCP_CPU_NS: f64 = 0.56;
/// The same through shared memory: 0.15 s for a GiB.
pub const MEMORY_CPU_NS: f64 = 0.14;

/// Nanoseconds for each byte that is read, and each pass over it: a selection of columns runs at 15 GB/s.
pub const PASS_NS: f64 = 0.07;
/// The same for rows that are looked up among groups, or in keys of a join: a thousand groups of 16 bytes a row run at
/// 29 GB/s of rows of 64.
pub const LOOK_UP_NS: f64 = 0.14;
/// The same for texts that a pattern is looked for in: 2 to 5 GB/s.
pub const PATTERN_NS: f64 = 0.4;
/// The same for opening what is encrypted: AES-128-GCM runs at 11 GB/s.
pub const OPENING_NS: f64 = 0.09;
/// Nanoseconds for each byte of results that is unpacked here.
pub const UNPACK_NS: f64 = 0.1;
/// Nanoseconds for each byte of partial results that is merged: rows are only put behind one another.
pub const MERGE_ROWS_NS: f64 = 0.02;
/// The same for groups: two million of 24 bytes took some 100 ms.
pub const MERGE_GROUPS_NS: f64 = 2.0;

/// Of a filter of which nothing is known, the share of rows that pass.
pub const PASSING: f64 = 0.25;
/// Of a grouping of which nothing is known, its groups.
pub const GROUPS: f64 = 4_096.0;

/// What it takes to begin: a thread that fetches; scans that are opened and closed (a shipped query over 64 KiB takes
/// 80 to 400 us); both, and claims.
pub const FETCH_START_NS: f64 = 60e3;
/// See [`FETCH_START_NS`].
pub const SHIP_START_NS: f64 = 120e3;
/// See [`FETCH_START_NS`].
pub const SPLIT_START_NS: f64 = 220e3;
/// Bytes that are fetched by one request, for the client to begin with.
pub const FETCH_BYTES: f64 = (8 << 20) as f64;
