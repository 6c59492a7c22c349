//! Accept loop for TCP and for the Unix socket of shared memory.

use crate::exposure::Exposure;
use crate::serve::{Peer, Service};
use crate::socket::{ShutdownHandle, Socket, Stream};
use crate::tls::{Identity, Tls};
use crate::{connection, tls};
use farpool_host::{clock, slice};
use farpool_lock::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Limit of connections of one listener; further ones are closed at once. Each costs a thread and 64 KiB to 5 MiB of
/// buffers, depending on the largest frames it has carried.
pub const CONNECTIONS_MAX: usize = 1_024;

/// Milliseconds within which a peer must prove its identity. Until then an unknown peer occupies a thread.
const HANDSHAKE_MS_MAX: u64 = 5_000;

/// Pause after an accept call that failed: 10 ms.
const ACCEPT_PAUSE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

type Open = Arc<Mutex<BTreeMap<u64, ShutdownHandle>>>;

/// A running listener. Dropping it closes its connections and waits for its threads.
#[derive(Debug)]
pub struct Listening {
    wake: UnixStream,
    accepting: Option<JoinHandle<()>>,
    local: Option<SocketAddr>,
}

impl Listening {
    /// Returns the address it listens on (TCP only), with the port that was chosen if port 0 was requested.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The accepting thread sees the end of this socket pair, closes the connections and joins their threads.
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Serves on an address of this machine; `host:0` picks a free port. With certificates every peer must prove its
/// identity. Without them `exposure` refuses an address beyond loopback.
pub fn listen(address: SocketAddr, exposure: &Exposure, service: Arc<dyn Service>) -> io::Result<Listening> {
    exposure.check(address).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    let listener = TcpListener::bind(address)?;
    let local = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let accept = |listener: &TcpListener| listener.accept().and_then(|(stream, _)| Socket::tcp(stream));
    let tls = exposure.tls.clone();
    let admit = move |socket: Socket| -> io::Result<(Box<dyn Stream>, Peer)> {
        let Some(tls) = &tls else { return Ok((Box::new(socket), Peer::default())) };
        let (stream, identity) = tls::accept(tls, socket, clock::now().plus_ms(HANDSHAKE_MS_MAX))?;
        Ok((Box::new(stream), Peer { identity: Some(identity), ..Peer::default() }))
    };
    let mut listening = run(listener, accept, admit, service)?;
    listening.local = Some(local);
    Ok(listening)
}

/// Serves another protocol than frames: each connection is given to `serve`, on a thread of its own. With `tls`,
/// connections are encrypted, and a peer that has no certificate has no identity. At most `connections_max` connections
/// are open; further ones are closed at once.
pub fn listen_for_streams(
    listener: TcpListener,
    tls: Option<Tls>,
    connections_max: usize,
    serve: impl Fn(Box<dyn Stream>, Option<Identity>) + Send + Sync + 'static,
) -> io::Result<Listening> {
    let local = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let accept = |listener: &TcpListener| listener.accept().and_then(|(stream, _)| Socket::tcp(stream));
    let serve_one = move |socket: Socket| -> io::Result<()> {
        let (stream, identity): (Box<dyn Stream>, _) = match &tls {
            None => (Box::new(socket), None),
            Some(tls) => {
                let deadline = clock::now().plus_ms(HANDSHAKE_MS_MAX);
                let (stream, identity) = tls::accept_anybody(tls, socket, deadline)?;
                (Box::new(stream), identity)
            }
        };
        serve(stream, identity);
        Ok(())
    };
    let mut listening = accept_loop(listener, accept, connections_max, serve_one)?;
    listening.local = Some(local);
    Ok(listening)
}

/// Runs an accept loop for frames. `admit` is called on the connection's thread, so it may take long.
pub(crate) fn run<L: AsFd + Send + 'static>(
    listener: L,
    accept: impl Fn(&L) -> io::Result<Socket> + Send + 'static,
    admit: impl Fn(Socket) -> io::Result<(Box<dyn Stream>, Peer)> + Send + Sync + 'static,
    service: Arc<dyn Service>,
) -> io::Result<Listening> {
    accept_loop(listener, accept, CONNECTIONS_MAX, move |socket| {
        // A failure only makes this thread's wake-ups slower.
        let _ = slice::shorten();
        let (mut stream, peer) = admit(socket)?;
        connection::serve(&mut *stream, peer, &*service)
    })
}

/// Runs an accept loop on a thread of its own. `serve_one` is called on the connection's thread.
pub(crate) fn accept_loop<L: AsFd + Send + 'static>(
    listener: L,
    accept: impl Fn(&L) -> io::Result<Socket> + Send + 'static,
    connections_max: usize,
    serve_one: impl Fn(Socket) -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Listening> {
    let serve_one = Arc::new(serve_one);
    let (wake, woken) = UnixStream::pair()?;
    let accepting = std::thread::Builder::new().name("farpool-accept".into()).spawn(move || {
        let open: Open = Arc::default();
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut next = 0;
        loop {
            let mut polled = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
            match poll(&mut polled, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
            if !polled[1].revents().is_empty() {
                break;
            }
            let socket = match accept(&listener) {
                Ok(socket) => socket,
                Err(error) => {
                    // "Too many open files" passes when others close files. An immediate retry would only burn CPU
                    // time.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        let _ = poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&ACCEPT_PAUSE));
                    }
                    continue;
                }
            };
            threads.retain(|thread| !thread.is_finished());
            if threads.len() >= connections_max {
                continue;
            }
            let Ok(handle) = socket.shutdown_handle() else { continue };
            let id = next;
            next += 1;
            open.lock().insert(id, handle);
            let (opened, serve_one) = (Arc::clone(&open), Arc::clone(&serve_one));
            let spawned = std::thread::Builder::new().name("farpool-conn".into()).spawn(move || {
                // The error of a connection is not reported here: its peer sees the end, and leases expire by
                // themselves.
                let _ = serve_one(socket);
                opened.lock().remove(&id);
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(_) => {
                    open.lock().remove(&id);
                }
            }
        }
        for handle in open.lock().values() {
            handle.shutdown();
        }
        for thread in threads {
            let _ = thread.join();
        }
    })?;
    Ok(Listening { wake, accepting: Some(accepting), local: None })
}
