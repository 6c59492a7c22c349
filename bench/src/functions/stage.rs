//! Pool in which `farpool bench functions` calls functions, and the linked list in it that they read.

use super::args::FunctionArgs;
use super::list::List;
use crate::Outcome;
use crate::exit::Failure;
use crate::harness::processes::{Server, start};
use farpool::{CreateOptions, FarFile, FileClass, IfTaken, Pool, PoolOptions, TransportChoice};
use farpool_host::waiting::{self, Waiting};
use std::time::{Duration, Instant};

/// Name of the list in the pool.
pub(super) const LIST: &str = "bench-functions-list";

/// Session with a pool. Holds the broker and the node if they were started for this session.
pub(super) struct Stage {
    pub(super) pool: Pool,
    pub(super) transport: TransportChoice,
    address: String,
    plaintext: bool,
    _servers: Vec<Server>,
}

impl Stage {
    pub(super) fn new(
        args: &FunctionArgs,
        way: Waiting,
        transport: TransportChoice,
        more: &[String],
    ) -> Result<Stage, Failure> {
        waiting::choose(way);
        let (address, servers) = match &args.pool {
            Some(address) => (address.clone(), Vec::new()),
            None => Stage::servers(args, way, more)?,
        };
        let pool = Stage::session(&address, transport, args.plaintext)?;
        Ok(Stage { pool, transport, address, plaintext: args.plaintext, _servers: servers })
    }

    /// Starts a broker and a node. Returns the address of the pool, and the processes in the order in which they are
    /// stopped.
    fn servers(args: &FunctionArgs, way: Waiting, more: &[String]) -> Result<(String, Vec<Server>), Failure> {
        let (broker, address) = start(&["broker", "--listen", "127.0.0.1:0"])?;
        let address = address.rsplit(' ').next().unwrap_or_default().to_owned();
        let memory = (2 * args.size + (256 << 20)).to_string();
        let mut node = vec!["node", "--name", "n1", "--memory", &memory, "--no-reserve"];
        node.extend(["--broker", &address, "--waiting", way.word()]);
        node.extend(more.iter().map(String::as_str));
        let (node, _) = start(&node)?;
        Ok((address, vec![node, broker]))
    }

    fn session(address: &str, transport: TransportChoice, plaintext: bool) -> Result<Pool, Failure> {
        Ok(Pool::connect_with(address, PoolOptions { transport, plaintext, ..PoolOptions::default() })?)
    }

    /// Opens another session with the same pool.
    pub(super) fn connect(&self) -> Result<Pool, Failure> {
        Stage::session(&self.address, self.transport, self.plaintext)
    }

    pub(super) fn publish(&self, list: &List) -> Result<FarFile, Failure> {
        let file = self.pool.create(LIST, FileClass::Pinned, CreateOptions::default())?;
        file.write_at(0, &list.bytes())?;
        self.pool.publish(LIST, IfTaken::Replace)?;
        Ok(self.pool.open(LIST)?)
    }
}

/// Waits until a node's compile cache in `folder` holds `count` functions: files without an extension in the
/// directories of its tenants. A node writes compiled code in the background.
pub(super) fn await_files(folder: &std::path::Path, count: usize) -> Outcome {
    let until = Instant::now() + Duration::from_secs(10);
    let files = || -> std::io::Result<usize> {
        let mut files = 0;
        for tenant in std::fs::read_dir(folder.join("tenants"))? {
            let names = std::fs::read_dir(tenant?.path())?;
            files += names.flatten().filter(|file| file.path().extension().is_none()).count();
        }
        Ok(files)
    };
    while files()? < count {
        if Instant::now() > until {
            return Err(Failure::failed("the node did not write compiled functions to its cache"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
