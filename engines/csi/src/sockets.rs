//! Unix sockets: listening and serving, and the lazy connection of the driver to the volume server.

use farpool_command::exit::Failure;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::future::pending;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

/// Longest time for requests under way to end after a signal.
const DRAIN: Duration = Duration::from_secs(20);
/// Longest time for the process before this one to end.
const PREDECESSOR: Duration = Duration::from_secs(10);
/// Interval between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time for the volume server to answer a request. It waits for a process that mounts, or for one that ends.
const REQUEST: Duration = Duration::from_secs(75);

/// Parses the address of a socket: `unix:///path`, `unix:/path` or `/path`.
pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.starts_with('/') && path.len() <= PATH_BYTES_MAX {
        return Ok(path.into());
    }
    Err(format!(
        "{text:?} is no address of a Unix socket: unix:///PATH with up to {PATH_BYTES_MAX} bytes of path is permitted"
    ))
}

/// Longest path of a socket in bytes (unix(7)).
const PATH_BYTES_MAX: usize = 107;

/// Listens at a path. A socket that a process left there when it ended is replaced. Only root may connect.
pub(crate) async fn listen(flag: &str, path: &Path) -> Result<UnixListener, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{flag} {}: {error}", path.display()));
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            return Err(Failure::Failed(format!(
                "{flag} {}: another process listens there; stop it, or choose another path",
                path.display()
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)?;
        }
        // Nothing is there, or no socket; then binding fails.
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Takes a directory for this process alone, as long as the file that it returns is open.
pub(crate) fn alone(flag: &str, folder: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{flag} {}: {error}", folder.display()));
    let opened = File::open(folder).map_err(failed)?;
    let give_up = Instant::now() + PREDECESSOR;
    loop {
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(opened),
            Err(Errno::WOULDBLOCK) if Instant::now() < give_up => std::thread::sleep(LOOK),
            Err(Errno::WOULDBLOCK) => {
                return Err(Failure::Failed(format!(
                    "{flag} {}: another process uses this directory; stop it, or choose another directory",
                    folder.display()
                )));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Catches SIGINT and SIGTERM from now on. The future ends when one has come.
pub(crate) fn stop() -> io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Answers requests until `stop` ends, and then those under way. The socket is removed first, so that nobody sends any
/// more.
pub(crate) async fn serve(
    router: Router,
    listener: UnixListener,
    path: &Path,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let (tell, told) = oneshot::channel();
    let stopped = async {
        stop.await;
        let _ = std::fs::remove_file(path);
        let _ = tell.send(());
    };
    let too_slow = async {
        match told.await {
            Ok(()) => sleep(DRAIN).await,
            Err(_) => pending().await,
        }
    };
    tokio::select! {
        served = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped) => {
            served.map_err(Failure::failed)
        }
        () = too_slow => Ok(()),
    }
}

/// Returns a connection that is made when it is needed, and made again when it breaks. Requests have a deadline.
pub(crate) fn connect(path: &Path) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(Failure::failed)?;
    Ok(endpoint.timeout(REQUEST).connect_lazy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_socket_is_an_absolute_path() {
        for text in ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"] {
            assert_eq!(path(text), Ok(PathBuf::from("/run/csi.sock")));
        }
        for text in ["", "unix://", "run/csi.sock", "tcp://127.0.0.1:1", &format!("/{}", "a".repeat(107))] {
            assert!(path(text).is_err(), "{text:?}");
        }
    }
}
