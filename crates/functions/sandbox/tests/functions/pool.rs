//! A pool in this process whose nodes run functions.

use farpool::function::SandboxOptions;
use farpool::{CreateOptions, FileClass, IfTaken, Pool, PoolOptions, TransportChoice};
use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_near_data::FunctionOptions;
use farpool_node::{Node, NodeOptions};
use farpool_tests::programs::PATIENCE;
use farpool_wire::Name;
use std::net::SocketAddr;

/// Nodes and their broker. The nodes are dropped first.
pub struct Running {
    nodes: Vec<Node>,
    broker: Broker,
}

/// Returns sandbox options with the program that cargo has built beside these tests. The processes have the tests'
/// own priority: with a lower one they might get too little CPU time on a busy machine to compile in time. Callers
/// wait for a process as long as one may take to start there.
pub fn sandbox() -> SandboxOptions {
    let options = SandboxOptions::new(env!("CARGO_BIN_EXE_farpool-sandbox").into());
    SandboxOptions { niceness: 0, queue_ms: 300_000, ..options }
}

impl Running {
    /// Starts nodes with these sandboxes, all on one host.
    pub fn start(count: usize, sandbox: SandboxOptions) -> Running {
        Running::start_of(count, 64 << 20, sandbox)
    }

    /// Starts nodes with these sandboxes, each of which donates this many bytes, all on one host.
    pub fn start_of(count: usize, bytes: u64, sandbox: SandboxOptions) -> Running {
        Running::start_with(count, |_, options| options.memory_bytes = bytes, sandbox)
    }

    /// Starts nodes with these sandboxes. By its label each is on a host of its own, so files have copies.
    pub fn start_apart(count: usize, sandbox: SandboxOptions) -> Running {
        let label = |index: usize, options: &mut NodeOptions| {
            options.host_label = Some(Name::new(format!("h{index}")).unwrap());
        };
        Running::start_with(count, label, sandbox)
    }

    fn start_with(
        count: usize,
        change: impl Fn(usize, &mut NodeOptions),
        sandbox: SandboxOptions,
    ) -> Running {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let store = Box::new(MemoryStore::default());
        let broker = Broker::start(loopback, &Default::default(), LeaseSettings::default(), store).unwrap();
        let nodes = (0..count).map(|index| {
            let mut options = options(&format!("n{index}"), &broker, sandbox.clone());
            change(index, &mut options);
            start(options)
        });
        Running { nodes: nodes.collect(), broker }
    }

    /// Ends a node, with all memory that it donates.
    pub fn end(&mut self, name: &str) {
        let before = self.nodes.len();
        self.nodes.retain(|node| *node.info().name != *name);
        assert_eq!(self.nodes.len(), before - 1, "{name} is a node");
    }

    /// Returns the address of a node.
    pub fn address(&self, name: &str) -> String {
        let node = self.nodes.iter().find(|node| *node.info().name == *name);
        node.expect("a node of this name").info().address.to_string()
    }

    /// Starts one more node, which ends when the returned value is dropped.
    pub fn start_another(&self, name: &str) -> Node {
        start(options(name, &self.broker, sandbox()))
    }

    /// Returns the URL of the pool.
    pub fn url(&self) -> String {
        format!("farpool://{}", self.broker.address())
    }

    /// Opens a session with this transport. Its timeout is as long as a sandbox may take on a busy machine.
    pub fn connect(&self, transport: TransportChoice) -> Pool {
        let sandbox = Some(sandbox().program);
        let options =
            PoolOptions { transport, sandbox, request_timeout_ms: 600_000, ..PoolOptions::default() };
        Pool::connect_with(&self.url(), options).unwrap()
    }
}

fn options(name: &str, broker: &Broker, sandbox: SandboxOptions) -> NodeOptions {
    let mut options = NodeOptions::new(Name::new(name).unwrap(), 64 << 20, broker.address().to_string());
    options.region_bytes = 1 << 20;
    let functions = FunctionOptions { sandboxes: Some(sandbox), ..FunctionOptions::default() };
    options.extension = farpool_near_data::extension(functions);
    options
}

fn start(options: NodeOptions) -> Node {
    let node = Node::start(options).unwrap();
    assert!(node.wait_joined(PATIENCE));
    node
}

/// Publishes bytes under a name.
pub fn publish(pool: &Pool, name: &str, bytes: &[u8]) -> farpool::FarFile {
    let file = pool.create(name, FileClass::Pinned, CreateOptions::default()).unwrap();
    file.write_at(0, bytes).unwrap();
    pool.publish(name, IfTaken::Replace).unwrap();
    pool.open(name).unwrap()
}

/// Encodes words as they lie in files and arguments.
pub fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Returns a shuffled linked list. Each node has the offset of the next one and a value.
pub fn list(nodes: usize, node_bytes: usize) -> Vec<u8> {
    let mut next: Vec<usize> = (0..nodes).collect();
    let mut random = 88_172_645_463_325_252u64;
    // Sattolo's algorithm makes one cycle through all nodes.
    for index in (1..nodes).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        next.swap(index, (random % index as u64) as usize);
    }
    let mut bytes = vec![0; nodes * node_bytes];
    for (index, next) in next.iter().enumerate() {
        let at = index * node_bytes;
        bytes[at..at + 8].copy_from_slice(&((next * node_bytes) as u64).to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&(index as u64 * 3).to_le_bytes());
    }
    bytes
}

/// Returns the node at which a walk through a list ends, and the sum of its values.
pub fn walked(list: &[u8], first: u64, steps: u64) -> [u64; 2] {
    let word = |at: u64| u64::from_le_bytes(list[at as usize..at as usize + 8].try_into().unwrap());
    let (mut at, mut sum) = (first, 0u64);
    for _ in 0..steps {
        sum = sum.wrapping_add(word(at + 8));
        at = word(at);
    }
    [at, sum]
}

/// WebAssembly text of `walk`, which does the same as the resident function of that name.
pub const WALK: &str = include_str!("../../../../../examples/functions/walk.wat");

/// Assembles a module from WebAssembly text.
pub fn module(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}
