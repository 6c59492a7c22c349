//! Connections of other programs, carried over mutual TLS.
//!
//! The idea: libraries that speak other protocols have a TLS of their own, which cannot tell an identity of the pool.
//! They therefore speak over a Unix socket of this machine. A relay at each end passes the bytes of its connections on
//! over TLS, between two processes of one identity. Who may open the Unix socket, its folder decides.

use crate::exposure::Exposure;
use crate::socket::{Socket, Stream};
use crate::tcp::{CONNECTIONS_MAX, Listening, accept_loop, connect_socket, listen_for_streams};
use crate::tls::{self, Identity, Tls};
use crate::{LinkError, client::broken};
use farpool_host::{Event, Host, Machine, clock};
use farpool_wire::MonoNs;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that are read before they are written, in each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Milliseconds within which a connection is made and both sides have proved their identity.
const CONNECT_MS_MAX: u64 = 5_000;
/// Time without traffic after which the system checks whether the other machine is still there. A query may compute for
/// long before its first row.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A running relay. Dropping it ends its connections.
#[derive(Debug)]
pub struct Relay(Listening);

impl Relay {
    /// Accepts TLS connections of peers that have our own identity, and connects each to the Unix socket `behind`. Logs
    /// who is refused.
    pub fn serve(listener: TcpListener, tls: &Tls, behind: PathBuf) -> io::Result<Relay> {
        let own = tls.identity().clone();
        let serve = move |mut peer: Box<dyn Stream>, identity: Option<Identity>| {
            if identity.as_ref() != Some(&own) {
                let found =
                    identity.map_or("a peer without a certificate".to_owned(), |found| found.to_string());
                let message = format!("refused a connection of {found}: only {own} may connect");
                Machine.log(&Event::warn("peer_refused", message));
                return;
            }
            let passed = UnixStream::connect(&behind).and_then(Socket::unix).and_then(|mut server| {
                keep_alive(&*peer)?;
                pass(&mut *peer, &mut server)
            });
            if let Err(error) = passed {
                Machine.log(&Event::debug("relay_ended", format!("a connection of {own} ended: {error}")));
            }
        };
        listen_for_streams(listener, Some(tls.clone()), CONNECTIONS_MAX, serve).map(Relay)
    }

    /// Listens on the Unix socket `before`, and carries each of its connections to the relay at `address`. Connects
    /// once first, so that a server that does not answer or has another identity is an error here.
    pub fn connect(tls: &Tls, address: &str, before: &Path, deadline: MonoNs) -> Result<Relay, LinkError> {
        drop(dial(tls, address, deadline)?);
        let listener = UnixListener::bind(before).map_err(LinkError::Disconnected)?;
        listener.set_nonblocking(true).map_err(LinkError::Disconnected)?;
        let accept = |listener: &UnixListener| listener.accept().and_then(|(stream, _)| Socket::unix(stream));
        let (tls, address) = (tls.clone(), address.to_owned());
        let serve = move |mut client: Socket| {
            let server = dial(&tls, &address, clock::now().plus_ms(CONNECT_MS_MAX));
            let mut server = server.map_err(|error| io::Error::other(error.to_string()))?;
            pass(&mut client, &mut server)
        };
        accept_loop(listener, accept, CONNECTIONS_MAX, serve).map(Relay).map_err(LinkError::Disconnected)
    }

    /// Returns the TCP address of a relay that serves.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.0.local_address()
    }
}

fn dial(tls: &Tls, address: &str, deadline: MonoNs) -> Result<tls::TlsStream, LinkError> {
    let exposure = Exposure { tls: Some(tls.clone()), plaintext: false };
    let socket = connect_socket(&exposure, address, deadline)?;
    let stream = tls::connect(tls, socket, tls.identity(), deadline).map_err(broken)?;
    keep_alive(&stream).map_err(LinkError::Disconnected)?;
    Ok(stream)
}

fn descriptor(stream: &dyn Stream) -> io::Result<BorrowedFd<'_>> {
    stream.descriptor().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

fn keep_alive(stream: &dyn Stream) -> io::Result<()> {
    let socket = descriptor(stream)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    Ok(())
}

/// Bytes on their way in one direction.
struct Way {
    buffer: Vec<u8>,
    /// Bytes of the buffer that are read and not written.
    unsent: std::ops::Range<usize>,
    /// True if the stream that is written to may hold bytes back.
    is_unflushed: bool,
    is_ended: bool,
}

impl Way {
    fn new() -> Way {
        Way { buffer: vec![0; BUFFER_BYTES], unsent: 0..0, is_unflushed: false, is_ended: false }
    }

    fn is_clear(&self) -> bool {
        self.unsent.is_empty() && !self.is_unflushed
    }

    /// Reads and writes as much as is possible at once. Reports whether any byte moved.
    fn advance(&mut self, from: &mut dyn Stream, to: &mut dyn Stream) -> io::Result<bool> {
        let mut has_moved = false;
        if self.is_clear() && !self.is_ended {
            let read = ready(from.read(&mut [IoSliceMut::new(&mut self.buffer)]))?;
            self.is_ended = read == Some(0);
            self.unsent = 0..read.unwrap_or(0);
            has_moved = read.is_some();
        }
        if !self.unsent.is_empty() {
            let written = ready(to.write(&[IoSlice::new(&self.buffer[self.unsent.clone()])]))?.unwrap_or(0);
            self.unsent.start += written;
            self.is_unflushed |= written > 0;
            has_moved |= written > 0;
        }
        if self.is_unflushed {
            self.is_unflushed = ready(to.flush())?.is_none();
            // The stream that is read from may hold bytes that it has received: it is read before it is polled.
            has_moved |= !self.is_unflushed;
        }
        Ok(has_moved)
    }
}

