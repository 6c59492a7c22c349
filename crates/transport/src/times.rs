//! Histograms of how long a service took to answer, by operation and transport.
//!
//! Counting happens on the data path, so a count is two relaxed additions to memory that connections on other CPUs
//! rarely touch: callers are spread over [`SHARDS`] copies of all counters. Readers sum the copies.

use farpool_wire::Opcode;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets in ns. One more bucket has what took longer than the last of them.
pub const BOUNDS_NS: [u64; 12] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    10_000_000_000,
];
/// Copies of the counters.
const SHARDS: usize = 8;
/// Kinds of connections.
const KINDS: usize = ConnectionKind::ALL.len();

/// Kind of the connection on which an operation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionKind {
    /// TCP without encryption.
    Tcp,
    /// TCP with TLS.
    Tls,
    /// Shared memory of this host. Reads and writes of mapped regions are not seen by the service.
    Shm,
}

impl ConnectionKind {
    const ALL: [ConnectionKind; 3] = [ConnectionKind::Tcp, ConnectionKind::Tls, ConnectionKind::Shm];
}

impl fmt::Display for ConnectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectionKind::Tcp => "tcp",
            ConnectionKind::Tls => "tls",
            ConnectionKind::Shm => "shm",
        })
    }
}

/// Times of one operation on one kind of connection.
#[derive(Default)]
struct Cell {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// Counters of the connections whose number has the same remainder. Aligned, so that no two shards share a cache line.
#[repr(align(128))]
struct Shard(Box<[[Cell; KINDS]]>);

/// Histograms of a service, by operation and transport.
pub struct OperationTimes {
    shards: [Shard; SHARDS],
}

/// Histogram of one operation on one kind of connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationTime {
    /// Operation.
    pub opcode: Opcode,
    /// Kind of connection.
    pub kind: ConnectionKind,
    /// Number of operations in each bucket of [`BOUNDS_NS`], and of those that took longer.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// Sum of the times in ns.
    pub sum_ns: u64,
}

impl Default for OperationTimes {
    fn default() -> Self {
        OperationTimes {
            shards: std::array::from_fn(|_| Shard(Opcode::ALL.iter().map(|_| Default::default()).collect())),
        }
    }
}

impl fmt::Debug for OperationTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationTimes").finish_non_exhaustive()
    }
}

impl OperationTimes {
    /// Counts an operation that took `ns`. The number chooses the copy of the counters.
    pub fn note(&self, number: u64, kind: ConnectionKind, opcode: Opcode, ns: u64) {
        let Ok(index) = Opcode::ALL.binary_search(&opcode) else { return };
        let Shard(cells) = &self.shards[number as usize % SHARDS];
        let cell = &cells[index][kind as usize];
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        cell.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        cell.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the histograms of all operations that have been counted.
    pub fn read(&self) -> Vec<OperationTime> {
        let mut read = Vec::new();
        for (index, opcode) in Opcode::ALL.iter().enumerate() {
            for kind in ConnectionKind::ALL {
                let cells = || self.shards.iter().map(|Shard(cells)| &cells[index][kind as usize]);
                let sum = |of: &dyn Fn(&Cell) -> u64| cells().map(of).fold(0, u64::wrapping_add);
                let time = OperationTime {
                    opcode: *opcode,
                    kind,
                    buckets: std::array::from_fn(|bucket| {
                        sum(&|cell| cell.buckets[bucket].load(Ordering::Relaxed))
                    }),
                    sum_ns: sum(&|cell| cell.sum_ns.load(Ordering::Relaxed)),
                };
                if time.buckets.iter().any(|count| *count > 0) {
                    read.push(time);
                }
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_operation_transport_and_bucket() {
        let times = OperationTimes::default();
        for connection in 0..20 {
            times.note(connection, ConnectionKind::Tcp, Opcode::Read, 10_000);
        }
        times.note(1, ConnectionKind::Tcp, Opcode::Read, 10_001);
        times.note(1, ConnectionKind::Tcp, Opcode::Read, 11_000_000_000);
        times.note(9, ConnectionKind::Shm, Opcode::Attach, 5);
        let read = times.read();
        let [attach, reads] = &read[..] else { panic!("{read:?}") };
        assert_eq!((attach.opcode, attach.kind, attach.sum_ns), (Opcode::Attach, ConnectionKind::Shm, 5));
        assert_eq!((reads.opcode, reads.kind), (Opcode::Read, ConnectionKind::Tcp));
        let counts: Vec<(usize, u64)> =
            reads.buckets.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(0, 20), (1, 1), (12, 1)]);
        assert_eq!(reads.sum_ns, 20 * 10_000 + 10_001 + 11_000_000_000);
    }

    #[test]
    fn every_opcode_has_counters() {
        let times = OperationTimes::default();
        for opcode in Opcode::ALL {
            times.note(0, ConnectionKind::Tls, *opcode, 1);
        }
        assert_eq!(times.read().len(), Opcode::ALL.len(), "the opcodes are sorted");
    }
}
