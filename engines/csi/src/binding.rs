//! Paths of pods at which volumes are mounted.
//!
//! The idea: a volume is mounted once, in a folder of the volume server, and bound from there into pods. Paths are
//! opened below one folder and without symbolic links, and everything else goes by the descriptor: the driver may ask
//! for nothing outside that folder.

use farpool_fuse::{KernelMount, MountTable};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, open, openat2, statx, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use tonic::Status;

/// Flags of a folder that is opened to name it.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Folder below which all targets are.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    folder: PathBuf,
}

/// A target whose parent exists.
struct Target<'t> {
    parent: OwnedFd,
    name: &'t OsStr,
    /// Canonical path.
    path: PathBuf,
}

impl Targets {
    /// Takes a canonical path.
    pub(crate) fn new(folder: PathBuf) -> Targets {
        Targets { folder }
    }

    /// Mounts a volume at a target, unless it is mounted there already in the same way. One that is mounted there for
    /// writing becomes one for reading: a process may have been killed between the two steps that takes.
    pub(crate) fn bind(&self, volume: &KernelMount, target: &str, is_read_only: bool) -> Result<(), Status> {
        let target = self
            .open(target)?
            .ok_or_else(|| Status::not_found(format!("the parent folder of {target} does not exist")))?;
        let bound = match target.mounted()? {
            Some(there) if there.device != volume.device => {
                return Err(Status::failed_precondition(format!(
                    "{} has another mount ({there}); unmount it",
                    target.path.display()
                )));
            }
            Some(there) if there.is_read_only && !is_read_only => {
                return Err(Status::already_exists(format!(
                    "the volume is at {} already, and only to read",
                    target.path.display()
                )));
            }
            Some(there) if there.is_read_only == is_read_only => return Ok(()),
            Some(_) => Ok(()),
            None => target.bind(volume),
        };
        bound
            .and_then(|()| if is_read_only { target.make_read_only() } else { Ok(()) })
            .map_err(|error| failed(&target.path, &error))
    }

    /// Unmounts a volume from a target, which it removes. Nothing happens if it does not exist. `is_permitted` says
    /// which mounts of Farpool's may be unmounted there.
    pub(crate) fn unbind(
        &self,
        target: &str,
        is_permitted: impl Fn(&KernelMount) -> Result<bool, Status>,
    ) -> Result<(), Status> {
        let Some(target) = self.open(target)? else { return Ok(()) };
        while let Some(there) = target.mounted()? {
            if !there.is_ours() || !is_permitted(&there)? {
                return Err(Status::failed_precondition(format!(
                    "{} has a mount that is not this volume's ({there})",
                    target.path.display()
                )));
            }
            // A program that has a file open there keeps it. The volume goes on as long as any mount of it.
            umount2(&target.by_number(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                .map_err(|error| failed(&target.path, &error.into()))?;
        }
        match unlinkat(&target.parent, target.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(&target.path, &error.into())),
        }
    }

    /// Opens the parent of a target. `None` if it does not exist.
    fn open<'t>(&self, target: &'t str) -> Result<Option<Target<'t>>, Status> {
        let refused = |why: &str| {
            Status::invalid_argument(format!(
                "target path {target}: {why}; paths below {} are permitted (--targets)",
                self.folder.display()
            ))
        };
        let path = Path::new(target);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(refused("it has .."));
        }
        let inner = path.strip_prefix(&self.folder).map_err(|_| refused("it is elsewhere"))?;
        let (Some(parent), Some(name)) = (inner.parent(), inner.file_name()) else {
            return Err(refused("it is that folder itself"));
        };
        let folder = open(&self.folder, FOLDER, Mode::empty());
        let folder = folder.map_err(|error| failed(&self.folder, &error.into()))?;
        let parent_path = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&folder, parent_path, FOLDER, Mode::empty(), resolve) {
            Ok(opened) => {
                Ok(Some(Target { parent: opened, name, path: self.folder.join(parent).join(name) }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(refused("a symbolic link is in it")),
            Err(Errno::XDEV) => Err(refused("it leads elsewhere")),
            Err(error) => Err(failed(path, &error.into())),
        }
    }
}

impl Target<'_> {
    fn mounted(&self) -> Result<Option<KernelMount>, Status> {
        let table = MountTable::read().map_err(|error| failed(&self.path, &error))?;
        Ok(table.at(&self.path).cloned())
    }

    fn bind(&self, volume: &KernelMount) -> io::Result<()> {
        match mkdirat(&self.parent, self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let none: Option<&str> = None;
        let (source, folder) = (opened(volume)?, self.folder()?);
        mount(Some(&by_number(&source)), &by_number(&folder), none, MsFlags::MS_BIND, none)?;
        Ok(())
    }

    fn make_read_only(&self) -> io::Result<()> {
        let none: Option<&str> = None;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        let flags = flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(none, &by_number(&self.folder()?), none, flags, none)?;
        Ok(())
    }

    fn folder(&self) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(openat2(&self.parent, self.name, FOLDER, Mode::empty(), resolve)?)
    }

    /// Returns a path that leads to this target by the descriptor of its parent.
    fn by_number(&self) -> PathBuf {
        by_number(&self.parent).join(self.name)
    }
}

/// Opens the root of a volume. It must be mounted still: otherwise a pod would get the folder below it, on the disk of
/// the machine.
fn opened(volume: &KernelMount) -> io::Result<OwnedFd> {
    let root = open(&volume.at, FOLDER, Mode::empty())?;
    // The kernel answers this by itself, whatever the process of the volume does.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = statx(&root, "", flags, StatxFlags::empty())?;
    if format!("{}:{}", told.stx_dev_major, told.stx_dev_minor) != volume.device {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the volume is not mounted any more"));
    }
    Ok(root)
}

fn by_number(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

fn failed(path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tonic::Code;

    #[test]
    fn targets_are_below_one_folder_and_reached_without_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let pods = folder.path().canonicalize().expect("there").join("pods");
        std::fs::create_dir_all(pods.join("uid/volumes")).expect("made");
        symlink(folder.path(), pods.join("link")).expect("made");
        let targets = Targets::new(pods.clone());
        let open = |path: &Path| {
            let opened = targets.open(path.to_str().expect("letters"));
            opened.map(|target| target.map(|target| target.path)).map_err(|status| status.code())
        };
        let inner = pods.join("uid/volumes/far");
        assert_eq!(open(&inner), Ok(Some(inner.clone())));
        assert_eq!(open(&pods.join("other/volumes/far")), Ok(None));
        for elsewhere in [
            &pods,
            folder.path(),
            &pods.join("../far"),
            &pods.join("a/../far"),
            &pods.join("link/far"),
            Path::new("far"),
        ] {
            assert_eq!(open(elsewhere), Err(Code::InvalidArgument), "{}", elsewhere.display());
        }
    }
}
