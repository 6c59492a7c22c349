//! Types for ids, one for each noun, so that an epoch is never passed where an incarnation is expected.

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

id!(/// Id of a memory node: the first eight bytes of the SHA-256 of its name. It survives restarts.
    NodeId(u64));
id!(/// Id of one life of a node: random, never 0. The bytes of another incarnation are gone.
    Incarnation(u64));
id!(/// Number of one life of a broker. It only grows. A node refuses tickets of a lower term than it has seen.
    Term(u64));
id!(/// Id of a session: one client's use of the pool.
    SessionId(u64));
id!(/// Number by which connections say that they belong to one client: random, and not a proof. 0: none is given.
    ClientId(u64));
id!(/// Id of a ticket: a promise of the broker, which one node redeems once.
    TicketId(u64));
id!(/// Id of a published far file. It stays when the file is renamed, and is never used for another file.
    FileId(u64));
id!(/// Id of a table, whatever its name is: random, chosen by the client that makes the table; never 0.
    TableId(u64));
id!(/// Id of a commit of tables: random, or drawn from a text that its client has chosen; never 0.
    CommitId(u64));

id!(/// Index of a region in its node's arena, counted from 0.
    RegionIndex(u32));
id!(/// Counter that the node keeps for each region. It only grows. With the incarnation it is the fencing token.
    Epoch(u64));

/// Number of a query in logs: random, chosen by the client, and no proof of anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u64);

impl TraceId {
    /// Stands for a request that belongs to no query.
    pub const NONE: TraceId = TraceId(0);
}

impl fmt::Display for TraceId {
    /// Displays 16 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Random capability of 128 bits. Its holder may do with one region, at one epoch, what it was made for.
///
/// Its `Debug` form shows no bits, so that a log never grants anything.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Handle(pub u128);

/// Random secret of 128 bits that proves which session is speaking.
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

/// Tenant of whoever connects without a certificate: processes of this machine.
pub const TENANT_LOCAL: &str = "local";
/// Tenant of the administrator's certificate.
pub const TENANT_ADMIN: &str = "admin";

/// Instant in ns of the clock of one machine that is monotonic and counts suspend (`CLOCK_BOOTTIME`).
///
/// It is never sent to a peer: messages carry durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoNs(pub u64);

impl MonoNs {
    /// Returns this instant plus `ms` milliseconds, or the latest instant there is.
    pub fn plus_ms(self, ms: u64) -> MonoNs {
        MonoNs(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Returns the whole milliseconds from `earlier` to this instant; 0 if `earlier` is later.
    pub fn ms_since(self, earlier: MonoNs) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

/// Purpose of a far file. It decides what a loss means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileClass {
    /// Copies of other data. They may vanish at any time, and a loss is a cache miss.
    Cache,
    /// Temporary data of a running query.
    Scratch,
    /// Tables and views, published under a name, and rebuilt when lost.
    Pinned,
}

impl FileClass {
    /// All classes, in wire order.
    pub const ALL: [FileClass; 3] = [FileClass::Cache, FileClass::Scratch, FileClass::Pinned];

    /// Returns the word used in interfaces: `cache`, `scratch` or `pinned`.
    pub fn word(self) -> &'static str {
        match self {
            FileClass::Cache => "cache",
            FileClass::Scratch => "scratch",
            FileClass::Pinned => "pinned",
        }
    }

    /// Returns the class that a word names; `None` if it names none.
    pub fn from_word(word: &str) -> Option<FileClass> {
        FileClass::ALL.into_iter().find(|class| class.word() == word)
    }
}

impl fmt::Display for FileClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