/// Turns "not now" into `None`.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Passes bytes both ways until one side ends its direction and all of it has been written.
fn pass(one: &mut dyn Stream, other: &mut dyn Stream) -> io::Result<()> {
    let (mut forth, mut back) = (Way::new(), Way::new());
    loop {
        let has_moved = forth.advance(one, other)? | back.advance(other, one)?;
        if [&forth, &back].iter().any(|way| way.is_ended && way.is_clear()) {
            return Ok(());
        }
        if has_moved {
            continue;
        }
        let interest = |reads: &Way, writes: &Way| {
            let readable =
                if reads.is_clear() && !reads.is_ended { PollFlags::IN } else { PollFlags::empty() };
            readable | if writes.is_clear() { PollFlags::empty() } else { PollFlags::OUT }
        };
        // A stream of which nothing is wanted now is not polled, since its end would be reported again and again. Its
        // end shows when it is read or written.
        let wanted = [(&*one, interest(&forth, &back)), (&*other, interest(&back, &forth))];
        let polled = wanted.iter().filter(|(_, interest)| !interest.is_empty());
        let polled: io::Result<Vec<PollFd<'_>>> = polled
            .map(|(stream, interest)| Ok(PollFd::from_borrowed_fd(descriptor(*stream)?, *interest)))
            .collect();
        match poll(&mut polled?, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::client_and_broker;
    use std::io::{Read, Write};

    const MESSAGE_BYTES: usize = 3 << 20;

    /// Starts a relay of the broker's identity before the Unix socket `behind`, and returns its address.
    fn serving(behind: &Path) -> (UnixListener, Relay, String) {
        let server = UnixListener::bind(behind).expect("a socket");
        let [_, broker] = client_and_broker();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = Relay::serve(listener, broker, behind.to_owned()).expect("a relay");
        let address = relay.local_address().expect("TCP").to_string();
        (server, relay, address)
    }

    #[test]
    fn bytes_go_both_ways_at_once_and_the_end_of_one_side_ends_the_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let (behind, before) = (folder.path().join("behind"), folder.path().join("before"));
        let [_, broker] = client_and_broker();
        let (server, _serving, address) = serving(&behind);
        let deadline = clock::now().plus_ms(60_000);
        let _connected = Relay::connect(broker, &address, &before, deadline).expect("a relay");
        // The connection that only checked whether the server is there.
        let (mut first, _) = server.accept().expect("a peer");
        assert_eq!(first.read(&mut [0]).expect("an end"), 0);
        let mut client = UnixStream::connect(&before).expect("connected");
        let (mut served, _) = server.accept().expect("a peer");
        let sent: Vec<u8> = (0..MESSAGE_BYTES).map(|at| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            // Both sides send before they receive, which a relay of one direction at a time could not pass.
            let (mut writes, mut answers) =
                (client.try_clone().expect("a copy"), served.try_clone().expect("a copy"));
            let sent = &sent;
            scope.spawn(move || writes.write_all(sent).expect("sent"));
            scope.spawn(move || answers.write_all(sent).expect("sent"));
            for end in [&mut client, &mut served] {
                let mut found = vec![0; MESSAGE_BYTES];
                end.read_exact(&mut found).expect("received");
                assert!(found == *sent);
            }
        });
        drop(client);
        assert_eq!(served.read(&mut [0]).expect("an end"), 0);
        // All that was sent before an end arrives, however late it is read.
        let mut client = UnixStream::connect(&before).expect("connected");
        let (mut served, _) = server.accept().expect("a peer");
        let sending = std::thread::spawn(move || served.write_all(&sent).map(|()| sent));
        let mut found = vec![0; MESSAGE_BYTES];
        client.read_exact(&mut found[..1]).expect("received");
        client.read_exact(&mut found[1..]).expect("received");
        assert!(found == sending.join().expect("no panic").expect("sent"));
        assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    }

    #[test]
    fn peer_of_another_identity_is_refused_by_both_sides() {
        let folder = tempfile::tempdir().expect("a folder");
        let (behind, before) = (folder.path().join("behind"), folder.path().join("before"));
        let [client, broker] = client_and_broker();
        let (server, _serving, address) = serving(&behind);
        server.set_nonblocking(true).expect("set");
        let deadline = clock::now().plus_ms(60_000);
        let error = Relay::connect(client, &address, &before, deadline).expect_err("another identity");
        assert!(matches!(error, LinkError::Untrusted(_)), "{error}");
        assert!(!before.exists());
        // A client that does not check sees the connection end.
        let exposure = Exposure { tls: Some(client.clone()), plaintext: false };
        let socket = connect_socket(&exposure, &address, deadline).expect("connected");
        let stream =
            tls::connect(client, socket, broker.identity(), deadline).expect("the broker's certificate");
        let ended = crate::socket::read_full(&mut { stream }, &mut [IoSliceMut::new(&mut [0])], deadline);
        assert!(ended.is_err());
        assert_eq!(server.accept().expect_err("nobody comes").kind(), io::ErrorKind::WouldBlock);
    }
}
