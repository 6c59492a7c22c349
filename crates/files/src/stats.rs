//! Counters of a session, updated without locks.

use farpool_wire::FileClass;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a session since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl Stats {
            /// Returns every counter with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

stats! {
    /// Ranges that were read.
    read_ops,
    /// Bytes read.
    bytes_read,
    /// Ranges that were written.
    write_ops,
    /// Bytes written.
    bytes_written,
    /// Ranges of `read_ops` that were copied from mapped memory, without a request.
    mapped_read_ops,
    /// Bytes of these ranges.
    mapped_bytes_read,
    /// Ranges of `write_ops` that were copied to mapped memory, without a request.
    mapped_write_ops,
    /// Bytes of these ranges.
    mapped_bytes_written,
    /// Bytes of `bytes_written` that went to scratch files, such as those that engines spill to.
    scratch_bytes_written,
    /// Requests sent to the broker.
    broker_calls,
    /// Bytes of the regions held now.
    leased_bytes,
    /// Bytes of extents allocated in these regions now.
    used_bytes,
    /// Bytes of all regions leased since the session was opened.
    leased_bytes_total,
    /// Operations that failed.
    failed_ops,
    /// Nodes lost.
    nodes_lost,
    /// Bytes of copies dropped because a write did not reach them or their node was lost.
    dropped_copy_bytes,
    /// Bytes of protected files that the next loss would destroy: their second copy is not made yet, or the local disk
    /// has not taken them.
    unprotected_bytes,
    /// Bytes of lost copies made again in the background.
    repaired_bytes,
    /// Bytes written to the local disk.
    disk_bytes_written,
    /// Bytes read from the local disk because no node had them any more.
    disk_bytes_read,
    /// Nanoseconds that threads of this process spun while they waited for nodes, summed over all pools.
    spun_ns,
    /// Row groups of far tables that queries needed.
    row_groups_read,
    /// Row groups that queries skipped because their statistics show that no row passes the filters.
    row_groups_skipped,
}

impl Counters {
    /// Counts ranges that were read.
    pub(crate) fn count_read(&self, ranges: usize, bytes: u64) {
        add(&self.read_ops, ranges as u64);
        add(&self.bytes_read, bytes);
    }

    /// Counts ranges that were written to a file of this class.
    pub(crate) fn count_write(&self, class: FileClass, ranges: usize, bytes: u64) {
        add(&self.write_ops, ranges as u64);
        add(&self.bytes_written, bytes);
        if class == FileClass::Scratch {
            add(&self.scratch_bytes_written, bytes);
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, count: u64) {
    counter.fetch_sub(count, Ordering::Relaxed);
}
