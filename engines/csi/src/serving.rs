//! Processes that serve volumes: a `farpool mount scratch` for each.
//!
//! The idea: the kernel's table of mounts is the state. Whether a volume is served is asked of its mount, so a volume
//! server that starts again goes on with the volumes that are there.

use crate::volumes::{ServedVolume, VolumeOptions};
use farpool_fuse::{KernelMount, MountTable, detach_dead};
use farpool_host::{Event, Host, Machine};
use farpool_lock::Mutex;
use nix::mount::{MntFlags, umount2};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;

/// Longest time until a process has mounted its volume.
const START: Duration = Duration::from_secs(30);
/// Longest time until a process has ended after its volume was unmounted.
const ENDING: Duration = Duration::from_secs(10);
/// Longest time for a process to say how full its volume is.
const ANSWER: Duration = Duration::from_secs(2);
/// Permissions of a volume, which are those of an `emptyDir` of Kubernetes.
const MODE: u32 = 0o777;

/// Volumes that this machine serves.
#[derive(Debug)]
pub(crate) struct Served {
    /// Canonical path of the folder in which each volume has one, of its name.
    folder: PathBuf,
    /// Path of the program `farpool`.
    program: PathBuf,
    /// Variables of its processes: pool and certificates.
    variables: Vec<(&'static str, OsString)>,
    /// Processes that this one has started. The channel closes when the process has ended.
    processes: Mutex<BTreeMap<String, watch::Receiver<()>>>,
    /// Volumes whose process was asked and has not answered yet. The thread that asks is stuck until it does.
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Served {
    pub(crate) fn new(folder: PathBuf, program: PathBuf, variables: Vec<(&'static str, OsString)>) -> Served {
        Served { folder, program, variables, processes: Mutex::default(), asked: Arc::default() }
    }

    /// Starts to serve a volume, unless it is served already.
    pub(crate) async fn serve(&self, volume: &str, options: &VolumeOptions) -> Result<(), Status> {
        if self.list_one(volume).await?.is_some_and(|served| served.is_alive) {
            return Ok(());
        }
        let folder = self.folder.join(volume);
        let made = folder.clone();
        blocking(move || {
            // Its process has ended, and what it had is lost.
            detach_dead(&made).map_err(|error| Status::internal(error.to_string()))?;
            let make = || -> io::Result<()> {
                fs::create_dir_all(&made)?;
                fs::set_permissions(&made, fs::Permissions::from_mode(MODE))
            };
            make().map_err(|error| Status::internal(format!("{}: {error}", made.display())))
        })
        .await?;
        let mut child = self.command(&folder, options).spawn().map_err(|error| {
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
            self.keep(volume, child);
            return Ok(());
        }
        // It has ended, or does not end by itself.
        let _ = child.kill().await;
        let last = match said {
            Some(said) => said.await.unwrap_or_default(),
            None => String::new(),
        };
        let why = if last.is_empty() { format!("not mounted within {START:?}") } else { last };
        Err(Status::unavailable(format!("volume {volume}: {why}")))
    }

    fn command(&self, folder: &Path, options: &VolumeOptions) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["mount", "scratch", "--allow-other", "--log-format", "json", "--quota"]);
        command.arg(options.size_bytes.to_string());
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
        command.arg("--").arg(folder).envs(self.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(false);
        // A signal of the terminal is for the volume server alone.
        command.process_group(0);
        command
    }

    /// Waits for the end of a process, and says when it comes.
    fn keep(&self, volume: &str, mut child: Child) {
        let (ended, ends) = watch::channel(());
        self.processes.lock().insert(volume.to_owned(), ends);
        let volume = volume.to_owned();
        tokio::spawn(async move {
            let status = child.wait().await;
            let (message, is_well) = match status {
                Ok(status) => {
                    (format!("the process that served volume {volume} ended: {status}"), status.success())
                }
                Err(error) => {
                    (format!("the process that served volume {volume} is not known any more: {error}"), false)
                }
            };
            Machine.log(&match is_well {
                true => Event::info("volume_ended", message),
                false => Event::error("volume_lost", format!("{message}; what the volume had is lost")),
            });
            drop(ended);
        });
    }

    /// Ends a volume that is not mounted in any pod.
    pub(crate) async fn end(&self, volume: &str) -> Result<(), Status> {
        let folder = self.folder.join(volume);
        if let Some((mount, table)) = self.mount_of(volume)? {
            let targets = targets(&table, &mount);
            if !targets.is_empty() {
                return Err(Status::failed_precondition(format!(
                    "volume {volume} is in use: it is mounted at {}",
                    targets.join(", ")
                )));
            }
            let at = mount.at.clone();
            blocking(move || {
                umount2(&at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                    .map_err(|error| Status::internal(format!("{}: {error}", at.display())))
            })
            .await?;
        }
        let ends = self.processes.lock().remove(volume);
        if let Some(mut ends) = ends {
            // The process gives its memory back before it ends.
            let _ = timeout(ENDING, ends.changed()).await;
        }
        match fs::remove_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Status::internal(format!("{}: {error}", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// Returns the mount of a volume, and the table that has it. `None` if it is not mounted.
    pub(crate) fn mount_of(&self, volume: &str) -> Result<Option<(KernelMount, MountTable)>, Status> {
        let table =
            MountTable::read().map_err(|error| Status::internal(format!("the table of mounts: {error}")))?;
        let mount = table.at(&self.folder.join(volume)).filter(|mount| mount.is_ours()).cloned();
        Ok(mount.map(|mount| (mount, table)))
    }

    /// Returns a volume if it is mounted.
    pub(crate) async fn list_one(&self, volume: &str) -> Result<Option<ServedVolume>, Status> {
        let Some((mount, table)) = self.mount_of(volume)? else { return Ok(None) };
        let mut served = ServedVolume {
            volume: volume.to_owned(),
            targets: targets(&table, &mount),
            ..Default::default()
        };
        if let Some(space) = self.space(volume, mount.at).await {
            let used = space.f_blocks.saturating_sub(space.f_bfree);
            served.is_alive = true;
            served.size_bytes = space.f_blocks.saturating_mul(space.f_frsize);
            served.used_bytes = used.saturating_mul(space.f_frsize);
            served.files = space.f_files.saturating_sub(space.f_ffree);
        }
        Ok(Some(served))
    }

    /// Returns all volumes that are mounted.
    pub(crate) async fn list(&self) -> Result<Vec<ServedVolume>, Status> {
        let failed = |error: io::Error| Status::internal(format!("{}: {error}", self.folder.display()));
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some(volume) = name.to_str() {
                found.extend(self.list_one(volume).await?);
            }
        }
        found.sort_unstable_by(|one, other| one.volume.cmp(&other.volume));
        Ok(found)
    }

    /// Asks the process of a volume how full it is. `None` if it has ended or does not answer in time.
    async fn space(&self, volume: &str, at: PathBuf) -> Option<rustix::fs::StatVfs> {
        if !self.asked.lock().insert(volume.to_owned()) {
            return None;
        }
        let (asked, volume) = (self.asked.clone(), volume.to_owned());
        let asking = spawn_blocking(move || {
            let space = rustix::fs::statvfs(&at);
            asked.lock().remove(&volume);
            space.ok()
        });
        timeout(ANSWER, asking).await.ok()?.ok()?
    }
}

/// Returns the paths at which a volume is mounted besides its own folder.
fn targets(table: &MountTable, volume: &KernelMount) -> Vec<String> {
    let others = table.of_device(&volume.device).filter(|mount| mount.at != volume.at);
    others.map(|mount| mount.at.display().to_string()).collect()
}

/// Passes the log of a volume's process on to that of this one, with the name of the volume. Returns its last line.
async fn passed_on(volume: String, from: impl AsyncRead + Unpin) -> String {
    let mut lines = BufReader::new(from).lines();
    let mut last = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        let event = serde_json::from_str::<serde_json::Value>(&line).ok();
        let get = |key: &str| event.as_ref().and_then(|event| event[key].as_str());
        let message = format!("volume {volume}: {}", get("message").unwrap_or(&line));
        Machine.log(&match get("level") {
            Some("ERROR") => Event::error("volume_failed", message),
            Some("INFO" | "DEBUG") => Event::info("volume_says", message),
            _ => Event::warn("volume_warns", message),
        });
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
