//! Settings for opening a pool and creating a file.

use crate::error::{Error, ErrorKind};
use farpool_transport::{Exposure, Tls};
use farpool_wire::FileId;
use farpool_wire::limits::{STRIPE_DATA_MAX, STRIPE_PARITY_MAX};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Transport between this process and the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory to nodes on this host, TCP to all others.
    #[default]
    Auto,
    /// TCP to all nodes.
    Tcp,
    /// Shared memory only. A node on another host is an error.
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
                format!("unknown transport {other:?}; auto, tcp or shm are permitted"),
            )),
        }
    }
}

/// Treatment of a published file or table whose name is published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfTaken {
    /// The name keeps the old one. The new one is refused with [`ErrorKind::Exists`].
    Refuse,
    /// The new one replaces the old one in one step.
    Replace,
    /// The new one replaces this file in one step, if the file still has the name. Otherwise it is refused with
    /// [`ErrorKind::Exists`], or with [`ErrorKind::NotFound`] if the name is free. Brokers of versions 1 and 2 of the
    /// protocol replace any file.
    ReplaceOnly(FileId),
}

/// Numbers of parts that [`Protection::Rs`] may have.
const RS_DATA: RangeInclusive<u8> = 2..=STRIPE_DATA_MAX as u8;
const RS_PARITY: RangeInclusive<u8> = 1..=STRIPE_PARITY_MAX as u8;

/// Protection of a file against the loss of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No protection: reads of bytes on a lost node fail with [`ErrorKind::Lost`].
    None,
    /// Two copies, on different hosts (host labels), as far apart as the pool allows. A write ends when both copies
    /// have it, or when a copy that failed has been dropped from the file. A lost copy of a scratch file is made again
    /// in the background.
    Mirror,
    /// Parity on further hosts, by a Reed-Solomon code: any `data` of `data + parity` parts give all others. Takes
    /// `parity / data` of the memory of the file, where a mirror takes all of it again. Parts lie on different hosts,
    /// of which any `parity` may be lost. Only pinned files can have it, and get their parity when they are published.
    /// A file of fewer parts than `data` gets a mirror in its place.
    Rs {
        /// Parts with bytes of the file, 2 to 12.
        data: u8,
        /// Parts with parity, 1 to 4.
        parity: u8,
    },
    /// A copy on a disk of this machine, written in the background. The disk also takes bytes for which the pool has no
    /// room. Only scratch files can have it.
    Local,
}

impl Protection {
    /// Returns the number of copies in far memory.
    pub(crate) fn copies(self) -> usize {
        match self {
            Protection::None | Protection::Local | Protection::Rs { .. } => 1,
            Protection::Mirror => 2,
        }
    }

    /// Returns the number of hosts without which it is not possible.
    pub fn hosts_min(self) -> u32 {
        match self {
            Protection::None | Protection::Local => 1,
            Protection::Mirror => 2,
            Protection::Rs { data, parity } => u32::from(data) + u32::from(parity),
        }
    }
}

/// The word used in interfaces: `none`, `mirror`, `rs(DATA,PARITY)` or `local`.
impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::None => f.write_str("none"),
            Protection::Mirror => f.write_str("mirror"),
            Protection::Rs { data, parity } => write!(f, "rs({data},{parity})"),
            Protection::Local => f.write_str("local"),
        }
    }
}

