//! Processes that serve volumes: a `farpool mount scratch` for each.
//!
//! The idea: the kernel is the state. The process of a volume has a lock on a file (flock(2)) as long as it lives, and
//! its mount is in the kernel's table. So a volume server that starts again goes on with the volumes that are there,
//! and whether one is lost is known without asking a process that may not answer.

use crate::volumes::{ServedVolume, VolumeOptions};
use farpool_files::units::show_bytes;
use farpool_fuse::{KernelMount, MountTable};
use farpool_host::{Event, Host, Machine, UsableMemory};
use farpool_lock::Mutex;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

/// Longest time until a process has mounted its volume.
const START: Duration = Duration::from_secs(30);
/// Longest time until a process has ended after its volume was unmounted.
const ENDING: Duration = Duration::from_secs(10);
/// Longest time for a process to say how full its volume is.
const ANSWER: Duration = Duration::from_secs(2);
/// Interval between two looks at the lock of a volume.
const LOOK: Duration = Duration::from_millis(20);
/// Folder in which the kernel has a file for each FUSE file system that ends it.
const FUSE_CONTROL: &str = "/sys/fs/fuse/connections";
/// Permissions of a volume, which are those of an `emptyDir` of Kubernetes.
const MODE: u32 = 0o777;
/// Folder of the locks, within that of the volumes. No volume can have this name.
const LOCKS: &str = ".locks";

/// A volume may have a file or directory for so many bytes of its size, as file systems on disks have by default.
const BYTES_PER_FILE: u64 = 16 << 10;
/// Permitted numbers of files and directories of a volume.
const FILES: std::ops::RangeInclusive<u64> = 1024..=65_536;
/// Memory of a volume's process for a file with contents and the longest name, in bytes. Measured: 2.7 KiB.
const FILE_MEMORY_BYTES: u64 = 3 << 10;
/// Memory of a volume's process besides, in bytes. Measured: 60 MB with an encrypted and mirrored file of 2.5 GB.
const PROCESS_MEMORY_BYTES: u64 = 64 << 20;
/// Share of this control group's memory that volumes may need together, in percent.
const MEMORY_SHARE: u64 = 90;

/// Volumes that this machine serves.
#[derive(Debug)]
pub(crate) struct Served {
    /// Canonical path of the folder in which each volume has one, of its name.
    folder: PathBuf,
    /// Path of the program `farpool`.
    program: PathBuf,
    /// Variables of its processes: pool and certificates.
    variables: Vec<(&'static str, OsString)>,
    /// Answers of the processes that are being asked how full their volume is.
    asked: Arc<Mutex<BTreeMap<String, watch::Receiver<Option<Space>>>>>,
}

/// Space of a volume.
#[derive(Clone, Copy, Debug, Default)]
struct Space {
    size_bytes: u64,
    used_bytes: u64,
    files: u64,
}

/// Returns the number of files and directories that a volume may have.
fn files_max(size_bytes: u64) -> u64 {
    (size_bytes / BYTES_PER_FILE).clamp(*FILES.start(), *FILES.end())
}

/// Returns the bytes of memory that the process of a volume may need.
fn memory_bytes(size_bytes: u64) -> u64 {
    PROCESS_MEMORY_BYTES + files_max(size_bytes) * FILE_MEMORY_BYTES
}

impl Served {
    /// Takes a canonical path, and makes the folder of the locks in it.
    pub(crate) fn new(
        folder: PathBuf,
        program: PathBuf,
        variables: Vec<(&'static str, OsString)>,
    ) -> io::Result<Served> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join(LOCKS))?;
        Ok(Served { folder, program, variables, asked: Arc::default() })
    }

    /// Starts to serve a volume, unless it is served already.
    pub(crate) async fn serve(&self, volume: &str, options: &VolumeOptions) -> Result<(), Status> {
        let Some(lock) = self.lock(volume).await? else { return Ok(()) };
        self.check_memory(volume, options.size_bytes)?;
        self.make_folder(volume).await?;
        let written = set_text(&lock, &options.size_bytes.to_string());
        written.map_err(|error| failed(&self.lock_path(volume), &error))?;
        let mut child = self.command(volume, options, lock).spawn().map_err(|error| {
            Status::internal(format!("{} cannot be started: {error}", self.program.display()))
        })?;
        let out = child.stdout.take().map(BufReader::new);
        let said = child.stderr.take().map(|stderr| tokio::spawn(passed_on(volume.to_owned(), stderr)));
        let mut line = String::new();
        let is_ready = match out {
            Some(mut out) => match timeout(START, out.read_line(&mut line)).await {
                Ok(read) => read.is_ok() && line.starts_with("ready"),
                Err(_) => false,
            },
            None => false,
        };
        if is_ready {
            watch_end(volume.to_owned(), child);
            return Ok(());
        }
        // It has ended, or does not end by itself.
        let _ = timeout(ENDING, child.kill()).await;
        let last = match said {
            Some(said) => timeout(ENDING, said).await.ok().and_then(Result::ok).unwrap_or_default(),
            None => String::new(),
        };
        let why = if last.is_empty() { format!("not mounted within {START:?}") } else { last };
        Err(Status::unavailable(format!("volume {volume}: {why}")))
    }

