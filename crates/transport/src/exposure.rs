//! Exposure of connections: decides which addresses may be used, and whether TLS is needed.
//!
//! A process that has certificates uses TLS on every TCP connection, on loopback too. A process without certificates
//! uses only loopback, unless plaintext was requested explicitly. No other module decides this.

use crate::tls::{Tls, TlsError, TlsErrorKind};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Exposure of a process's connections. The default permits loopback only, in plaintext.
#[derive(Clone, Debug, Default)]
pub struct Exposure {
    /// Certificates of this process and of those it trusts. `None`: no TLS.
    pub tls: Option<Tls>,
    /// True if connections without TLS may go beyond this machine. They are neither encrypted nor authenticated.
    pub plaintext: bool,
}

/// Reason why an address is not used.
#[derive(Debug)]
pub enum ExposureError {
    /// The address could not be resolved.
    Unresolved(io::Error),
    /// The address is beyond this machine, and neither TLS nor plaintext is configured.
    Beyond(TlsError),
}

impl Exposure {
    /// Resolves `host:port`. Returns at least one address, and an error if any of them may not be used.
    pub fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, ExposureError> {
        let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(ExposureError::Unresolved)?.collect();
        if found.is_empty() {
            let nothing = format!("{address} resolves to no address");
            return Err(ExposureError::Unresolved(io::Error::new(io::ErrorKind::NotFound, nothing)));
        }
        found.iter().try_for_each(|address| self.check(*address)).map_err(ExposureError::Beyond)?;
        Ok(found)
    }

    /// Checks that an address may be used, to connect or to listen: with TLS, with plaintext allowed, or on loopback.
    pub fn check(&self, address: SocketAddr) -> Result<(), TlsError> {
        if self.tls.is_some() || self.plaintext || address.ip().is_loopback() {
            return Ok(());
        }
        Err(TlsError::new(
            TlsErrorKind::BeyondThisMachine,
            format!(
                "{} is not a loopback address, so TLS is required: pass certificates (--certs; in programs, the \
                 option `tls`), or --plaintext (`plaintext`) if everybody on the network may read and change the \
                 data",
                address.ip()
            ),
        ))
    }
}