impl std::str::FromStr for Protection {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        let wrong = |permitted: &str| {
            Error::new(ErrorKind::Invalid, format!("unknown protection {word:?}; {permitted}"))
        };
        match word {
            "none" => return Ok(Protection::None),
            "mirror" => return Ok(Protection::Mirror),
            "local" => return Ok(Protection::Local),
            _ => {}
        }
        let Some(inside) = word.strip_prefix("rs(").and_then(|rest| rest.strip_suffix(')')) else {
            return Err(wrong("none, mirror, local or rs(DATA,PARITY) are permitted"));
        };
        let numbers =
            inside.split_once(',').map(|(data, parity)| (data.trim().parse(), parity.trim().parse()));
        match numbers {
            Some((Ok(data), Ok(parity))) if RS_DATA.contains(&data) && RS_PARITY.contains(&parity) => {
                Ok(Protection::Rs { data, parity })
            }
            _ => Err(wrong("2 to 12 parts of data and 1 to 4 of parity are permitted, as in rs(4,2)")),
        }
    }
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Transport to the nodes. Default: auto.
    pub transport: TransportChoice,
    /// Longest wait for one peer within an operation, in ms. Default 5 s; 10 ms to 10 min.
    pub request_timeout_ms: u64,
    /// Longest wait of an allocation for a broker that does not answer, in ms. Default 10 s.
    pub broker_patience_ms: u64,
    /// Bytes leased for scratch files at the start and kept while the session lives. Default 0.
    pub reserve_bytes: u64,
    /// Certificates of this session and authorities it trusts; every TCP connection then uses TLS. Made by
    /// [`Tls::load`]. Default: none, and connections stay on this machine.
    pub tls: Option<Tls>,
    /// True if connections beyond this machine are permitted without encryption or authentication. Default: false.
    pub plaintext: bool,
    /// Longest pause between two renewals of the leases, in ms. A lost node is noticed within it. Renewals are sent at
    /// least three times per lease time. Default 250 ms; 20 ms to 10 min.
    pub renew_ms_max: u64,
    /// Label of the session at the broker. Default: the process id.
    pub label: Option<String>,
    /// Protection of scratch files that do not choose one. Default: mirror if the pool has nodes of two host labels
    /// when the file is created, otherwise local. In an embedded pool none, because its nodes cannot be lost one by
    /// one.
    pub protection: Option<Protection>,
    /// True if scratch files leave this process only encrypted (AES-256-GCM), so that donors can neither read nor alter
    /// them unnoticed. Local copies are not encrypted. Default: false.
    pub encrypt_scratch: bool,
    /// Folder of local copies of scratch files. Default: the system's folder for temporary files.
    pub local_folder: PathBuf,
    /// Bytes that may wait for the local disk. A writer that finds more waiting writes some itself. Default 64 MiB.
    pub write_behind_bytes: u64,
    /// Connections of a [`crate::Queue`] to each node for reads of 128 KiB and more, at most. Small reads have one of
    /// their own. 1 to 16. Default 1: one connection carries what a core can copy. More help only if one does not fill
    /// the network to a node.
    pub bulk_links: usize,
    /// Program that runs functions on this machine. Default: `farpool-sandbox`, as the environment's `FARPOOL_SANDBOX`
    /// names it, beside this program, or on the path.
    pub sandbox: Option<PathBuf>,
    /// Rate at which lost copies are made again and copies are moved off nodes that are being emptied, in bytes per
    /// second. At least 1 MiB. Default 256 MiB.
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
            encrypt_scratch: false,
            local_folder: std::env::temp_dir(),
            write_behind_bytes: 64 << 20,
            bulk_links: 1,
            sandbox: None,
            repair_bytes_per_second: 256 << 20,
        }
    }
}

impl PoolOptions {
    /// Returns the exposure of the session's connections: this machine only, TLS, or plaintext.
    pub(crate) fn exposure(&self) -> Exposure {
        Exposure { tls: self.tls.clone(), plaintext: self.plaintext }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(10..=600_000).contains(&self.request_timeout_ms) {
            let message = format!(
                "the request timeout is {} ms; 10 to 600000 ms are permitted",
                self.request_timeout_ms
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if self.repair_bytes_per_second < 1 << 20 {
            let message = format!(
                "the repair rate is {} bytes per second; at least {} are permitted",
                self.repair_bytes_per_second,
                1 << 20
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !(1..=16).contains(&self.bulk_links) {
            let message = format!("bulk_links is {}; 1 to 16 are permitted", self.bulk_links);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !(20..=600_000).contains(&self.renew_ms_max) {
            let message = format!(
                "the longest pause between renewals is {} ms; 20 to 600000 ms are permitted",
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
    /// Expected length in bytes. Memory for it is leased at creation. It is not a limit.
    pub size_hint: u64,
    /// Protection against the loss of a node. Scratch files may have any, and by default have the session's. Pinned
    /// files may have none or a mirror, which is the default where the pool has two hosts and is not embedded. Files of
    /// caches have none.
    pub protection: Option<Protection>,
    /// True if the file leaves this process only encrypted. Only scratch files can be encrypted. Default: the
    /// session's.
    pub encrypted: Option<bool>,
    /// True if the writer can store the bytes elsewhere when the pool is full. A full pool is then an error at once.
    /// Otherwise the write first waits for nodes that are wiping released regions.
    pub is_optional: bool,
}
