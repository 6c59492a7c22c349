//! Why a peer said no. A refusal is a code and one number; the reader makes the sentence, so no text of a
//! peer ever reaches a log or a user.

use crate::function::{FunctionFault, FunctionForm};
use crate::limits::{VERSION_MAX, VERSION_MIN};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// What was refused. The meaning of [`Refusal::detail`] stands with each code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $value),* }

        impl Code {
            /// Every code, in wire order.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The code with this number on the wire.
            pub fn from_wire(value: u16) -> Option<Code> {
                match value { $($value => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// The region has moved on; detail: its epoch now.
    StaleEpoch = 1,
    /// The handle is not the one minted for this region and right; detail: 0.
    WrongHandle = 2,
    /// The range leaves the region; detail: bytes of the region.
    OutOfBounds = 3,
    /// The region is sealed: it can be read, not written; detail: 0.
    Sealed = 4,
    /// The lease ran out and is in its grace time: renew first; detail: 0.
    LeaseExpired = 5,
    /// No region with this index; detail: regions of the node.
    NoSuchRegion = 6,
    /// Not that much is free; detail: what is, in bytes from a broker, in regions from a node.
    Exhausted = 7,
    /// The ticket's time is over; detail: milliseconds since.
    TicketExpired = 8,
    /// The ticket was redeemed before; detail: its id.
    TicketSpent = 9,
    /// The ticket's signature does not fit; detail: 0.
    TicketForged = 10,
    /// Meant for another life of this node; detail: the incarnation now.
    WrongIncarnation = 11,
    /// Of an older term than this node has seen; detail: the term seen.
    OldTerm = 12,
    /// No such session here (never was, or it expired); detail: its id.
    UnknownSession = 13,
    /// The secret is not this session's; detail: the session's id.
    WrongSecret = 14,
    /// The name is taken; detail: the file's id.
    NameTaken = 15,
    /// No file of this name; detail: 0.
    NoSuchName = 16,
    /// The file lost bytes with a node; detail: the node's id.
    FileLost = 17,
    /// This peer does not do that; detail: the opcode.
    Unsupported = 18,
    /// The message was not well-formed; detail: the opcode.
    Malformed = 19,
    /// No common protocol version; detail: the newest one spoken here.
    VersionMismatch = 20,
    /// The peer's store failed, so nothing was promised; detail: 0.
    StoreFailed = 21,
    /// The region is not shared memory, or the caller is not on this host; detail: 0.
    NotShared = 22,
    /// A limit on how many things one peer may hold; detail: the limit.
    LimitReached = 23,
    /// No node is there to serve, or the one needed has not come back yet; detail: its id, or 0.
    NoNodes = 24,
    /// The operating system refused the node memory; detail: bytes asked for.
    OutOfMemory = 25,
    /// The node has not reported this region as sealed (yet): ask again soon; detail: the node's id.
    NotReported = 26,
    /// Who connected may not ask this; detail: the opcode.
    NotPermitted = 27,
    /// The tenant may not hold that much; detail: bytes it may still get.
    OverQuota = 28,
    /// It belongs to another tenant; detail: 0.
    WrongTenant = 29,
    /// The node is being emptied and grants nothing; detail: 0.
    Draining = 30,
    /// No such scan here (never was, or it ended); detail: 0.
    NoSuchScan = 31,
    /// The program cannot be run; detail: the operator, counted from 0, or 2^64 - 1 if it is no program at all.
    BadProgram = 32,
    /// The program was stopped: a value did not fit, or it came to a bound; detail: row groups it had been run over.
    ProgramStopped = 33,
    /// The program has crashed or come to a bound before, and is not run again for a while; detail: 0.
    Quarantined = 34,
    /// A row group's bytes are not columns as described; detail: its number in the scan.
    BadColumns = 35,
    /// A row group's bytes are not those that were sealed for it under the scan's key; detail: its number in the scan.
    NotOpened = 36,
    /// There is no such lookup, it is not whole, or its bytes are none; detail: its number in the scan, or how many of
    /// its bytes had come.
    BadLookup = 37,
    /// No function of this hash or name is known here; detail: 0.
    NoSuchFunction = 38,
    /// It is no function that can be used; detail: a `FunctionFault`.
    BadFunction = 39,
    /// Functions of this form are not run here; detail: the form.
    NoFunctions = 40,
    /// The signature of a native function is not one that is trusted here; detail: keys that are.
    NotTrusted = 41,
    /// The window is not one; detail: the part, counted from 0, or 2^64 - 1 for the whole.
    BadWindow = 42,
    /// The process that was to run functions could not be started; detail: 0.
    NoSandbox = 43,
    /// Another broker leads this pool, or nobody does yet: ask the others, again soon; detail: 0.
    NotLeader = 44,
    /// No process that runs functions became free in time; detail: how many there are at a time.
    SandboxesBusy = 45,
}

/// A refusal: what, and the one number that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was refused.
    pub code: Code,
    /// Its meaning depends on the code.
    pub detail: u64,
}

impl Refusal {
    /// A refusal with its number.
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
                f.write_str("the right that was shown is to another region, or to a file of another name")
            }
            Code::OutOfBounds => write!(f, "the range leaves the region of {detail} bytes"),
            Code::Sealed => f.write_str("the region is sealed: it can only be read"),
            Code::LeaseExpired => f.write_str("the lease has expired and was not renewed"),
            Code::NoSuchRegion => write!(f, "no such region (the node has {detail})"),
            Code::Exhausted => write!(f, "the pool is full ({detail} free)"),
            Code::TicketExpired => write!(f, "the ticket expired {detail} ms ago"),
            Code::TicketSpent => write!(f, "ticket {detail} was redeemed before"),
            Code::TicketForged => f.write_str("the ticket's signature does not fit"),
            Code::WrongIncarnation => {
                f.write_str("the node has started again since, without what it held before")
            }
            Code::OldTerm => write!(f, "the ticket is of an older broker term than {detail}"),
            Code::UnknownSession => write!(f, "no such session: {detail:016x}"),
            Code::WrongSecret => write!(f, "the secret is not that of session {detail:016x}"),
            Code::NameTaken => write!(f, "the name is taken (by file {detail})"),
            Code::NoSuchName => f.write_str("no file of this name"),
            Code::FileLost => {
                f.write_str("the file lost bytes with a memory node that has started again since")
            }
            Code::Unsupported => write!(f, "operation {detail} is not served here"),
            Code::Malformed => write!(f, "the peer could not read the message (opcode {detail})"),
            Code::VersionMismatch => write!(
                f,
                "no common protocol version: the peer speaks up to {detail}, this side {VERSION_MIN} to {VERSION_MAX}; \
                 upgrade {}",
                if detail > u64::from(VERSION_MAX) { "this side" } else { "the peer" }
            ),
            Code::StoreFailed => f.write_str("the broker's store failed, nothing was promised"),
            Code::NotShared => f.write_str("the region cannot be mapped from here"),
            Code::LimitReached => write!(f, "a limit was reached: {detail}"),
            Code::NoNodes if detail == 0 => f.write_str("no memory node is in the pool"),
            Code::NoNodes => f.write_str("a memory node that is needed has not been heard of"),
            Code::NotReported => f.write_str("a memory node has not reported the file's regions as sealed"),
            Code::NotPermitted => write!(f, "this identity may not ask for operation {detail}"),
            Code::NoSuchScan => f.write_str("no such scan, or it has ended"),
            Code::BadProgram if detail == u64::MAX => f.write_str("it is no program"),
            Code::BadProgram => write!(f, "the program cannot be run there (operator {detail})"),
            Code::ProgramStopped => write!(f, "the program was stopped behind {detail} row groups"),
            Code::Quarantined => f.write_str("the program was stopped before and is not run again for now"),
            Code::BadColumns => write!(f, "row group {detail} of the scan does not hold such columns"),
            Code::NotOpened => {
                write!(f, "row group {detail} of the scan is not as it was encrypted, or with another key")
            }
            Code::BadLookup => write!(f, "the lookup is none, not whole, or not there any more ({detail})"),
            Code::NoSuchFunction => f.write_str("no such function is known there"),
            Code::BadFunction => {
                let fault = FunctionFault::ALL.into_iter().find(|fault| *fault as u64 == detail);
                write!(f, "the function {}", fault.map_or("cannot be used", FunctionFault::reason))
            }
            Code::NoFunctions => {
                let form = FunctionForm::ALL.get(detail as usize).map_or("such", |form| form.word());
                write!(f, "{form} functions are not run there")
            }
            Code::NotTrusted => {
                write!(f, "the function is not signed by one of the {detail} keys that are trusted there")
            }
            Code::BadWindow if detail == u64::MAX => f.write_str("the window is too large, or empty"),
            Code::BadWindow => write!(f, "part {detail} of the window is not a range of a sealed region"),
            Code::NotLeader => f.write_str("it does not lead the pool's brokers"),
            Code::SandboxesBusy => write!(
                f,
                "functions of {detail} other clients run there, as many as it has processes for, and none of them has ended in \
                 time; call again later, or start the node with a larger --function-processes"
            ),
            Code::NoSandbox => f.write_str("the node could not start a sandbox process"),
            Code::OverQuota => write!(f, "the tenant's quota leaves {detail} bytes"),
            Code::WrongTenant => f.write_str("it belongs to another tenant"),
            Code::Draining => f.write_str("the node is being emptied and grants nothing new"),
            Code::OutOfMemory => write!(f, "the node's host refused it {detail} bytes"),
        }
    }
}

impl std::error::Error for Refusal {}
