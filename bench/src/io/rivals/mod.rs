//! Rival systems, with which `farpool bench io` compares far memory: servers and programs that it starts and stops, and
//! files in directories.

mod key_value;
mod libfabric;
mod program;

use crate::exit::Failure;
use crate::harness::bursts::{Means, Target};
use crate::harness::files::{DiskFile, Local, Medium, TMPFS, is_memory};
use crate::harness::processes::{Server, Told, find_program, free_port, is_listening, start_other};
use farpool_command::programs;
use key_value::{Dialect, KeyValue};
use libfabric::Provider;
use program::Program;
use std::path::{Path, PathBuf};

/// System that far memory is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    Redis,
    Memcached,
    Tmpfs,
    Disk,
    Fuse,
    Tokio,
    Libfabric(Provider),
}

/// Words that `--beside` permits, each with its rivals.
const RIVALS: [(&str, &[Rival]); 10] = [
    ("redis", &[Rival::Redis]),
    ("memcached", &[Rival::Memcached]),
    ("tmpfs", &[Rival::Tmpfs]),
    ("disk", &[Rival::Disk]),
    ("fuse", &[Rival::Fuse]),
    ("tokio", &[Rival::Tokio]),
    ("libfabric", &[NET, RXM, SHM]),
    ("libfabric-net", &[NET]),
    ("libfabric-rxm", &[RXM]),
    ("libfabric-shm", &[SHM]),
];
const NET: Rival = Rival::Libfabric(Provider::Net);
const RXM: Rival = Rival::Libfabric(Provider::Rxm);
const SHM: Rival = Rival::Libfabric(Provider::Shm);

/// Rivals that one word of `--beside` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(&'static [Rival]);

/// Parses one word of `--beside`.
pub(crate) fn parse_rival(word: &str) -> Result<Word, String> {
    let words = RIVALS.map(|(word, _)| word).join(", ");
    let found = RIVALS.into_iter().find(|(known, _)| *known == word);
    found.map(|(_, rivals)| Word(rivals)).ok_or_else(|| format!("{word:?} is none of {words}"))
}

/// Returns the rivals of all words, without duplicates.
pub(crate) fn asked_for(words: &[Word]) -> Vec<Rival> {
    let mut all = Vec::new();
    for rival in words.iter().flat_map(|word| word.0) {
        if !all.contains(rival) {
            all.push(*rival);
        }
    }
    all
}

impl Rival {
    /// Returns the name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rival::Redis => "redis",
            Rival::Memcached => "memcached",
            Rival::Tmpfs => "tmpfs file",
            Rival::Disk => "disk, direct",
            Rival::Fuse => "fuse, direct",
            Rival::Tokio => "tokio",
            Rival::Libfabric(Provider::Net) => "libfabric net",
            Rival::Libfabric(Provider::Rxm) => "libfabric rxm",
            Rival::Libfabric(Provider::Shm) => "libfabric shm",
        }
    }
}

/// Rival that was started and is ready to be measured. `folder` is the directory for its files.
pub(crate) struct Ready {
    pub(crate) rival: Rival,
    server: Option<Server>,
    port: u16,
    /// Program that is both server and client. It is set for rivals (tokio, libfabric) whose server is started anew for
    /// each set of clients.
    program: Option<PathBuf>,
    folder: PathBuf,
    /// Directories to remove at the end. Stopping the server unmounts a file system that it mounted on one of them.
    made: Vec<PathBuf>,
}

/// Means by which a client reads and writes, and the process that does so if it is not this one.
pub(crate) struct Opened {
    pub(crate) means: Means,
    pub(crate) pid: Option<u32>,
}

/// Returns the name of a file or directory of this run.
fn own_name(name: &str) -> String {
    format!("farpool-bench-{}-{}", std::process::id(), name.replace(' ', "-"))
}

impl Ready {
    /// Starts a rival with room for `bytes` of files. `disk` is the directory for files on a disk.
    pub(crate) fn start(rival: Rival, bytes: u64, disk: &Path) -> Result<Ready, Failure> {
        let folder = if rival == Rival::Disk { disk } else { Path::new(TMPFS) };
        let folder = folder.to_owned();
        let mut ready = Ready { rival, server: None, port: 0, program: None, folder, made: Vec::new() };
        match rival {
            Rival::Redis => ready.start_redis()?,
            Rival::Memcached => ready.start_memcached(bytes)?,
            Rival::Fuse => ready.mount_fuse()?,
            Rival::Tokio => ready.program = Some(programs::own("farpool-rival-tokio", "rivals")?),
            Rival::Libfabric(_) => {
                // The program is not compiled into `TMPFS`: many systems mount it without permission to run programs.
                let folder = ready.make_folder(&std::env::temp_dir(), rival.name())?;
                ready.program = Some(libfabric::compile(&folder)?);
                // A server is started and stopped, so that a missing provider is an error now, and not after everything
                // else was measured.
                drop(ready.serve(1 << 20)?);
            }
            Rival::Tmpfs if !is_memory(&ready.folder)? => {
                return Err(Failure::Failed(format!("{TMPFS} is not a tmpfs here")));
            }
            Rival::Disk if is_memory(&ready.folder)? => {
                return Err(Failure::Usage(format!(
                    "--disk {}: this folder lies in memory; a folder on a disk is needed",
                    disk.display()
                )));
            }
            Rival::Tmpfs | Rival::Disk => {}
        }
        Ok(ready)
    }

