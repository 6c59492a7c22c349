//! Errors of TLS. Their texts name the file, the identity or the option that is wrong.

use std::fmt;

/// Kind of a TLS error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// A file cannot be read, or has not the expected content.
    File,
    /// A certificate does not have exactly one identity.
    Identity,
    /// A certificate was not issued by the trusted CA.
    OtherCa,
    /// A certificate has expired.
    Expired,
    /// A certificate is not valid yet.
    NotYetValid,
    /// The peer has another identity than the one that was dialled.
    WrongPeer,
    /// The peer does not speak TLS.
    PeerIsPlaintext,
    /// The peer speaks TLS, and this process does not.
    PeerSpeaksTls,
    /// The peer rejected our certificate.
    RefusedByPeer,
    /// An address beyond this machine was used without TLS.
    BeyondThisMachine,
    /// The handshake failed for another reason.
    Handshake,
}

/// Error of TLS, with a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    kind: TlsErrorKind,
    message: String,
}

impl TlsError {
    pub(crate) fn new(kind: TlsErrorKind, message: impl Into<String>) -> TlsError {
        TlsError { kind, message: message.into() }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> TlsErrorKind {
        self.kind
    }

    /// Error for a plaintext greeting that was answered with TLS.
    pub(crate) fn peer_speaks_tls() -> TlsError {
        TlsError::new(
            TlsErrorKind::PeerSpeaksTls,
            "the peer requires TLS and this process has no certificates: pass --certs, or --tls-ca, --tls-cert \
             and --tls-key (in programs, the option `tls`)",
        )
    }

    /// Error for a TLS greeting that was answered with something else.
    pub(super) fn peer_is_plaintext() -> TlsError {
        TlsError::new(
            TlsErrorKind::PeerIsPlaintext,
            "the peer does not speak TLS: start it with certificates (--certs), or connect without certificates",
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TlsError {}
