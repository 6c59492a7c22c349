//! TLS between sessions and workers, by the certificates of the pool.
//!
//! The idea: a worker runs plans with the rights of its own session, so it serves nobody else. Both sides present their
//! certificates and accept one identity, their own: that of one tenant, or of the administrator.

use datafusion::common::{Result, exec_err};
use farpool_host::{Event, Host, Machine};
use farpool_transport::{Exposure, Identity, Tls};
use futures::{Stream, stream};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;
use url::{Host as UrlHost, Url};

/// Time limit for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Number of handshakes that a worker makes at once. Others wait in the listener's queue.
const HANDSHAKES_MAX: usize = 64;
/// Pause after the system could not accept a connection, as when no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Checks that a session may contact a worker: with TLS, on this machine, or if plaintext is permitted.
pub(crate) fn check(exposure: &Exposure, url: &Url) -> Result<()> {
    let is_here = match url.host() {
        Some(UrlHost::Ipv4(address)) => address.is_loopback(),
        Some(UrlHost::Ipv6(address)) => address.is_loopback(),
        Some(UrlHost::Domain(name)) => name == "localhost",
        None => false,
    };
    match (url.scheme(), &exposure.tls) {
        ("https", Some(_)) => Ok(()),
        ("https", None) => {
            exec_err!("worker {url} is reached by TLS, which takes certificates of the pool (--certs)")
        }
        (_, Some(_)) => exec_err!(
            "worker {url} is not reached by TLS, although this session has certificates: start it with --certs, and \
             write https://"
        ),
        (_, None) if is_here || exposure.plaintext => Ok(()),
        (_, None) => exec_err!(
            "worker {url} is not on this machine, and the connection would be neither encrypted nor authenticated: \
             give certificates (--certs), or pass --insecure-workers (to a worker: --insecure-listen) to permit it"
        ),
    }
}

/// Connects to a worker and proves that both sides have the same identity.
pub(crate) async fn connect(tls: &Tls, host: &str, port: u16) -> io::Result<Encrypted> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let own = tls.identity();
    let name = ServerName::try_from(own.dns_name()).map_err(io::Error::other)?;
    let connected = TlsConnector::from(tls.client_config()).connect(name, stream).await;
    let stream = TlsStream::Client(connected.map_err(|error| tls.explain(error, Some(own)))?);
    check_peer(&stream, own)?;
    Ok(Encrypted(stream))
}

async fn accept(tls: &Tls, stream: TcpStream) -> io::Result<Encrypted> {
    stream.set_nodelay(true)?;
    let accepted = TlsAcceptor::from(tls.server_config()).accept(stream).await;
    let stream = TlsStream::Server(accepted.map_err(|error| tls.explain(error, None))?);
    check_peer(&stream, tls.identity())?;
    Ok(Encrypted(stream))
}

/// Checks that the peer has the identity `own`, and no other.
fn check_peer(stream: &TlsStream<TcpStream>, own: &Identity) -> io::Result<()> {
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.ok_or_else(|| io::Error::other("a handshake without a certificate"))?;
    let denied = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    let found = Identity::of_certificate(certificate, "the peer's certificate")
        .map_err(|error| denied(error.to_string()))?;
    match found == *own {
        true => Ok(()),
        false => Err(denied(format!("{found} is not {own}, and workers and sessions have one identity"))),
    }
}

/// Accepts connections and makes handshakes, many at a time. Peers that are refused are logged and do not end it.
pub(crate) fn incoming(listener: TcpListener, tls: Tls) -> impl Stream<Item = io::Result<Encrypted>> {
    let (sender, receiver) = mpsc::channel(HANDSHAKES_MAX);
    let slots = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (sender, tls) = (sender.clone(), tls.clone());
            tokio::spawn(async move {
                let shaken = tokio::time::timeout(HANDSHAKE, accept(&tls, stream)).await;
                match shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    Ok(stream) => drop(sender.send(Ok(stream)).await),
                    Err(error) => {
                        let message = format!("refused a connection from {peer}: {error}");
                        Machine.log(&Event::warn("peer_refused", message));
                    }
                }
                drop(slot);
            });
        }
    });
    stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) })
}

/// Connection of a worker whose peer has the worker's identity.
pub(crate) struct Encrypted(TlsStream<TcpStream>);

impl Connected for Encrypted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