    /// Takes the lock of a volume for a new process. `None` if its process lives and has mounted it.
    async fn lock(&self, volume: &str) -> Result<Option<File>, Status> {
        let path = self.lock_path(volume);
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open().map_err(|error| failed(&path, &error))?;
        let give_up = Instant::now() + START;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(&path, &error.into())),
            }
            // Otherwise somebody looks whether it lives, or an earlier volume server has started it, and it has not
            // mounted yet.
            if self.is_alive(volume)? && self.mount_of(volume)?.is_some() {
                return Ok(None);
            }
            if Instant::now() >= give_up {
                return Err(Status::unavailable(format!(
                    "volume {volume}: an earlier process for it lives and has not mounted it within {START:?}"
                )));
            }
            sleep(LOOK).await;
        }
    }

    /// Refuses a volume if its process might need more memory than this one's control group has left. Without this, the
    /// kernel would end the processes of all volumes together.
    fn check_memory(&self, volume: &str, size_bytes: u64) -> Result<(), Status> {
        let Some(group) = UsableMemory::find().group_limit() else { return Ok(()) };
        let mut needed = memory_bytes(size_bytes);
        for other in self.names()? {
            if other != volume && self.is_alive(&other)? {
                let size = fs::read_to_string(self.lock_path(&other)).ok().and_then(|text| text.parse().ok());
                needed += memory_bytes(size.unwrap_or(0));
            }
        }
        let limit = group.total_bytes / 100 * MEMORY_SHARE;
        if needed > limit {
            return Err(Status::resource_exhausted(format!(
                "volume {volume}: the names of its files and those of this machine's other volumes may need {}, and {} \
                 are permitted ({MEMORY_SHARE} % of the volume server's memory limit); raise that limit \
                 (csi.memoryLimit), or end other volumes",
                show_bytes(needed),
                show_bytes(limit)
            )));
        }
        Ok(())
    }

    /// Makes the folder of a volume that is not served. What an ended process has left mounted there is detached.
    async fn make_folder(&self, volume: &str) -> Result<(), Status> {
        while let Some((mount, _)) = self.mount_of(volume)? {
            detach(mount.at).await?;
        }
        let folder = self.folder.join(volume);
        blocking(move || {
            let made = fs::create_dir_all(&folder)
                .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(MODE)));
            made.map_err(|error| failed(&folder, &error))
        })
        .await
    }

    fn command(&self, volume: &str, options: &VolumeOptions, lock: File) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["mount", "scratch", "--allow-other", "--log-format", "json"]);
        command.args(["--quota", &options.size_bytes.to_string()]);
        command.args(["--files", &files_max(options.size_bytes).to_string()]);
        for (flag, value) in [
            ("--protection", &options.protection),
            ("--transport", &options.transport),
            ("--pool", &options.pool),
        ] {
            if !value.is_empty() {
                command.args([flag, value]);
            }
        }
        if options.encrypted {
            command.arg("--encrypted");
        }
        command.arg("--").arg(self.folder.join(volume)).envs(self.variables.iter().cloned());
        // The lock lives as long as the standard input of the process, from which nothing is read.
        command.stdin(Stdio::from(lock)).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(false);
        // A signal of the terminal is for the volume server alone.
        command.process_group(0);
        command
    }

    /// Ends a volume that is not mounted in any pod.
    pub(crate) async fn end(&self, volume: &str) -> Result<(), Status> {
        let mut devices = Vec::new();
        while let Some((mount, table)) = self.mount_of(volume)? {
            let pods: Vec<String> =
                others(&table, &mount).map(|other| other.at.display().to_string()).collect();
            if !pods.is_empty() {
                return Err(Status::failed_precondition(format!(
                    "volume {volume} is in use: it is mounted at {}",
                    pods.join(", ")
                )));
            }
            devices.push(mount.device);
            detach(mount.at).await?;
        }
        let (folder, lock) = (self.folder.join(volume), self.lock_path(volume));
        // The kernel unmounts copies in other mount namespaces when the folder is removed.
        blocking(move || removed(fs::remove_dir(&folder), &folder)).await?;
        // The process gives its memory back, and ends.
        if !self.has_ended(volume).await? {
            // A program of another mount namespace has a file open.
            for minor in devices.iter().filter_map(|device| device.split(':').nth(1)) {
                let _ = fs::write(Path::new(FUSE_CONTROL).join(minor).join("abort"), "1");
            }
            if !self.has_ended(volume).await? {
                return Err(Status::unavailable(format!(
                    "volume {volume}: its process has not ended within {ENDING:?}; ask again"
                )));
            }
        }
        blocking(move || removed(fs::remove_file(&lock), &lock)).await
    }

    /// Waits until the process of a volume has ended.
    async fn has_ended(&self, volume: &str) -> Result<bool, Status> {
        let give_up = Instant::now() + ENDING;
        while self.is_alive(volume)? {
            if Instant::now() >= give_up {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
        Ok(true)
    }

    fn lock_path(&self, volume: &str) -> PathBuf {
        self.folder.join(LOCKS).join(volume)
    }

    /// Reports whether the process of a volume lives.
    fn is_alive(&self, volume: &str) -> Result<bool, Status> {
        let path = self.lock_path(volume);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(|error| failed(&path, &error))?,
        };
        // Locks of those who only look do not exclude each other.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(failed(&path, &error.into())),
        }
    }

    /// Returns the mount of a volume, and the table that has it. `None` if it is not mounted.
    pub(crate) fn mount_of(&self, volume: &str) -> Result<Option<(KernelMount, MountTable)>, Status> {
        let table = mounts()?;
        let mount = table.at(&self.folder.join(volume)).filter(|mount| mount.is_ours()).cloned();
        Ok(mount.map(|mount| (mount, table)))
    }

    /// Returns the volume that a mount in a pod is of. `None` if that volume is not mounted any more.
    pub(crate) fn volume_of(&self, mount: &KernelMount) -> Result<Option<String>, Status> {
        let table = mounts()?;
        let of_volume = |other: &KernelMount| other.at.parent() == Some(&self.folder);
        let found = table.of_device(&mount.device).find(|other| of_volume(other));
        Ok(found.and_then(|other| Some(other.at.file_name()?.to_str()?.to_owned())))
    }

    /// Returns a volume if it is mounted.
    pub(crate) async fn list_one(&self, volume: &str) -> Result<Option<ServedVolume>, Status> {
        let Some((mount, table)) = self.mount_of(volume)? else { return Ok(None) };
        let pods = others(&table, &mount).filter(|other| other.is_whole);
        let mut served = ServedVolume {
            volume: volume.to_owned(),
            is_alive: self.is_alive(volume)?,
            targets: pods.map(|other| other.at.display().to_string()).collect(),
            ..Default::default()
        };
        if served.is_alive
            && let Some(space) = self.space(volume, mount.at).await
        {
            served.answers = true;
            served.size_bytes = space.size_bytes;
            served.used_bytes = space.used_bytes;
            served.files = space.files;
        }
        Ok(Some(served))
    }

    /// Returns all volumes that are mounted.
    pub(crate) async fn list(&self) -> Result<Vec<ServedVolume>, Status> {
        let mut found = Vec::new();
        for volume in self.names()? {
            found.extend(self.list_one(&volume).await?);
        }
        Ok(found)
    }

    /// Returns the names of all volumes that have been served and not ended, in order.
    fn names(&self) -> Result<Vec<String>, Status> {
        let locks = self.folder.join(LOCKS);
        let list = || -> io::Result<Vec<String>> {
            let names = fs::read_dir(&locks)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
            names.filter_map(Result::transpose).collect()
        };
        let mut names = list().map_err(|error| failed(&locks, &error))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Asks the process of a volume how full it is. `None` if it does not answer in time. Whoever asks while another
    /// waits gets the same answer.
    async fn space(&self, volume: &str, at: PathBuf) -> Option<Space> {
        let mut answer = {
            let mut asked = self.asked.lock();
            match asked.get(volume) {
                Some(answer) => answer.clone(),
                None => {
                    let (tell, answer) = watch::channel(None);
                    asked.insert(volume.to_owned(), answer.clone());
                    let (asked, volume) = (Arc::clone(&self.asked), volume.to_owned());
                    spawn_blocking(move || {
                        let space = rustix::fs::statvfs(&at);
                        asked.lock().remove(&volume);
                        if let Ok(space) = space {
                            tell.send_replace(Some(Space::of(&space)));
                        }
                    });
                    answer
                }
            }
        };
        let space = timeout(ANSWER, answer.wait_for(Option::is_some)).await;
        space.ok()?.ok().and_then(|space| *space)
    }
}

