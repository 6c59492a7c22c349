//! One type per noun, so that an epoch is never passed where an incarnation is meant.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(/// A memory node, by the first eight bytes of the SHA-256 of its name. Survives restarts.
    NodeId(u64));
id!(/// One life of a node; random, never zero. The bytes of another incarnation are gone.
    Incarnation(u64));
id!(/// One life of a broker; only ever grows. A node refuses tickets of a lower term than it has seen.
    Term(u64));
id!(/// One client's life with the pool.
    SessionId(u64));
id!(/// Whoever several connections belong to, as it says: random, and no proof of anything. 0: nobody says.
    ClientId(u64));
id!(/// A promise of the broker, redeemed at one node once.
    TicketId(u64));
id!(/// A published far file, whatever its name is at the moment. Never reused.
    FileId(u64));
id!(/// The place of a region in its node's arena, counted from 0.
    RegionIndex(u32));
id!(/// Minted by the node per region; only ever grows. With the incarnation it is the fencing token.
    Epoch(u64));

/// A 128-bit random capability: whoever holds it may do what it was minted for, at its epoch.
///
/// Its `Debug` form shows no bits, so that a log never grants anything.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Handle(pub u128);

/// A 128-bit random secret that proves which session is speaking.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret(pub u128);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(..)")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The tenant of whoever connects without a certificate: processes of this machine.
pub const TENANT_LOCAL: &str = "local";
/// The tenant of the administrator's certificate.
pub const TENANT_ADMIN: &str = "admin";

/// Nanoseconds on a monotonic clock that counts suspend (`CLOCK_BOOTTIME`) of one machine.
///
/// Never sent to a peer: durations travel, instants do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoNs(pub u64);

impl MonoNs {
    /// This instant plus `ms` milliseconds, or the end of time.
    pub fn plus_ms(self, ms: u64) -> MonoNs {
        MonoNs(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Whole milliseconds from `earlier` to this instant; 0 if `earlier` is later.
    pub fn ms_since(self, earlier: MonoNs) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

/// What a far file is for, which decides what losing it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileClass {
    /// Discardable: may vanish at any time; a loss is a miss.
    Cache,
    /// Temporary data of a running query.
    Scratch,
    /// Tables and views, published under a name; rebuilt when lost.
    Pinned,
}

impl FileClass {
    /// All classes, in wire order.
    pub const ALL: [FileClass; 3] = [FileClass::Cache, FileClass::Scratch, FileClass::Pinned];

    /// The word used in interfaces: `cache`, `scratch` or `pinned`.
    pub fn word(self) -> &'static str {
        match self {
            FileClass::Cache => "cache",
            FileClass::Scratch => "scratch",
            FileClass::Pinned => "pinned",
        }
    }

    /// The class a word names, or nothing.
    pub fn from_word(word: &str) -> Option<FileClass> {
        FileClass::ALL.into_iter().find(|class| class.word() == word)
    }
}

impl fmt::Display for FileClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
