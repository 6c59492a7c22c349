//! Pools over memory that a machine rarely has: a NUMA node without CPUs, reserved huge pages, a DAX device. The tests
//! run as root in a guest that has all of them (`make guest-test`), one after the other.

use farpool::{
    CreateOptions, FarFile, FileClass, IfTaken, MemoryKind, NodeMemory, Pool, PoolOptions, Protection,
    TransportChoice,
};
use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_node::{DaxDevice, Donation, HostMemory, HugePagePool, Node, NodeOptions};
use farpool_tests::programs::{PATIENCE, eventually};
use farpool_tests::random::Random;
use farpool_transport::Exposure;
use farpool_wire::Name;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const REGION_BYTES: u64 = 2 * MIB;
const MEMORY_BYTES: u64 = 32 * MIB;

/// Pool of one node.
struct OneNode {
    broker: Broker,
    node: Node,
}

impl OneNode {
    fn start(donation: Donation, numa_node: Option<u32>) -> OneNode {
        let store = Box::new(MemoryStore::default());
        let (loopback, settings) = (([127, 0, 0, 1], 0).into(), LeaseSettings::default());
        let broker = Broker::start(loopback, &Exposure::default(), settings, store).expect("a broker");
        let name = Name::new("n1").expect("a name");
        let mut options = NodeOptions::new(name, MEMORY_BYTES, broker.address().to_string());
        options.region_bytes = REGION_BYTES;
        (options.donation, options.numa_node) = (donation, numa_node);
        // A guest is small. The test counts on all of the memory, and still samples the NUMA node.
        options.pressure.reserve_bytes = Some(16 * MIB);
        if let Some(node) = numa_node {
            options.pressure.source = Some(Arc::new(HostMemory::find().and_node(node)));
        }
        let node = Node::start(options).expect("a node");
        assert!(node.wait_joined(PATIENCE), "the node joins");
        OneNode { broker, node }
    }

    fn connect(&self, transport: TransportChoice) -> Pool {
        let url = format!("farpool://{}", self.broker.address());
        let protection = Some(Protection::None);
        Pool::connect_with(&url, PoolOptions { transport, protection, ..PoolOptions::default() })
            .expect("a session")
    }

    /// Returns the memory that the node has told to the broker.
    fn told(&self) -> NodeMemory {
        let pool = self.connect(TransportChoice::Tcp);
        let told = pool.list_memory().expect("an answer");
        let [memory] = &told[..] else { panic!("{told:?}") };
        assert_eq!(memory.node, self.node.info().node);
        memory.clone()
    }

    /// Writes more than half of the memory over a transport, twice, and reads it back. Then publishes a file, which
    /// another session reads.
    fn holds_what_is_written(&self, transport: TransportChoice) {
        for round in 0..2 {
            let pool = self.connect(transport);
            let bytes = Random(round + 1).bytes(20 << 20);
            let scratch = create(&pool, "scratch", FileClass::Scratch);
            scratch.write_at(0, &bytes).expect("written");
            reads(&scratch, &bytes);
            pool.close();
            let name = format!("kept-{round}");
            let writer = self.connect(transport);
            create(&writer, &name, FileClass::Pinned).write_at(0, &bytes[..5 << 20]).expect("written");
            writer.publish(&name, IfTaken::Refuse).expect("published");
            writer.close();
            let reader = self.connect(transport);
            reads(&reader.open(&name).expect("there"), &bytes[..5 << 20]);
            reader.delete(&name).expect("dropped");
        }
    }
}

fn create(pool: &Pool, name: &str, class: FileClass) -> FarFile {
    pool.create(name, class, CreateOptions::default()).expect("created")
}

fn reads(file: &FarFile, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    file.read_at(0, &mut found).expect("readable");
    assert!(found == wanted, "as it was written");
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn pool_over_a_numa_node_without_cpus_holds_what_is_written() {
    let pool = OneNode::start(Donation::Ordinary, Some(1));
    let told = pool.told();
    assert_eq!((told.kind, &told.numa_node[..]), (MemoryKind::Ordinary, &[1][..]));
    assert_eq!(told.to_string(), "ordinary, NUMA node 1");
    pool.holds_what_is_written(TransportChoice::Tcp);
    pool.holds_what_is_written(TransportChoice::Shm);
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn pool_over_huge_pages_holds_what_is_written() {
    let donation = Donation::HugePages { page_bytes: 2 * MIB };
    let reserved = || HugePagePool::all(Some(1)).into_iter().find(|pool| pool.page_bytes == 2 * MIB).unwrap();
    std::fs::write(reserved().file, "17").expect("reserved");
    let pool = OneNode::start(donation, Some(1));
    assert_eq!((reserved().free, reserved().total), (1, 17), "all are taken, but one region's");
    assert_eq!(pool.told().to_string(), "huge pages of 2 MiB, NUMA node 1");
    pool.holds_what_is_written(TransportChoice::Tcp);
    pool.holds_what_is_written(TransportChoice::Shm);
    // A region's file goes when the last read or mapping of it ends, which may be after the session has ended.
    let only_free = |free| match reserved() {
        pool if pool.free == free => Ok(()),
        pool => Err(format!("{pool:?}")),
    };
    eventually("all huge pages are back but one region's", || only_free(1));
    drop(pool);
    eventually("all huge pages are free", || only_free(17));
    std::fs::write(reserved().file, "0").expect("given back");
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn pool_over_a_dax_device_holds_what_is_written_and_has_no_shared_memory() {
    let device = DaxDevice::all().into_iter().next().expect("the guest has a device").path;
    let pool = OneNode::start(Donation::Device(device), None);
    assert_eq!(pool.told().to_string(), "/dev/dax0.0");
    assert_eq!(&*pool.node.info().shm_socket, "", "clients cannot map a device");
    pool.holds_what_is_written(TransportChoice::Tcp);
    pool.holds_what_is_written(TransportChoice::Auto);
}
