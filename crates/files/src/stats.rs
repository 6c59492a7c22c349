//! What a session did and holds, counted without locks.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A reading of a session's counters, since it was opened.
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
            /// Every counter with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

stats! {
    /// Reads asked for.
    read_ops,
    /// Bytes read.
    bytes_read,
    /// Writes asked for.
    write_ops,
    /// Bytes written.
    bytes_written,
    /// Questions put to the broker.
    broker_calls,
    /// Bytes of regions held now.
    leased_bytes,
    /// Bytes of extents cut from them now.
    used_bytes,
    /// Bytes of regions leased in all.
    leased_bytes_total,
    /// Operations that failed.
    failed_ops,
    /// Nodes lost.
    nodes_lost,
    /// Bytes of copies dropped because a write did not reach them, or their node was lost.
    dropped_copy_bytes,
    /// Bytes of protected files that could not survive the next loss now: their second copy is still to be
    /// made, or the local disk has not taken them.
    unprotected_bytes,
    /// Bytes of copies made anew in the background.
    repaired_bytes,
    /// Bytes written to the local disk.
    disk_bytes_written,
    /// Bytes read from the local disk, because no node had them any more.
    disk_bytes_read,
    /// Nanoseconds that threads of this process have spun while they waited for nodes, in all pools together.
    spun_ns,
    /// Row groups of far tables that queries needed.
    row_groups_read,
    /// Row groups that queries passed over, as their statistics show that no row passes the filters.
    row_groups_skipped,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, count: u64) {
    counter.fetch_sub(count, Ordering::Relaxed);
}