impl Space {
    fn of(told: &rustix::fs::StatVfs) -> Space {
        let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
        Space {
            size_bytes: bytes(told.f_blocks),
            used_bytes: bytes(told.f_blocks.saturating_sub(told.f_bfree)),
            files: told.f_files.saturating_sub(told.f_ffree),
        }
    }
}

/// Mounts [`FUSE_CONTROL`], which a container does not have by itself. Without it, a volume that a program of another
/// mount namespace keeps open ends only after that program.
pub(crate) fn mount_fuse_control() {
    let is_empty = fs::read_dir(FUSE_CONTROL).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty {
        let none: Option<&str> = None;
        let _ = mount(Some("fusectl"), FUSE_CONTROL, Some("fusectl"), MsFlags::empty(), none);
    }
}

/// Says when the process of a volume ends, and how.
fn watch_end(volume: String, mut child: Child) {
    tokio::spawn(async move {
        let (message, is_well) = match child.wait().await {
            Ok(status) => {
                (format!("the process that served volume {volume} ended: {status}"), status.success())
            }
            Err(error) => {
                (format!("the process that served volume {volume} is not known any more: {error}"), false)
            }
        };
        let event = match is_well {
            true => Event::info("volume_ended", message),
            false => Event::error("volume_lost", format!("{message}; what the volume had is lost")),
        };
        Machine.log(&event.about(volume));
    });
}