    fn start_redis(&mut self) -> Result<(), Failure> {
        let program = find_program("redis-server", "redis-server")?;
        let port = free_port()?;
        let folder = self.make_folder(Path::new(TMPFS), "redis")?;
        // Redis must not write to disk, because far memory does not either.
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
        // Memcached stores blocks in slots of fixed sizes, which wastes up to half of the memory. Without this extra
        // memory it would evict blocks, which is an error here.
        let megabytes = ((bytes * 2) >> 20) + 256;
        let (port_text, megabytes) = (port.to_string(), megabytes.to_string());
        // Memcached needs `-u` only when root starts it. Other users keep their identity.
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
        let parent = Path::new(TMPFS);
        let (below, mounted) = (self.make_folder(parent, "below")?, self.make_folder(parent, "mounted")?);
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

    fn make_folder(&mut self, parent: &Path, name: &str) -> Result<PathBuf, Failure> {
        let folder = parent.join(own_name(name));
        std::fs::create_dir(&folder)
            .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
        self.made.push(folder.clone());
        Ok(folder)
    }

    /// Returns the id of the process that serves all clients of this rival, if it has such a process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Starts a server for one set of clients, with `bytes` of memory. Returns the server and its address. `None` if
    /// the rival has one server for all clients, or none. libfabric's server polls, so it must not run while others are
    /// measured.
    pub(crate) fn serve(&self, bytes: u64) -> Result<Option<(Told, String)>, Failure> {
        let Some(program) = &self.program else { return Ok(None) };
        let mut args = vec!["serve".to_owned()];
        args.extend(self.provider());
        args.push(bytes.to_string());
        Told::start(program, &args).map(Some)
    }

    /// Opens an empty file of `bytes` for a client. `address` is that of the server that [`Ready::serve`] has started.
    pub(crate) fn open(&self, client: usize, bytes: u64, address: &str) -> Result<Opened, Failure> {
        let name = client.to_string();
        let calls: Box<dyn Target> = match self.rival {
            Rival::Redis => Box::new(KeyValue::connect(Dialect::Redis, self.port, client)?),
            Rival::Memcached => Box::new(KeyValue::connect(Dialect::Memcached, self.port, client)?),
            Rival::Tmpfs => Box::new(DiskFile::create(&self.folder, &name, Medium::Memory)?),
            Rival::Disk | Rival::Fuse => Box::new(DiskFile::create(&self.folder, &name, Medium::Waits)?),
            Rival::Tokio | Rival::Libfabric(_) => return self.open_program(client, bytes, address),
        };
        Ok(Opened { means: Means::Calls(calls), pid: None })
    }

    fn open_program(&self, client: usize, bytes: u64, address: &str) -> Result<Opened, Failure> {
        let program = self.program.as_ref().ok_or_else(|| Failure::failed("no program"))?;
        let mut args = self.provider();
        let base = client as u64 * bytes;
        args.extend([address.to_owned(), base.to_string(), bytes.to_string()]);
        let name = own_name(&format!("{}-{client}", self.rival.name()));
        let program = Program::start(program, &args, &self.folder.join(name))?;
        let pid = Some(program.pid());
        Ok(Opened { means: Means::Bursts(Box::new(program)), pid })
    }

    fn provider(&self) -> Vec<String> {
        match self.rival {
            Rival::Libfabric(provider) => vec![provider.word().to_owned()],
            _ => Vec::new(),
        }
    }

    /// Reports whether the server polls all the time.
    pub(crate) fn never_rests(&self) -> bool {
        matches!(self.rival, Rival::Libfabric(_))
    }

    /// Reports whether blocks are stored under keys, so that only whole blocks can be read and written.
    pub(crate) fn is_by_key(&self) -> bool {
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

/// Returns the means to access new memory of this process, for one client.
pub(crate) fn memory(bytes: u64) -> Means {
    Means::Calls(Box::new(Local(vec![1; bytes as usize])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rival_is_known_by_its_word() {
        for (word, rivals) in RIVALS {
            assert_eq!(parse_rival(word), Ok(Word(rivals)));
        }
        assert!(parse_rival("nfs").is_err_and(|message| message.contains("memcached")));
        let twice = ["libfabric-shm", "libfabric", "redis"].map(|word| parse_rival(word).unwrap());
        assert_eq!(asked_for(&twice), [SHM, NET, RXM, Rival::Redis]);
    }
}
