//! Error type of the library: what it means for the caller, and what to do next.

use crate::ended::Ended;
use farpool_transport::LinkError;
use farpool_wire::control::NodeInfo;
use farpool_wire::{Code, Refusal, shown_lines};
use std::fmt;

/// Kinds of errors, by what the caller can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is outside its permitted range; the message names both.
    Invalid,
    /// There is no file of this name.
    NotFound,
    /// A file of this name exists already.
    Exists,
    /// The pool or file was closed or deleted.
    Closed,
    /// The file is published: it can be read but not written.
    ReadOnly,
    /// The pool, or the quota of the tenant, has not enough free memory.
    Exhausted,
    /// A node that held these bytes is gone, and the bytes with it.
    Lost,
    /// An earlier write to this range failed. The range must be written again.
    Poisoned,
    /// A node answered with other bytes than were written to an encrypted file, and no other copy is left.
    Tampered,
    /// The broker or a node cannot be reached or does not answer in time.
    Unreachable,
    /// A peer refused the request, broke the protocol, or could not be trusted.
    Refused,
    /// A function did not succeed: [`Error::how_it_ended`] has the details.
    Stopped,
    /// A commit of another session has changed the table meanwhile, so this one was not made.
    Conflict,
    /// The pool was opened by the process that this one was forked from.
    Forked,
}

/// Advice: if and when the same call may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same call will not succeed.
    Never,
    /// The same call may succeed at any later time.
    Later,
    /// The same call may succeed after the bytes have been written again. The pool chooses where.
    AfterRewrite,
}

/// Returns the name of a node for error messages.
pub(crate) fn name_and_host(node: &NodeInfo) -> String {
    format!("{} on host {}", node.name, node.host_label)
}

/// Failed operation.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    node: Option<String>,
    /// Refusal of a peer, if that is the cause.
    refusal: Option<Refusal>,
    /// End of a function, if that is the cause.
    ended: Option<Box<Ended>>,
}

/// Number of times, at most, that what can be put again is put because nodes fail meanwhile
/// ([`Error::is_worth_putting_again`]).
pub const PUTS_MAX: u32 = 4;

impl Error {
    /// Makes an error. For crates that build on this one.
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), node: None, refusal: None, ended: None }
    }

    pub(crate) fn lost(node: &NodeInfo, why: &str) -> Error {
        let shown = name_and_host(node);
        let message = format!(
            "memory node {shown} is lost ({why}) and the bytes it held are gone; write them again, and put or publish \
             again the tables and files that had bytes there"
        );
        Error { node: Some(node.name.to_string()), ..Error::new(ErrorKind::Lost, message) }
    }

    /// Makes the error of published bytes that a node which lives does not have any more.
    pub(crate) fn moved(node: &NodeInfo) -> Error {
        let message = format!(
            "memory node {} does not have these published bytes any more: they were moved, or the file was replaced or \
             dropped; open it again",
            name_and_host(node)
        );
        Error { node: Some(node.name.to_string()), ..Error::new(ErrorKind::Lost, message) }
    }

    /// Makes the error of a function that did not succeed.
    #[doc(hidden)]
    pub fn ended(kind: ErrorKind, message: String, ended: Ended) -> Error {
        Error { ended: Some(Box::new(ended)), ..Error::new(kind, message) }
    }

    /// Makes the error with which a function given to [`crate::Pool::rebuild_with`] reports that it cannot rebuild a
    /// file, and why. The bytes stay lost.
    pub fn not_rebuilt(why: impl Into<String>) -> Error {
        Error::new(ErrorKind::Lost, why)
    }

    /// Turns an error of a link to `peer` into an [`Error`].
    #[doc(hidden)]
    pub fn of_link(peer: &str, error: &LinkError) -> Error {
        match error {
            LinkError::Refused { refusal, .. } => Error::of_refusal(peer, *refusal),
            LinkError::TimedOut | LinkError::Disconnected(_) => {
                Error::new(ErrorKind::Unreachable, format!("{peer}: {error}"))
            }
            LinkError::Protocol(_) | LinkError::Untrusted(_) => {
                Error::new(ErrorKind::Refused, format!("{peer}: {error}"))
            }
        }
    }

    pub(crate) fn of_refusal(peer: &str, refusal: Refusal) -> Error {
        let kind = match refusal.code {
            Code::Exhausted
            | Code::OverQuota
            | Code::OutOfMemory
            | Code::NoNodes
            | Code::LimitReached
            | Code::SandboxesBusy => ErrorKind::Exhausted,
            // The nodes that have come to the broker so far have not enough memory.
            Code::NotReported if refusal.detail == 0 => ErrorKind::Exhausted,
            Code::NameTaken => ErrorKind::Exists,
            Code::NoSuchName | Code::SnapshotEnded => ErrorKind::NotFound,
            Code::Conflict => ErrorKind::Conflict,
            Code::CommitEnded => ErrorKind::Closed,
            Code::ReservedName => ErrorKind::Invalid,
            // A node that does not know the session has freed its regions, so `UnknownSession` is a loss too.
            Code::FileLost
            | Code::StaleEpoch
            | Code::WrongHandle
            | Code::WrongIncarnation
            | Code::LeaseExpired
            | Code::UnknownSession => ErrorKind::Lost,
            Code::Sealed => ErrorKind::ReadOnly,
            _ => ErrorKind::Refused,
        };
        Error { refusal: Some(refusal), ..Error::new(kind, format!("{peer}: {refusal}")) }
    }

    /// Returns the same error with the name of the node.
    pub(crate) fn at_node(mut self, node: &str) -> Error {
        self.node = Some(node.to_owned());
        self
    }

    /// Returns the same error with another message.
    pub(crate) fn told(self, message: String) -> Error {
        Error { message, ..self }
    }

    /// Returns the same error, with the operation in front of its message.
    #[doc(hidden)]
    pub fn during(mut self, what: impl fmt::Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns the same error, with the message of another one that came up while handling it. Leaves out a refusal,
    /// which would add nothing.
    pub(crate) fn and(mut self, other: &Error) -> Error {
        if other.refusal.is_none() {
            self.message = format!("{}; {other}", self.message);
        }
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the name of the node that failed. `None` if the error is not of one node.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Returns how a function ended. `None` if the error has another cause.
    pub fn how_it_ended(&self) -> Option<&Ended> {
        self.ended.as_deref()
    }

    /// Returns the refusal of a peer. `None` if the error has another cause.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns if and when to retry.
    pub fn retry(&self) -> Retry {
        match self.kind {
            ErrorKind::Exhausted | ErrorKind::Unreachable | ErrorKind::Conflict => Retry::Later,
            ErrorKind::Lost | ErrorKind::Poisoned | ErrorKind::Tampered => Retry::AfterRewrite,
            _ => Retry::Never,
        }
    }

    /// Reports whether putting a file, a table or a function may succeed if it is done again: bytes were lost before
    /// they had a copy, or a node that was to have them did not answer. Other nodes may be there.
    pub fn is_worth_putting_again(&self) -> bool {
        match self.kind {
            ErrorKind::Lost => true,
            ErrorKind::Unreachable => self.node.is_some(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The message may contain names from other users, so control characters are escaped.
        shown_lines(&self.message).fmt(f)
    }
}

impl std::error::Error for Error {}
