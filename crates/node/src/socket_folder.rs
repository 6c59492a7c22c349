//! Folder in which sockets for shared memory are files, for clients in other network namespaces. Nodes of several pools
//! may share a folder, and two of them may have the same name.

use farpool_transport::shm;
use farpool_wire::{Incarnation, NodeId};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Folder for sockets, by its absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFolder(String);

impl SocketFolder {
    /// Most bytes of the path. That of a Unix socket has at most 107 bytes, of which the socket's name takes its part.
    pub const BYTES_MAX: usize = 107 - "/farpool-0123456789abcdef-0123456789abcdef.sock".len();

    /// Finds the folder. The error says why it cannot have sockets.
    pub fn new(folder: &Path) -> Result<SocketFolder, String> {
        let path = folder.canonicalize().map_err(|error| error.to_string())?;
        let path = path.to_str().ok_or_else(|| format!("the path {} is not UTF-8", path.display()))?;
        if path.len() > Self::BYTES_MAX {
            return Err(format!(
                "the path {path} has {} bytes; at most {} are permitted, so that the path of a socket fits",
                path.len(),
                Self::BYTES_MAX
            ));
        }
        Ok(SocketFolder(path.to_owned()))
    }

    /// Returns the path of a node's socket. Removes the sockets of the node's earlier lives.
    pub(crate) fn socket(&self, node: NodeId, incarnation: Incarnation) -> io::Result<String> {
        let (begin, end) = shm::SOCKET_NAME;
        let begin = format!("{begin}{:016x}-", node.0);
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(&begin) && name.ends_with(end)) {
                remove_unless_served(&Path::new(&self.0).join(name))?;
            }
        }
        Ok(format!("{}/{begin}{:016x}{end}", self.0, incarnation.0))
    }
}

impl fmt::Display for SocketFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Removes a socket that no process has any more. Does nothing if there is none at the path.
fn remove_unless_served(socket: &Path) -> io::Result<()> {
    // The kernel refuses a connection if no process has the socket. If one has it, this connection fails otherwise,
    // because it is of another type: the process does not learn of it, and nobody waits for the process.
    let asked = UnixDatagram::unbound()?.connect(socket);
    if asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        match fs::remove_file(socket) {
            // Another node has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => return removed,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    /// Makes a folder whose path has this many bytes.
    fn folder_of(bytes: usize, root: &Path) -> PathBuf {
        let root = root.canonicalize().unwrap();
        let folder = root.join("x".repeat(bytes - root.as_os_str().len() - 1));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn start_removes_the_sockets_of_earlier_lives_and_not_that_of_a_node_of_the_same_name_that_lives() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let folder = SocketFolder::new(&folder_of(SocketFolder::BYTES_MAX, root.path())).unwrap();
        let socket = |life| folder.socket(NodeId(7), Incarnation(life)).unwrap();
        let [dead, lives, other] = [1, 2, 3].map(socket);
        drop(UnixListener::bind(&dead).unwrap());
        let _listens = UnixListener::bind(&lives).unwrap();
        fs::write(Path::new(&folder.0).join("farpool-of-another.sock"), "").unwrap();
        assert_eq!(socket(3), other);
        let left = fs::read_dir(&folder.0).unwrap().count();
        assert_eq!((Path::new(&dead).exists(), left), (false, 2));
        UnixStream::connect(&lives).unwrap();
        remove_unless_served(Path::new(&dead)).unwrap();
    }

    #[test]
    fn folder_whose_path_leaves_no_room_for_a_socket_is_refused_with_both_lengths() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let refused = SocketFolder::new(&folder_of(SocketFolder::BYTES_MAX + 1, root.path())).unwrap_err();
        assert!(refused.contains(" 61 bytes") && refused.contains(" 60 "), "{refused}");
        assert!(SocketFolder::new(&root.path().join("missing")).is_err());
    }
}
