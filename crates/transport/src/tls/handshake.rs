//! The TLS handshake over a socket, within a deadline.
//!
//! It reads record by record and leaves all bytes that follow the handshake in the socket. The connection can therefore
//! be handed to the kernel, or to the record layer, as it is.

use super::stream::{RECORD_BODY_BYTES_MAX, RECORD_HEADER_BYTES};
use super::{Identity, Loaded, Tls, TlsError, TlsStream, causes};
use crate::socket::{Interest, Socket, Stream, read_full, write_full};
use farpool_host::clock;
use farpool_wire::MonoNs;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// TLS content types that a handshake may contain: change_cipher_spec, alert, handshake, application_data.
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// Alert that TLS sends to a peer that does not speak TLS: the fatal `unexpected_message`.
const NOT_TLS_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// Limit of the bytes read from a rejected peer, which may have sent them before it learned of the rejection.
const LAST_BYTES_MAX: usize = 64 << 10;

/// Reports whether the bytes begin like a TLS alert.
pub(crate) fn is_alert(bytes: &[u8]) -> bool {
    matches!(bytes, [21, 3, 0..=4, ..])
}

/// Makes the handshake as a client: proves our identity, and checks that the peer is `expected`.
pub(crate) fn connect(
    tls: &Tls,
    mut socket: Socket,
    expected: &Identity,
    deadline: MonoNs,
) -> io::Result<TlsStream> {
    let name = ServerName::try_from(expected.dns_name()).map_err(io::Error::other)?;
    let tls = tls.loaded();
    let client = ClientConnection::new(Arc::clone(&tls.client), name).map_err(io::Error::other)?;
    let mut connection = Connection::Client(client);
    shake(&mut connection, &mut socket, deadline).map_err(|trouble| trouble.into_io(Some(expected), &tls))?;
    // Standard verification has found the expected name. It must also be the only one.
    let found = identity_of(&connection)?;
    if found != *expected {
        return Err(denied(causes::wrong_peer(Some(expected), &[found.dns_name()])));
    }
    TlsStream::begin(socket, connection, tls.own())
}

/// Makes the handshake as a server and returns the peer's identity. It ends at the deadline, whatever the peer does.
pub(crate) fn accept(tls: &Tls, mut socket: Socket, deadline: MonoNs) -> io::Result<(TlsStream, Identity)> {
    let tls = tls.loaded();
    let connection = shake_as_server(&tls, &tls.server, &mut socket, deadline)?;
    let identity = identity_of(&connection)?;
    Ok((TlsStream::begin(socket, connection, tls.own())?, identity))
}

/// Makes the handshake as a server of anybody. The identity of a peer without a certificate is `None`.
pub(crate) fn accept_anybody(
    tls: &Tls,
    mut socket: Socket,
    deadline: MonoNs,
) -> io::Result<(TlsStream, Option<Identity>)> {
    let tls = tls.loaded();
    let connection = shake_as_server(&tls, &tls.open_server, &mut socket, deadline)?;
    let has_certificate = connection.peer_certificates().is_some_and(|chain| !chain.is_empty());
    let identity = has_certificate.then(|| identity_of(&connection)).transpose()?;
    Ok((TlsStream::begin(socket, connection, tls.own())?, identity))
}

fn shake_as_server(
    tls: &Loaded,
    config: &Arc<ServerConfig>,
    socket: &mut Socket,
    deadline: MonoNs,
) -> io::Result<Connection> {
    let server = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut connection = Connection::Server(server);
    match shake(&mut connection, socket, deadline) {
        Ok(()) => Ok(connection),
        Err(trouble) => {
            see_off(socket, deadline);
            Err(trouble.into_io(None, tls))
        }
    }
}

/// Reason why a handshake failed.
enum Trouble {
    Io(io::Error),
    Rustls(rustls::Error),
    NotTls,
    HungUp,
}

impl Trouble {
    fn into_io(self, expected: Option<&Identity>, tls: &Loaded) -> io::Error {
        match self {
            Trouble::Io(error) => error,
            Trouble::Rustls(error) => denied(causes::of_rustls(&error, expected, &tls.own(), &tls.ca_label)),
            Trouble::NotTls => denied(TlsError::peer_is_plaintext()),
            // A process that is just ending closes the connection as well, so this counts as an ended connection.
            Trouble::HungUp => io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer closed the connection during the TLS handshake: it may have been started without \
                 certificates (--certs)",
            ),
        }
    }
}

fn denied(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error)
}

/// Returns the identity of a peer whose certificate has been verified.
fn identity_of(connection: &Connection) -> io::Result<Identity> {
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.ok_or_else(|| io::Error::other("a handshake without a certificate"))?;
    Identity::of_certificate(certificate, "the peer's certificate").map_err(denied)
}

fn shake(connection: &mut Connection, socket: &mut Socket, deadline: MonoNs) -> Result<(), Trouble> {
    let mut record = vec![0; RECORD_HEADER_BYTES + RECORD_BODY_BYTES_MAX];
    let mut is_first = true;
    loop {
        send(connection, socket, deadline)?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        // A peer that keeps sending never causes a wait, so the deadline is checked here as well.
        if clock::now() >= deadline {
            return Err(Trouble::Io(io::ErrorKind::TimedOut.into()));
        }
        let length = match read_record(socket, &mut record, deadline) {
            Err(Trouble::Io(error)) if is_first && is_hang_up(&error) => return Err(Trouble::HungUp),
            Err(Trouble::NotTls) => {
                let alert = &mut [IoSlice::new(&NOT_TLS_ALERT)];
                // The handshake has failed already, so an error is ignored.
                let _ = write_full(socket, alert, deadline);
                return Err(Trouble::NotTls);
            }
            other => other?,
        };
        is_first = false;
        let mut rest = &record[..length];
        while !rest.is_empty() {
            connection.read_tls(&mut rest).map_err(Trouble::Io)?;
            if let Err(error) = connection.process_new_packets() {
                // Sends the alert that names the reason.
                let _ = send(connection, socket, deadline);
                return Err(Trouble::Rustls(error));
            }
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Reads one whole record and returns its length.
fn read_record(socket: &mut Socket, record: &mut [u8], deadline: MonoNs) -> Result<usize, Trouble> {
    let (head, body) = record.split_at_mut(RECORD_HEADER_BYTES);
    read_full(socket, &mut [IoSliceMut::new(head)], deadline).map_err(Trouble::Io)?;
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if !CONTENT_TYPES.contains(&head[0]) || head[1] != 3 || length > body.len() {
        return Err(Trouble::NotTls);
    }
    read_full(socket, &mut [IoSliceMut::new(&mut body[..length])], deadline).map_err(Trouble::Io)?;
    Ok(RECORD_HEADER_BYTES + length)
}

/// Sends the pending messages of the handshake.
fn send(connection: &mut Connection, socket: &mut Socket, deadline: MonoNs) -> Result<(), Trouble> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).map_err(Trouble::Io)?;
    }
    write_full(socket, &mut [IoSlice::new(&bytes)], deadline).map_err(Trouble::Io)
}

/// Lets a rejected peer receive the alert. Closing a socket with unread bytes would discard what was sent, so they are
/// read first: at most as many as a client sends before it waits, and not beyond the handshake's deadline.
fn see_off(socket: &mut Socket, deadline: MonoNs) {
    socket.finish();
    let mut last = [0; 4096];
    let mut total = 0;
    while total < LAST_BYTES_MAX && clock::now() < deadline {
        match socket.read(&mut [IoSliceMut::new(&mut last)]) {
            Ok(0) => return,
            Ok(count) => total += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if socket.wait(Interest::Readable, deadline).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
