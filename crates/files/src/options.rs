//! How a pool is opened and a file created.

use crate::error::{Error, ErrorKind};
use farpool_transport::{Reach, Tls};
use std::path::PathBuf;

/// How bytes travel to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory to nodes on this host, TCP to others.
    #[default]
    Auto,
    /// TCP to all.
    Tcp,
    /// Shared memory only; nodes elsewhere are an error.
    Shm,
}

impl std::str::FromStr for TransportChoice {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "auto" => Ok(TransportChoice::Auto),
            "tcp" => Ok(TransportChoice::Tcp),
            "shm" => Ok(TransportChoice::Shm),
            other => Err(Error::new(
                ErrorKind::Invalid,
                format!("transport {other:?}; auto, tcp or shm are permitted"),
            )),
        }
    }
}

/// What becomes of something published whose name is given to something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfTaken {
    /// It keeps its name; the new one is refused with [`ErrorKind::Exists`].
    Refuse,
    /// The new one takes its place, in one step.
    Replace,
}

/// What keeps a scratch file readable when a node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing: what lay on a lost node answers [`ErrorKind::Lost`].
    None,
    /// Two copies, on nodes of different host labels. A write is done when both have it, or when the one that
    /// failed is not part of the file any more; a lost copy is made anew in the background.
    Mirror,
    /// A copy on a disk of this machine, written behind. It also takes what finds no room in the pool.
    Local,
}

impl Protection {
    /// The word used in interfaces: `none`, `mirror` or `local`.
    pub fn word(self) -> &'static str {
        match self {
            Protection::None => "none",
            Protection::Mirror => "mirror",
            Protection::Local => "local",
        }
    }
}

impl std::str::FromStr for Protection {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        [Protection::None, Protection::Mirror, Protection::Local]
            .into_iter()
            .find(|protection| protection.word() == word)
            .ok_or_else(|| {
                let message = format!("protection {word:?}; none, mirror or local are permitted");
                Error::new(ErrorKind::Invalid, message)
            })
    }
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How bytes travel. Default: auto.
    pub transport: TransportChoice,
    /// No operation waits longer than this for one peer. Default 5 s; 10 ms to 10 min.
    pub request_timeout_ms: u64,
    /// How long an allocation waits for a broker that does not answer. Default 10 s.
    pub broker_patience_ms: u64,
    /// Bytes leased at once for scratch files, and kept while the session lives. Default 0.
    pub reserve_bytes: u64,
    /// What proves this session to brokers and nodes, and them to it: then every TCP connection speaks TLS.
    /// [`Tls::load`] makes it. Default: nothing, and no further than this machine.
    pub tls: Option<Tls>,
    /// Reach brokers and nodes beyond this machine, without encryption or authentication. Default: refused.
    pub plaintext: bool,
    /// Longest pause between two renewals of its leases, and so until a lost node is noticed. Renewals come at
    /// least three times a lease. Default 250 ms; 20 ms to 10 min.
    pub renew_ms_max: u64,
    /// What the session calls itself to the broker. Default: its process id.
    pub label: Option<String>,
    /// How scratch files are protected where their creation does not say. Default: mirror if the pool has
    /// nodes of two host labels when the file is created, otherwise local; none in an embedded pool, whose
    /// nodes cannot be lost one by one.
    pub protection: Option<Protection>,
    /// Whether scratch files leave this process only sealed (AES-256-GCM), so that donors can neither read them
    /// nor alter them unnoticed. Local copies are not sealed. Default: no.
    pub seal_scratch: bool,
    /// Where local copies of scratch files lie. Default: the system's folder for temporary files.
    pub local_folder: PathBuf,
    /// Bytes that may wait for the local disk; a writer that finds more waiting writes itself. Default 64 MiB.
    pub write_behind_bytes: u64,
    /// Connections of a [`crate::Queue`] to each node, at most, for reads of 128 KiB and more; small reads have one of
    /// their own. 1 to 16. Default 1: one takes what a core can copy, so more pay only where a single connection does
    /// not fill the way to a node.
    pub bulk_links: usize,
    /// The program that runs functions on this machine. Default: `farpool-sandbox`, as the environment's
    /// `FARPOOL_SANDBOX` names it, beside this program, or on the path.
    pub sandbox: Option<PathBuf>,
    /// How fast lost copies are made anew, and nodes being emptied are left, in bytes per second; at least
    /// 1 MiB. Default 256 MiB.
    pub repair_bytes_per_second: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            transport: TransportChoice::Auto,
            request_timeout_ms: 5_000,
            broker_patience_ms: 10_000,
            reserve_bytes: 0,
            tls: None,
            plaintext: false,
            renew_ms_max: 250,
            label: None,
            protection: None,
            seal_scratch: false,
            local_folder: std::env::temp_dir(),
            write_behind_bytes: 64 << 20,
            bulk_links: 1,
            sandbox: None,
            repair_bytes_per_second: 256 << 20,
        }
    }
}

impl PoolOptions {
    /// How far the session's connections go.
    pub(crate) fn reach(&self) -> Reach {
        Reach { tls: self.tls.clone(), plaintext: self.plaintext }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(10..=600_000).contains(&self.request_timeout_ms) {
            let message =
                format!("request timeout {} ms; 10 to 600000 ms are permitted", self.request_timeout_ms);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if self.repair_bytes_per_second < 1 << 20 {
            let message = format!(
                "repair at {} bytes per second; at least {} are permitted",
                self.repair_bytes_per_second,
                1 << 20
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !(1..=16).contains(&self.bulk_links) {
            let message = format!("{} bulk links; 1 to 16 are permitted", self.bulk_links);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !(20..=600_000).contains(&self.renew_ms_max) {
            let message = format!(
                "longest pause between renewals {} ms; 20 to 600000 ms are permitted",
                self.renew_ms_max
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }
}

/// Settings of a new file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Expected length in bytes: memory for it is leased ahead. A hint, not a limit.
    pub size_hint: u64,
    /// What keeps it readable when a node is lost; only scratch files have a choice. Default: the session's.
    pub protection: Option<Protection>,
    /// Whether it leaves this process only sealed; only scratch files can. Default: the session's.
    pub sealed: Option<bool>,
    /// Whether its writer has another place for what the pool has no room for. A full pool is then an error at once,
    /// and not only after nodes had time to wipe what was just released.
    pub is_optional: bool,
}
