//! How far connections go: the one place that says what may leave this machine, and how.
//!
//! With certificates every TCP connection speaks TLS, loopback too. Without them only loopback is used, unless
//! plaintext was asked for by its name.

use crate::tls::{Tls, TlsError, TlsErrorKind};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// See the module. The default is loopback, in plaintext.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// What proves us to others and others to us; nothing: no TLS.
    pub tls: Option<Tls>,
    /// Without TLS, go beyond this machine all the same: neither encrypted nor authenticated.
    pub plaintext: bool,
}

/// Why an address is not used.
#[derive(Debug)]
pub enum ReachError {
    /// It is no address.
    Unresolved(io::Error),
    /// It lies beyond this machine, and there is nothing to protect what goes there.
    Beyond(TlsError),
}

impl Reach {
    /// The addresses behind `host:port`, at least one, if all of them may be used.
    pub fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, ReachError> {
        let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(ReachError::Unresolved)?.collect();
        if found.is_empty() {
            let nothing = format!("{address} resolves to no address");
            return Err(ReachError::Unresolved(io::Error::new(io::ErrorKind::NotFound, nothing)));
        }
        found.iter().try_for_each(|address| self.check(*address)).map_err(ReachError::Beyond)?;
        Ok(found)
    }

    /// Whether an address may be used, to connect or to listen.
    pub fn check(&self, address: SocketAddr) -> Result<(), TlsError> {
        if self.tls.is_some() || self.plaintext || address.ip().is_loopback() {
            return Ok(());
        }
        Err(TlsError::new(
            TlsErrorKind::BeyondThisMachine,
            format!(
                "{} is beyond this machine (not a loopback address): give certificates (--certs; in programs the \
                 option `tls`), or say --plaintext (`plaintext`) where everybody on the network may read and \
                 change what is stored",
                address.ip()
            ),
        ))
    }
}
