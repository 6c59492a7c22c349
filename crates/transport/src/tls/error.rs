//! Why there is no trust. Texts name the file, the identity or the option they are about.

use std::fmt;

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// A file cannot be read, or does not hold what it should.
    File,
    /// A certificate has not exactly one identity.
    Identity,
    /// A certificate was not issued by the CA.
    OtherCa,
    /// A certificate's time is over.
    Expired,
    /// A certificate's time has not come.
    NotYetValid,
    /// The peer is somebody else than was dialled.
    WrongPeer,
    /// The peer does not speak TLS.
    PeerIsPlaintext,
    /// The peer speaks TLS, and we do not.
    PeerSpeaksTls,
    /// The peer did not take our certificate.
    RefusedByPeer,
    /// An address beyond this machine without TLS.
    BeyondThisMachine,
    /// The handshake failed in another way.
    Handshake,
}

/// No trust, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    kind: TlsErrorKind,
    message: String,
}

impl TlsError {
    pub(crate) fn new(kind: TlsErrorKind, message: impl Into<String>) -> TlsError {
        TlsError { kind, message: message.into() }
    }

    /// What kind of thing is wrong.
    pub fn kind(&self) -> TlsErrorKind {
        self.kind
    }

    /// We said hello in plaintext and were answered by TLS.
    pub(crate) fn peer_speaks_tls() -> TlsError {
        TlsError::new(
            TlsErrorKind::PeerSpeaksTls,
            "it speaks TLS and this side has no certificates: give them (--certs, or --tls-ca, --tls-cert and \
             --tls-key; in programs the option `tls`)",
        )
    }

    /// We began TLS and were answered by something else.
    pub(super) fn peer_is_plaintext() -> TlsError {
        TlsError::new(
            TlsErrorKind::PeerIsPlaintext,
            "it does not speak TLS: start it with certificates (--certs), or connect without them",
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TlsError {}