/// Returns the other mounts of a volume, in pods. Parts of it that a pod mounts (`subPath`) are among them.
fn others<'t>(table: &'t MountTable, volume: &'t KernelMount) -> impl Iterator<Item = &'t KernelMount> {
    table.of_device(&volume.device).filter(|mount| mount.at != volume.at)
}

fn mounts() -> Result<MountTable, Status> {
    MountTable::read().map_err(|error| Status::internal(format!("the table of mounts: {error}")))
}

/// Detaches the mount at a path, whether it is in use or not.
async fn detach(at: PathBuf) -> Result<(), Status> {
    blocking(move || {
        umount2(&at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|error| failed(&at, &error.into()))
    })
    .await
}

/// Accepts that a path which was to be removed does not exist.
fn removed(done: io::Result<()>, path: &Path) -> Result<(), Status> {
    match done {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path, &error)),
        _ => Ok(()),
    }
}

/// Replaces what a file has.
fn set_text(mut file: &File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

fn failed(path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{}: {error}", path.display()))
}

/// Passes the log of a volume's process on to that of this one, with the name of the volume. Returns its last line.
async fn passed_on(volume: String, from: impl AsyncRead + Unpin) -> String {
    let mut lines = BufReader::new(from).lines();
    let mut last = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        let event = serde_json::from_str::<serde_json::Value>(&line).ok();
        let get = |key: &str| event.as_ref().and_then(|event| event[key].as_str());
        let message = format!("volume {volume}: {}", get("message").unwrap_or(&line));
        let event = match get("level") {
            Some("ERROR") => Event::error("volume_failed", message),
            Some("INFO" | "DEBUG") => Event::info("volume_says", message),
            _ => Event::warn("volume_warns", message),
        };
        Machine.log(&event.about(volume.clone()));
        last = line.strip_prefix("farpool: ").unwrap_or(&line).to_owned();
    }
    last
}

/// Runs what blocks on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(folder: &Path) -> Served {
        Served::new(folder.to_owned(), "/bin/true".into(), Vec::new()).expect("made")
    }

    #[tokio::test]
    async fn lock_says_whether_the_process_of_a_volume_lives_whoever_looks() {
        let folder = tempfile::tempdir().expect("a folder");
        let served = served(folder.path());
        assert_eq!(served.is_alive("v").map_err(|status| status.code()), Ok(false));
        let lock = served.lock("v").await.expect("taken").expect("nobody else has it");
        assert_eq!(served.is_alive("v").map_err(|status| status.code()), Ok(true));
        let mut process =
            std::process::Command::new("sleep").arg("600").stdin(lock).spawn().expect("started");
        assert_eq!(served.is_alive("v").map_err(|status| status.code()), Ok(true));
        process.kill().expect("killed");
        process.wait().expect("ended");
        assert_eq!(served.is_alive("v").map_err(|status| status.code()), Ok(false));
        let look = File::open(served.lock_path("v")).expect("there");
        flock(&look, FlockOperation::NonBlockingLockShared).expect("nobody has it alone");
        assert_eq!(served.is_alive("v").map_err(|status| status.code()), Ok(false), "another one only looks");
    }

    #[test]
    fn memory_grows_with_the_size_up_to_a_limit() {
        assert_eq!(files_max(1 << 20), 1024);
        assert_eq!(files_max(1 << 30), 65_536);
        assert_eq!(files_max(1 << 40), 65_536);
        assert!(memory_bytes(512 << 20) < memory_bytes(1 << 30));
        assert_eq!(memory_bytes(1 << 30), memory_bytes(1 << 40));
    }
}
