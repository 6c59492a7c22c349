//! What a user would pick instead: servers that this run starts and ends, and folders for files.

use super::files::{DiskFile, Local, Medium, is_memory};
use super::key_value::{Dialect, KeyValue};
use super::measure::Target;
use super::processes::{Server, find_program, free_port, is_listening, start_other};
use crate::exit::Failure;
use std::path::{Path, PathBuf};

/// Something to measure far memory beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rival {
    Redis,
    Memcached,
    Tmpfs,
    Disk,
    Fuse,
}

/// With the words they are asked for by.
const RIVALS: [(&str, Rival); 5] = [
    ("redis", Rival::Redis),
    ("memcached", Rival::Memcached),
    ("tmpfs", Rival::Tmpfs),
    ("disk", Rival::Disk),
    ("fuse", Rival::Fuse),
];

/// Reads one word of `--beside`.
pub(super) fn parse_rival(word: &str) -> Result<Rival, String> {
    let words = RIVALS.map(|(word, _)| word).join(", ");
    let found = RIVALS.into_iter().find(|(known, _)| *known == word);
    found.map(|(_, rival)| rival).ok_or_else(|| format!("{word:?} is none of {words}"))
}

impl Rival {
    /// As it stands in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Rival::Redis => "redis",
            Rival::Memcached => "memcached",
            Rival::Tmpfs => "tmpfs file",
            Rival::Disk => "disk, direct",
            Rival::Fuse => "fuse, direct",
        }
    }
}

/// A rival that is ready to be measured.
pub(super) struct Ready {
    pub(super) rival: Rival,
    server: Option<Server>,
    port: u16,
    folder: PathBuf,
    /// Folders to remove; the file system that was mounted there is gone when its server is.
    made: Vec<PathBuf>,
}

/// A file system in memory that every Linux system has.
const TMPFS: &str = "/dev/shm";

impl Ready {
    /// Makes it ready for `bytes` of files. `disk` is where files on a disk go.
    pub(super) fn start(rival: Rival, bytes: u64, disk: &Path) -> Result<Ready, Failure> {
        let folder = if rival == Rival::Disk { disk } else { Path::new(TMPFS) };
        let mut ready = Ready { rival, server: None, port: 0, folder: folder.to_owned(), made: Vec::new() };
        match rival {
            Rival::Redis => ready.start_redis()?,
            Rival::Memcached => ready.start_memcached(bytes)?,
            Rival::Fuse => ready.mount_fuse()?,
            Rival::Tmpfs if !is_memory(folder)? => {
                return Err(Failure::Failed(format!("{TMPFS} is no tmpfs here")));
            }
            Rival::Disk if is_memory(folder)? => {
                return Err(Failure::Usage(format!(
                    "--disk {}: that lies in memory; a folder on a disk is wanted",
                    folder.display()
                )));
            }
            Rival::Tmpfs | Rival::Disk => {}
        }
        Ok(ready)
    }

    fn start_redis(&mut self) -> Result<(), Failure> {
        let program = find_program("redis-server", "redis-server")?;
        let port = free_port()?;
        let folder = self.make_folder("redis")?;
        // Nothing is kept on a disk: that would be another race.
        let (port_text, folder) = (port.to_string(), folder.display().to_string());
        let args = [
            "--port",
            &port_text,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            &folder,
        ]
        .map(str::to_owned);
        let mut server = start_other(&program, &args)?;
        server.wait_ready("redis-server", || is_listening(port))?;
        (self.port, self.server) = (port, Some(server));
        Ok(())
    }

    fn start_memcached(&mut self, bytes: u64) -> Result<(), Failure> {
        let program = find_program("memcached", "memcached")?;
        let port = free_port()?;
        // Its slabs lose up to half of the room to blocks that fill no slot, and what it evicts is an error here.
        let megabytes = ((bytes * 2) >> 20) + 256;
        let (port_text, megabytes) = (port.to_string(), megabytes.to_string());
        // Only root is asked whom to become; others stay who they are.
        let args =
            ["-l", "127.0.0.1", "-p", &port_text, "-U", "0", "-m", &megabytes, "-I", "2m", "-u", "root"]
                .map(str::to_owned);
        let mut server = start_other(&program, &args)?;
        server.wait_ready("memcached", || is_listening(port))?;
        (self.port, self.server) = (port, Some(server));
        Ok(())
    }

    fn mount_fuse(&mut self) -> Result<(), Failure> {
        let program = find_program("bindfs", "bindfs")?;
        let (below, mounted) = (self.make_folder("below")?, self.make_folder("mounted")?);
        let args = [
            "-f".to_owned(),
            "--no-allow-other".to_owned(),
            "--multithreaded".to_owned(),
            below.display().to_string(),
            mounted.display().to_string(),
        ];
        let mut server = start_other(&program, &args)?;
        let is_mounted = || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            mounts.lines().any(|line| line.split(' ').nth(1) == mounted.to_str())
        };
        server.wait_ready("bindfs", is_mounted).map_err(|error| match error {
            Failure::Failed(text) => Failure::Failed(format!("{text} (it needs /dev/fuse and fusermount3)")),
            other => other,
        })?;
        self.folder = mounted;
        self.server = Some(server);
        Ok(())
    }

    fn make_folder(&mut self, name: &str) -> Result<PathBuf, Failure> {
        let folder = Path::new(TMPFS).join(format!("farpool-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
        self.made.push(folder.clone());
        Ok(folder)
    }

    /// The processes that serve it.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.server.iter().map(Server::pid).collect()
    }

    /// An empty file for a client.
    pub(super) fn open(&self, client: usize) -> Result<Box<dyn Target>, Failure> {
        let name = client.to_string();
        Ok(match self.rival {
            Rival::Redis => Box::new(KeyValue::connect(Dialect::Redis, self.port, client)?),
            Rival::Memcached => Box::new(KeyValue::connect(Dialect::Memcached, self.port, client)?),
            Rival::Tmpfs => Box::new(DiskFile::create(&self.folder, &name, Medium::Memory)?),
            Rival::Disk | Rival::Fuse => Box::new(DiskFile::create(&self.folder, &name, Medium::Waits)?),
        })
    }

    /// Whether it takes and gives whole blocks only.
    pub(super) fn is_by_key(&self) -> bool {
        matches!(self.rival, Rival::Redis | Rival::Memcached)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        drop(self.server.take());
        for folder in self.made.iter().rev() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Memory of this process for one client.
pub(super) fn memory(bytes: u64) -> Box<dyn Target> {
    Box::new(Local(vec![1; bytes as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rival_is_known_by_its_word() {
        for (word, rival) in RIVALS {
            assert_eq!(parse_rival(word), Ok(rival));
        }
        assert!(parse_rival("nfs").is_err_and(|message| message.contains("memcached")));
    }
}
