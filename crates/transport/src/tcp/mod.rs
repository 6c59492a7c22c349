//! Frames over TCP: one thread per connection on the serving side, one link per caller on the asking side.

mod listener;

pub(crate) use listener::run;
pub use listener::{CONNECTIONS_MAX, Listening, listen};

use crate::client::{FrameLink, broken};
use crate::clock;
use crate::socket::Socket;
use crate::waiting::time_left;
use crate::{LinkError, Transport};
use farpool_wire::MonoNs;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};

/// Connects to `host:port` and greets.
pub fn connect(address: &str, deadline: MonoNs) -> Result<FrameLink<Socket>, LinkError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} resolves to no address"));
    for resolved in address.to_socket_addrs().map_err(LinkError::Cut)? {
        let Some(left) = time_left(deadline, clock::now()) else { return Err(LinkError::TimedOut) };
        let left = std::time::Duration::new(left.tv_sec as u64, left.tv_nsec as u32);
        match TcpStream::connect_timeout(&resolved, left).and_then(Socket::tcp) {
            Ok(socket) => return FrameLink::greet(socket, Transport::Tcp, deadline),
            Err(error) => last = error,
        }
    }
    Err(broken(last))
}
