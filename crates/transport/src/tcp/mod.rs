//! Frames over TCP, with or without TLS. The serving side has one thread per connection, the requesting side one link
//! per caller.

mod listener;

pub use listener::{CONNECTIONS_MAX, Listening, listen, listen_for_streams};
pub(crate) use listener::{accept_loop, run};

use crate::client::{FrameLink, broken};
use crate::exposure::{Exposure, ExposureError};
use crate::socket::Socket;
use crate::tls::Identity;
use crate::{Link, LinkError, Transport, tls};
use farpool_host::clock;
use farpool_host::waiting::time_left;
use farpool_wire::{ClientId, MonoNs};
use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// Connects to `host:port` within the limits of `exposure`, and exchanges greetings. With TLS the peer must prove that
/// it is `expected`.
pub fn connect(
    exposure: &Exposure,
    address: &str,
    expected: &Identity,
    deadline: MonoNs,
) -> Result<Box<dyn Link>, LinkError> {
    connect_for(ClientId(0), exposure, address, expected, deadline)
}

/// Does the same as [`connect`] for a client that has several links. They all send the same number `client`, so that a
/// node shares its work fairly between clients and not between links.
pub fn connect_for(
    client: ClientId,
    exposure: &Exposure,
    address: &str,
    expected: &Identity,
    deadline: MonoNs,
) -> Result<Box<dyn Link>, LinkError> {
    let socket = connect_socket(exposure, address, deadline)?;
    Ok(match &exposure.tls {
        None => Box::new(FrameLink::greet_for(client, socket, Transport::Tcp, deadline)?),
        Some(tls) => {
            let stream = tls::connect(tls, socket, expected, deadline).map_err(broken)?;
            Box::new(FrameLink::greet_for(client, stream, Transport::Tcp, deadline)?)
        }
    })
}

/// Time in ms after which connecting begins again. Each time it is twice as long.
const CONNECT_MS: u64 = 1_000;

/// Connects to `host:port` within the limits of `exposure`, and exchanges nothing. While a network is cut off the
/// kernel waits longer and longer before it asks again, so connecting begins again now and then.
pub(crate) fn connect_socket(
    exposure: &Exposure,
    address: &str,
    deadline: MonoNs,
) -> Result<Socket, LinkError> {
    let mut last: io::Error = io::ErrorKind::NotFound.into();
    let addresses = exposure.resolve(address).map_err(|error| match error {
        ExposureError::Unresolved(error) => LinkError::Disconnected(error),
        ExposureError::Beyond(error) => LinkError::Untrusted(error),
    })?;
    let mut patience = Duration::from_millis(CONNECT_MS);
    loop {
        let mut is_silent = false;
        for resolved in &addresses {
            let Some(left) = time_left(deadline, clock::now()) else { return Err(LinkError::TimedOut) };
            let left = Duration::new(left.tv_sec as u64, left.tv_nsec as u32);
            match TcpStream::connect_timeout(resolved, left.min(patience)).and_then(Socket::tcp) {
                Ok(socket) => return Ok(socket),
                Err(error) => {
                    is_silent |= error.kind() == io::ErrorKind::TimedOut;
                    last = error;
                }
            }
        }
        if !is_silent {
            return Err(broken(last));
        }
        patience *= 2;
    }
}
