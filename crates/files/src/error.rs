//! The one error of the library: what it means for the caller, and what to do next.

use crate::ended::Ended;
use farpool_transport::LinkError;
use farpool_wire::control::NodeInfo;
use farpool_wire::{Code, Refusal, shown_lines};
use std::fmt;

/// What went wrong, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is outside what is permitted; the message names both.
    Invalid,
    /// No file of this name.
    NotFound,
    /// A file of this name exists.
    Exists,
    /// The pool or file was closed or deleted.
    Closed,
    /// The file is published: it can be read, not written.
    ReadOnly,
    /// Not enough free memory in the pool, or the quota of its tenant leaves not enough.
    Exhausted,
    /// A node that held these bytes is gone, and so are they.
    Lost,
    /// A write to this range failed before: it must be written anew.
    Poisoned,
    /// A node answered with other bytes than were written to a sealed file, and no other copy is left.
    Tampered,
    /// Broker or node cannot be reached, or does not answer in time.
    Unreachable,
    /// A peer refused, broke the protocol, or could not be trusted.
    Refused,
    /// A shipped function did not end well: [`Error::how_it_ended`] says how.
    Stopped,
    /// The pool belongs to the process this one was forked from.
    Forked,
}

/// Whether and when the same call may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Not as it is.
    Never,
    /// At any time, unchanged.
    Later,
    /// After the bytes have been written anew (elsewhere, by the pool's choice).
    AfterRewrite,
}

/// Returns what errors call a node.
pub(crate) fn name_and_host(node: &NodeInfo) -> String {
    format!("{} on host {}", node.name, node.host_label)
}

/// An operation that did not happen.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    node: Option<String>,
    /// What a peer refused with, if one did.
    refusal: Option<Refusal>,
    /// How a function ended, if one did not end well.
    ended: Option<Box<Ended>>,
}

impl Error {
    /// Of those who build on files.
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), node: None, refusal: None, ended: None }
    }

    pub(crate) fn lost(node: &NodeInfo, why: &str) -> Error {
        let shown = name_and_host(node);
        let message = format!(
            "memory node {shown} is lost ({why}); the bytes it held are gone: write them again, and put tables \
             and publish files again that had some there"
        );
        Error { node: Some(node.name.to_string()), ..Error::new(ErrorKind::Lost, message) }
    }

    /// Of a function that did not end well.
    #[doc(hidden)]
    pub fn ended(kind: ErrorKind, message: String, ended: Ended) -> Error {
        Error { ended: Some(Box::new(ended)), ..Error::new(kind, message) }
    }

    /// What a function given to [`crate::Pool::rebuild_with`] answers if it cannot build a file anew, and why:
    /// its bytes stay lost.
    pub fn not_rebuilt(why: impl Into<String>) -> Error {
        Error::new(ErrorKind::Lost, why)
    }

    /// What went wrong on a link to this peer.
    #[doc(hidden)]
    pub fn of_link(peer: &str, error: &LinkError) -> Error {
        match error {
            LinkError::Refused { refusal, .. } => Error::of_refusal(peer, *refusal),
            LinkError::TimedOut | LinkError::Cut(_) => {
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
            Code::NameTaken => ErrorKind::Exists,
            Code::NoSuchName => ErrorKind::NotFound,
            // A node that does not know the session has freed what it held.
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

    /// The same error, of this node.
    pub(crate) fn at_node(mut self, node: &str) -> Error {
        self.node = Some(node.to_owned());
        self
    }

    /// The same error, told in other words.
    pub(crate) fn told(self, message: String) -> Error {
        Error { message, ..self }
    }

    /// The same error, with what was being done in front.
    #[doc(hidden)]
    pub fn during(mut self, what: impl fmt::Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The same error, with why there was no help for it; a refusal says only that.
    pub(crate) fn and(mut self, other: &Error) -> Error {
        if other.refusal.is_none() {
            self.message = format!("{}; {other}", self.message);
        }
        self
    }

    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The name of the node that failed, if one did.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// How a shipped function ended, if one did not end well.
    pub fn how_it_ended(&self) -> Option<&Ended> {
        self.ended.as_deref()
    }

    /// What a peer refused with, if one did.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Whether and when to try again.
    pub fn retry(&self) -> Retry {
        match self.kind {
            ErrorKind::Exhausted | ErrorKind::Unreachable => Retry::Later,
            ErrorKind::Lost | ErrorKind::Poisoned | ErrorKind::Tampered => Retry::AfterRewrite,
            _ => Retry::Never,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names in it may be those that others gave.
        shown_lines(&self.message).fmt(f)
    }
}

impl std::error::Error for Error {}
