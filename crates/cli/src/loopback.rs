//! Until there is mutual TLS, nothing leaves this machine unless asked for by its name.

use crate::exit::Failure;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses behind `host:port`, refused if one is not of this machine and plaintext was not asked for.
pub(crate) fn resolve(flag: &str, address: &str, plaintext: bool) -> Result<SocketAddr, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("{flag} {address}: {why}; HOST:PORT is permitted, such as 127.0.0.1:7700"))
    };
    let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(|error| wrong(&error))?.collect();
    let first = *found.first().ok_or_else(|| wrong(&"no such host"))?;
    if !plaintext && let Some(outside) = found.iter().find(|address| !address.ip().is_loopback()) {
        return Err(Failure::Refused(format!(
            "{flag} {address}: {} is not a loopback address, and this version does not encrypt or authenticate: \
             anybody on the network could read and change what is stored. With --plaintext it is done all the same",
            outside.ip()
        )));
    }
    Ok(first)
}

/// `host:port` of a pool's address.
pub(crate) fn broker_of(flag: &str, url: &str) -> Result<String, Failure> {
    match url.strip_prefix("farpool://").map(|rest| rest.trim_end_matches('/')) {
        Some(address) if address.contains(':') => Ok(address.to_owned()),
        _ => Err(Failure::Usage(format!("{flag} {url}: no pool address; farpool://HOST:PORT is one"))),
    }
}
