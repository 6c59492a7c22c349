//! Unix sockets: listening, and the lazy connection of the driver to the volume server.

use farpool_command::exit::Failure;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};

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
        std::fs::create_dir_all(folder).map_err(failed)?;
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

/// Returns a connection that is made when it is needed, and made again when it breaks.
pub(crate) fn connect(path: &Path) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(Failure::failed)?;
    Ok(endpoint.connect_lazy())
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
