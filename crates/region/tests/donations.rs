//! Memory that was asked for by kind or by NUMA node, as far as every machine has it; errors where it does not.
//! `guest_memory.rs` tests the rest in a guest.

mod arenas;

use arenas::{MIB, Mapped, R0, open, open_sealed, pages_bound_to, read, write};
use farpool_region::donation::{Donation, DonationError};
use farpool_region::topology::Topology;
use farpool_region::{Arena, ArenaOptions, RegionError, SharedAccess};
use farpool_wire::Epoch;
use farpool_wire::limits::NODE_REGIONS_MAX;

fn error_of(options: ArenaOptions) -> DonationError {
    match Arena::new(&options).unwrap_err() {
        RegionError::Donation(error) => error,
        other => panic!("{other}"),
    }
}

/// Returns the NUMA node with the most free memory.
fn some_node() -> u32 {
    let nodes = Topology::read().unwrap().nodes;
    nodes.iter().max_by_key(|node| node.free_bytes).unwrap().id
}

/// The first region is written over the network, shared, sealed and wiped. Its pages are bound in all of these forms.
#[test]
fn regions_of_a_numa_node_are_bound_to_it_in_every_form() {
    let node = some_node();
    let arena = Arena::new(&ArenaOptions { numa_node: Some(node), ..ArenaOptions::new(2 * MIB, 2) }).unwrap();
    arena.prefault(R0).unwrap();
    assert!(pages_bound_to(node, Mapped::Range) >= 512, "pages of the region's range");
    arena.share(R0).unwrap();
    assert!(pages_bound_to(node, Mapped::File) >= 512, "pages of the region's file");
    open(&arena, R0, 1);
    write(&arena, R0, 0, b"bytes");
    arena.close(R0, Epoch(2)).unwrap();
    arena.reseat(R0, None).unwrap();
    assert!(pages_bound_to(node, Mapped::File) >= 512, "pages of the sealed region's file");
    open_sealed(&arena, R0, 2);
    assert_eq!(read(&arena, R0, 0, 5), b"bytes");
    arena.close(R0, Epoch(3)).unwrap();
    arena.scrub(R0).unwrap();
    assert!(arena.verify_zero(R0).unwrap());
    assert!(matches!(arena.shared_fd(R0, SharedAccess::Read), Err(RegionError::NotShared { region: R0 })));
}

#[test]
fn numa_node_that_does_not_exist_is_refused_with_those_that_do() {
    let nodes = Topology::read().unwrap().nodes;
    for node in [9_999, u32::MAX] {
        let error = error_of(ArenaOptions { numa_node: Some(node), ..ArenaOptions::new(MIB, 1) });
        let DonationError::NoSuchNode { present, .. } = &error else { panic!("{error}") };
        assert_eq!(*present, nodes.iter().map(|node| node.id).collect::<Vec<_>>());
        assert!(error.to_string().contains(&format!("NUMA node {node} ")), "{error}");
    }
}

#[test]
fn more_memory_than_a_numa_node_has_is_refused() {
    let node = &Topology::read().unwrap().nodes[0];
    let count = u32::try_from(node.bytes / (1 << 30)).unwrap() + 1;
    let error = error_of(ArenaOptions { numa_node: Some(node.id), ..ArenaOptions::new(1 << 30, count) });
    assert!(
        matches!(error, DonationError::NodeMemory { node_bytes, .. } if node_bytes == node.bytes),
        "{error}"
    );
}

/// Nobody has 64 TiB of huge pages.
#[test]
fn huge_pages_that_are_not_there_are_refused_with_what_to_do() {
    let donation = Donation::HugePages { page_bytes: 2 * MIB };
    let options = ArenaOptions { donation, ..ArenaOptions::new(2 << 30, NODE_REGIONS_MAX as u32) };
    let error = error_of(options);
    match &error {
        DonationError::HugePages { wanted, pool } => {
            assert_eq!(*wanted, (NODE_REGIONS_MAX as u64 + 1) * 1024);
            let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
            assert_eq!(pool.file.to_str(), Some(file));
            assert!(error.to_string().ends_with(&format!("> {file}")), "{error}");
        }
        // A kernel without hugetlb.
        DonationError::PageBytes { present, .. } => assert!(present.is_empty()),
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_no_dax_device_is_refused() {
    let donation = Donation::Device("/dev/zero".into());
    let error = error_of(ArenaOptions { donation, ..ArenaOptions::new(2 * MIB, 1) });
    assert!(error.to_string().starts_with("/dev/zero: this is no DAX device"), "{error}");
}
