//! How a pool is opened and a file created.

use crate::error::{Error, ErrorKind};
use farpool_wire::limits::*;

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
    /// Reach brokers and nodes beyond this machine, without encryption or authentication. Default: refused.
    pub plaintext: bool,
    /// What the session calls itself to the broker. Default: its process id.
    pub label: Option<String>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            transport: TransportChoice::Auto,
            request_timeout_ms: 5_000,
            broker_patience_ms: 10_000,
            reserve_bytes: 0,
            plaintext: false,
            label: None,
        }
    }
}

impl PoolOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(10..=600_000).contains(&self.request_timeout_ms) {
            let message =
                format!("request timeout {} ms; 10 to 600000 ms are permitted", self.request_timeout_ms);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }
}

/// A pool inside this process: broker and nodes, for tests and for one machine.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Bytes donated, over all nodes.
    pub memory_bytes: u64,
    /// How many nodes; 1 to 64.
    pub node_count: u32,
    /// Bytes of a region: a power of two from 1 MiB to 2 GiB. Default 64 MiB, or the largest that fits.
    pub region_bytes: Option<u64>,
    /// Settings of the session.
    pub pool: PoolOptions,
}

impl EmbeddedOptions {
    /// One node with this much memory.
    pub fn new(memory_bytes: u64) -> Self {
        EmbeddedOptions { memory_bytes, node_count: 1, region_bytes: None, pool: PoolOptions::default() }
    }

    /// The region size to use: the default, or less where a node's share is less.
    pub(crate) fn region_bytes(&self) -> Result<u64, Error> {
        if !(1..=64).contains(&self.node_count) {
            let message = format!("{} nodes; 1 to 64 are permitted", self.node_count);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let share = self.memory_bytes / u64::from(self.node_count);
        if share < REGION_BYTES_MIN {
            let message = format!(
                "{} bytes over {} nodes are {share} for each; at least {REGION_BYTES_MIN} are needed",
                self.memory_bytes, self.node_count
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let largest = 1 << share.ilog2();
        Ok(self.region_bytes.unwrap_or(REGION_BYTES_DEFAULT.min(largest)))
    }
}

/// Settings of a new file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Expected length in bytes: memory for it is leased ahead. A hint, not a limit.
    pub size_hint: u64,
}
