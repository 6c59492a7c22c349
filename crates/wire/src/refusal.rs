//! Refusals: a code and one number each. The reader makes the sentence, so no text of a peer ever reaches a log or a
//! user.

use crate::function::{FunctionFault, FunctionForm};
use crate::limits::{VERSION_MAX, VERSION_MIN};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// Reason of a refusal. The comment of each variant says what [`Refusal::detail`] means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $value),* }

        impl Code {
            /// All codes, in wire order.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// Returns the code with this number on the wire; `None` if there is none.
            pub fn from_wire(value: u16) -> Option<Code> {
                match value { $($value => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// Region at another epoch (fencing counter) than the request says; detail: the region's epoch.
    StaleEpoch = 1,
    /// Handle that was not made for this region and right; detail: 0.
    WrongHandle = 2,
    /// Range that leaves the region; detail: bytes of the region.
    OutOfBounds = 3,
    /// Region that is sealed and can only be read; detail: 0.
    Sealed = 4,
    /// Lease that ran out and is in its grace, so it must be renewed first; detail: 0.
    LeaseExpired = 5,
    /// Region index that the node does not have; detail: number of regions of the node.
    NoSuchRegion = 6,
    /// Not enough free memory; detail: what is free, in bytes from a broker, in regions from a node.
    Exhausted = 7,
    /// Ticket whose time is over; detail: milliseconds since then.
    TicketExpired = 8,
    /// Ticket that was redeemed before; detail: its id.
    TicketSpent = 9,
    /// Ticket with a wrong signature; detail: 0.
    TicketForged = 10,
    /// Message for another life (run of the process) of this node; detail: the present incarnation.
    WrongIncarnation = 11,
    /// Ticket of an older term than this node has seen; detail: the term seen.
    OldTerm = 12,
    /// Session that is not known here: it never was, or it expired; detail: its id.
    UnknownSession = 13,
    /// Secret of another session; detail: the id of the session that the request names.
    WrongSecret = 14,
    /// Name that is taken; detail: the file's id, or 0 if the asker may not see the file.
    NameTaken = 15,
    /// Name of no file; detail: the id of the file that was to be replaced, or 0.
    NoSuchName = 16,
    /// File that lost bytes with a node; detail: the node's id.
    FileLost = 17,
    /// Operation that this peer does not serve; detail: the opcode.
    Unsupported = 18,
    /// Message that is not well-formed; detail: the opcode.
    Malformed = 19,
    /// No common protocol version; detail: the newest one that the peer speaks.
    VersionMismatch = 20,
    /// Failure of the broker's store, so that nothing was promised; detail: 0.
    StoreFailed = 21,
    /// Region that is not shared memory, or caller that is not on this host; detail: 0.
    NotShared = 22,
    /// Limit on the number of things that one peer may hold; detail: the limit.
    LimitReached = 23,
    /// No node to serve, or a node that has not come back yet; detail: its id, or 0.
    NoNodes = 24,
    /// Memory that the operating system refused to the node; detail: bytes asked for.
    OutOfMemory = 25,
    /// Region that the node has not yet reported as sealed (immutable), detail: the node's id; or memory of nodes that
    /// may still report, or come to a broker that has just started, detail: 0. Ask again soon.
    NotReported = 26,
    /// Operation that this identity may not ask for; detail: the opcode.
    NotPermitted = 27,
    /// More than the tenant's quota permits; detail: bytes that it may still get.
    OverQuota = 28,
    /// Session or ticket of another tenant; detail: 0.
    WrongTenant = 29,
    /// Node that is being emptied and grants nothing; detail: 0.
    Draining = 30,
    /// Scan that is not known here: it never was, or it ended; detail: 0.
    NoSuchScan = 31,
    /// Program that cannot be run; detail: the operator, counted from 0, or 2^64 - 1 if it is no program at all.
    BadProgram = 32,
    /// Program that was stopped, because a value did not fit or it reached a bound; detail: row groups that it had
    /// been run over.
    ProgramStopped = 33,
    /// Program that has crashed or reached a bound before, and is not run again for a while; detail: 0.
    Quarantined = 34,
    /// Row group whose bytes are not columns as described; detail: its number in the scan.
    BadColumns = 35,
    /// Row group that does not decrypt under the scan's key; detail: its number in the scan.
    NotOpened = 36,
    /// Lookup that is not there, is not complete, or has invalid bytes; detail: its number in the scan, or how many
    /// of its bytes had come.
    BadLookup = 37,
    /// Function whose hash or name is not known here; detail: 0.
    NoSuchFunction = 38,
    /// Function that cannot be used; detail: a `FunctionFault`.
    BadFunction = 39,
    /// Form of functions that the node does not run; detail: the form.
    NoFunctions = 40,
    /// Function without a trusted signature; detail: number of keys that are trusted.
    NotTrusted = 41,
    /// Window (range of a file for functions) that is not valid; detail: the range, counted from 0, or 2^64 - 1 for the
    /// whole.
    BadWindow = 42,
    /// Sandbox process that could not be started; detail: 0.
    NoSandbox = 43,
    /// Broker that does not lead this pool: ask the others, and retry soon, for perhaps nobody leads yet; detail: 0.
    NotLeader = 44,
    /// Sandbox processes that did not become free in time; detail: how many there are at a time.
    SandboxesBusy = 45,
    /// Copies of a run of a file that lie in one failure domain (host label); detail: the run, counted from 0.
    CopiesTogether = 46,
    /// Table whose root is not the one that a commit expects; detail: number of the table's latest snapshot, or 0.
    Conflict = 47,
    /// Snapshot that has ended, or never was; detail: its number.
    SnapshotEnded = 48,
    /// Commit that has ended: it was given up, its session was silent for too long, or it is done; detail: 0.
    CommitEnded = 49,
    /// Name that only commits of tables give to files; detail: 0.
    ReservedName = 50,
}

/// Refusal: a reason and one number that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the refusal.
    pub code: Code,
    /// Number whose meaning depends on the code.
    pub detail: u64,
}

impl Refusal {
    /// Returns a refusal.
    pub fn new(code: Code, detail: u64) -> Self {
        Refusal { code, detail }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.detail;
        match self.code {
            Code::StaleEpoch => {
                write!(f, "the right to the region has ended (its epoch is now {detail})")
            }
            Code::WrongHandle => {
                f.write_str("the handle belongs to another region, or to a file of another name")
            }
            Code::OutOfBounds => write!(f, "the range is outside the region, which has {detail} bytes"),
            Code::Sealed => f.write_str("the region is sealed: it can only be read"),
            Code::LeaseExpired => f.write_str("the lease has expired and was not renewed"),
            Code::NoSuchRegion => write!(f, "no such region: the node has {detail} regions"),
            Code::Exhausted => write!(f, "the pool is full ({detail} free)"),
            Code::TicketExpired => write!(f, "the ticket expired {detail} ms ago"),
            Code::TicketSpent => write!(f, "ticket {detail} was redeemed before"),
            Code::TicketForged => f.write_str("the ticket's signature is wrong"),
            Code::WrongIncarnation => {
                f.write_str("the node has restarted and lost the memory it held before")
            }
            Code::OldTerm => write!(f, "the ticket is from an older broker term than {detail}"),
            Code::UnknownSession => write!(
                f,
                "session {detail:016x} is not known: it has ended, or nothing was heard of it for longer than its lease"
            ),
            Code::WrongSecret => write!(f, "the secret is not that of session {detail:016x}"),
            Code::NameTaken if detail == 0 => f.write_str("the name is taken"),
            Code::NameTaken => write!(f, "the name is taken (by file {detail})"),
            Code::NoSuchName => f.write_str("no file of this name"),
            Code::FileLost => {
                f.write_str("the file has lost bytes: no memory node has them any more")
            }
            Code::Unsupported => write!(f, "the peer does not support operation {detail}"),
            Code::Malformed => write!(f, "the peer could not read the message (opcode {detail})"),
            Code::VersionMismatch => write!(
                f,
                "no common protocol version: the peer speaks up to {detail}, this side {VERSION_MIN} to {VERSION_MAX}; \
                 upgrade {}",
                if detail > u64::from(VERSION_MAX) { "this side" } else { "the peer" }
            ),
            Code::StoreFailed => f.write_str("the broker's store failed; nothing was changed"),
            Code::NotShared => f.write_str("the region cannot be mapped from here"),
            Code::LimitReached => write!(f, "a limit was reached: {detail}"),
            Code::NoNodes if detail == 0 => f.write_str("no memory node is in the pool"),
            Code::NoNodes => f.write_str("the broker has not heard from a memory node that is needed"),
            Code::NotReported if detail == 0 => f.write_str(
                "memory nodes that may have enough memory are silent, or have not come yet to a broker that has just \
                 started",
            ),
            Code::NotReported => f.write_str("a memory node has not reported the file's regions as sealed"),
            Code::NotPermitted => write!(f, "this identity may not ask for operation {detail}"),
            Code::NoSuchScan => f.write_str("no such scan: it never began, or it has ended"),
            Code::BadProgram if detail == u64::MAX => f.write_str("the bytes are not a valid program"),
            Code::BadProgram => write!(f, "the node cannot run the program (operator {detail}, counted from 0)"),
            Code::ProgramStopped => write!(
                f,
                "the program was stopped after {detail} row groups: a value did not fit, it reached a limit, or \
                 it crashed"
            ),
            Code::Quarantined => f.write_str(
                "the program is quarantined: it crashed or reached a limit in the last 10 minutes; retry later",
            ),
            Code::BadColumns => write!(f, "row group {detail} of the scan does not have the columns described"),
            Code::NotOpened => {
                write!(
                    f,
                    "row group {detail} of the scan cannot be decrypted: its bytes were changed, or the key is wrong"
                )
            }
            Code::BadLookup => write!(f, "the lookup is missing, incomplete or invalid ({detail})"),
            Code::NoSuchFunction => f.write_str("the node does not know this function"),
            Code::BadFunction => {
                let fault = FunctionFault::ALL.into_iter().find(|fault| *fault as u64 == detail);
                write!(f, "the function {}", fault.map_or("cannot be used", FunctionFault::reason))
            }
            Code::NoFunctions => {
                let form = FunctionForm::ALL.get(detail as usize).map_or("such", |form| form.word());
                write!(f, "the node does not run {form} functions")
            }
            Code::NotTrusted => {
                write!(f, "the function is not signed by one of the {detail} keys that the node trusts")
            }
            Code::BadWindow if detail == u64::MAX => f.write_str("the window is too large, or empty"),
            Code::BadWindow => write!(f, "range {detail} of the window is not in a sealed region or segment"),
            Code::NotLeader => f.write_str("this broker is not the leader; ask the others"),
            Code::SandboxesBusy => write!(
                f,
                "none of the {detail} function processes that the node may have became free or ready in time; retry \
                 later, or start the node with a larger --function-processes"
            ),
            Code::CopiesTogether => {
                write!(f, "the copies of run {detail} of the file would be lost with one host, so it is not protected")
            }
            Code::Conflict => {
                write!(f, "the table was changed meanwhile (its latest snapshot is {detail})")
            }
            Code::SnapshotEnded => write!(f, "snapshot {detail} has ended, or never was"),
            Code::CommitEnded => f.write_str("the commit has ended: its session was silent for too long"),
            Code::ReservedName => f.write_str("names that begin so belong to parts and snapshots of tables"),
            Code::NoSandbox => f.write_str("the node could not start a sandbox process"),
            Code::OverQuota if detail == 0 => f.write_str("the tenant's quota is used up"),
            Code::OverQuota => write!(f, "the tenant's quota is exceeded: {detail} bytes are left"),
            Code::WrongTenant => f.write_str("it belongs to another tenant"),
            Code::Draining => f.write_str("the node is being drained and grants no new leases"),
            Code::OutOfMemory => write!(f, "the node could not allocate {detail} bytes: its host refused"),
        }
    }
}

impl std::error::Error for Refusal {}
