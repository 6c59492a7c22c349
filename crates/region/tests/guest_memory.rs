//! Kinds of memory that a machine rarely has: a NUMA node without CPUs, reserved huge pages, a DAX device. The tests
//! run as root in a guest that has all of them (`make guest-test`), one after the other.

mod arenas;

use arenas::{MIB, Mapped, R0, R1, open, open_sealed, pages_bound_to, read, write};
use farpool_region::donation::{DaxDevice, Donation, DonationError, HugePagePool};
use farpool_region::topology::Topology;
use farpool_region::{Arena, ArenaOptions, RegionError, SharedAccess};
use farpool_wire::{Epoch, RegionIndex};
use std::path::Path;

const PAGE_BYTES: u64 = 2 * MIB;
const REGION_BYTES: u64 = 4 * MIB;

/// Reserves huge pages on a NUMA node, or anywhere, and returns the pool.
fn reserve(node: Option<u32>, pages: u64) -> HugePagePool {
    let pool = || HugePagePool::all(node).into_iter().find(|pool| pool.page_bytes == PAGE_BYTES).unwrap();
    std::fs::write(pool().file, pages.to_string()).unwrap();
    assert_eq!((pool().total, pool().free), (pages, pages), "the guest has memory for them");
    pool()
}

fn free(node: Option<u32>) -> u64 {
    HugePagePool::all(node).iter().find(|pool| pool.page_bytes == PAGE_BYTES).unwrap().free
}

fn error_of(options: ArenaOptions) -> DonationError {
    match Arena::new(&options).unwrap_err() {
        RegionError::Donation(error) => error,
        other => panic!("{other}"),
    }
}

/// Takes a region through a lease over the network, one by shared memory, a seal, and wiping. Epochs are above `epoch`.
fn use_region(arena: &Arena, region: RegionIndex, epoch: u64) {
    open(arena, region, epoch + 1);
    write(arena, region, REGION_BYTES - 5, b"first");
    arena.close(region, Epoch(epoch + 2)).unwrap();
    arena.scrub(region).unwrap();
    assert!(arena.verify_zero(region).unwrap(), "nothing of the first lease is left");
    arena.share(region).unwrap();
    let fd = arena.shared_fd(region, SharedAccess::ReadWrite).unwrap();
    open(arena, region, epoch + 2);
    write(arena, region, 0, b"second");
    arena.close(region, Epoch(epoch + 3)).unwrap();
    arena.reseat(region, None).unwrap();
    open_sealed(arena, region, epoch + 3);
    assert_eq!(read(arena, region, 0, 6), b"second");
    assert_eq!(arena.sealed(region, 0, 6).unwrap().as_ref(), b"second");
    // The writer still has its file, from which the bytes are gone.
    let mut seen = [1; 6];
    rustix::io::pread(&fd, &mut seen, 0).unwrap();
    assert_eq!(seen, [0; 6]);
    arena.close(region, Epoch(epoch + 4)).unwrap();
    arena.scrub(region).unwrap();
    assert!(arena.verify_zero(region).unwrap());
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn memory_of_a_node_without_cpus_is_all_there() {
    let far = Topology::read().unwrap().nodes.into_iter().find(|node| node.is_cpu_less()).unwrap();
    let regions = 16;
    let arena =
        Arena::new(&ArenaOptions { numa_node: Some(far.id), ..ArenaOptions::new(REGION_BYTES, regions) })
            .unwrap();
    (0..regions).for_each(|region| arena.prefault(RegionIndex(region)).unwrap());
    // The free memory of the node would not show it exactly: the kernel gives back what others used, at any time.
    let wanted = u64::from(regions) * REGION_BYTES / (4 << 10);
    let taken = pages_bound_to(far.id, Mapped::Range);
    assert!(taken >= wanted, "{taken} of {wanted} pages");
    use_region(&arena, R0, 0);
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn huge_pages_are_all_taken_at_once_and_all_given_back_at_the_end() {
    for node in [None, Some(0), Some(1)] {
        let donation = Donation::HugePages { page_bytes: PAGE_BYTES };
        let options = ArenaOptions { donation, numa_node: node, ..ArenaOptions::new(REGION_BYTES, 2) };
        reserve(node, 5);
        let error = error_of(options.clone());
        assert!(error.to_string().contains("6 huge pages of 2097152 B"), "{error}");
        assert_eq!(free(node), 5, "nothing was taken");
        reserve(node, 6);
        let arena = Arena::new(&options).unwrap();
        assert_eq!(free(node), 2, "the pages of the region by which others are moved");
        for round in 0..3 {
            for region in [R0, R1] {
                use_region(&arena, region, round * 4);
            }
            assert_eq!(free(node), 2);
        }
        arena.give_back(R0).unwrap();
        assert_eq!(free(node), 2, "huge pages are of no use to the host");
        drop(arena);
        assert_eq!(free(node), 6);
        reserve(node, 0);
    }
}

/// Another program takes the pages by which regions are moved. Sealing and wiping fail, and nothing else breaks.
#[test]
#[ignore = "needs a guest: make guest-test"]
fn huge_pages_that_others_took_are_an_error_and_the_region_stays_as_it_was() {
    reserve(None, 6);
    let donation = Donation::HugePages { page_bytes: PAGE_BYTES };
    let arena = Arena::new(&ArenaOptions { donation, ..ArenaOptions::new(REGION_BYTES, 2) }).unwrap();
    arena.share(R0).unwrap();
    open(&arena, R0, 1);
    let _written = arena.shared_fd(R0, SharedAccess::ReadWrite).unwrap();
    write(&arena, R0, 0, b"kept");
    reserve_left(4);
    arena.close(R0, Epoch(2)).unwrap();
    let error = arena.reseat(R0, None).unwrap_err();
    assert!(matches!(error, RegionError::System { .. }), "{error}");
    assert!(matches!(arena.scrub(R0), Err(RegionError::System { .. })));
    open(&arena, R0, 2);
    assert_eq!(read(&arena, R0, 0, 4), b"kept");
    drop(arena);
    reserve_left(0);
}

/// Changes the number of reserved pages, of which some are in use.
fn reserve_left(pages: u64) {
    let pool = HugePagePool::all(None).into_iter().find(|pool| pool.page_bytes == PAGE_BYTES).unwrap();
    std::fs::write(pool.file, pages.to_string()).unwrap();
}

#[test]
#[ignore = "needs a guest: make guest-test"]
fn device_is_wiped_before_use_and_belongs_to_one_arena() {
    let device = DaxDevice::all().into_iter().next().expect("the guest has a device");
    assert_eq!(device.path, Path::new("/dev/dax0.0"));
    let options = |region_bytes, count| ArenaOptions {
        donation: Donation::Device(device.path.clone()),
        ..ArenaOptions::new(region_bytes, count)
    };
    let error = error_of(options(MIB, 1)).to_string();
    assert!(error.contains("at least 2097152 B"), "{error}");
    let error = error_of(options(64 * MIB, 9)).to_string();
    assert!(error.starts_with("/dev/dax0.0: 603979776 B of regions are more than its "), "{error}");

    let arena = Arena::new(&options(REGION_BYTES, 8)).unwrap();
    assert!(!arena.begins_clean());
    let error = error_of(options(REGION_BYTES, 8)).to_string();
    assert_eq!(error, "/dev/dax0.0: another node uses it");
    arena.scrub(R0).unwrap();
    assert!(arena.verify_zero(R0).unwrap());
    arena.prefault(R0).unwrap();
    assert!(matches!(arena.share(R0), Err(RegionError::NotShared { .. })), "clients cannot map a device");
    open(&arena, R0, 1);
    write(&arena, R0, 0, b"secret");
    assert_eq!(read(&arena, R0, 0, 6), b"secret");
    arena.close(R0, Epoch(2)).unwrap();
    arena.reseat(R0, None).unwrap();
    open_sealed(&arena, R0, 2);
    assert_eq!(read(&arena, R0, 0, 6), b"secret");
    assert!(arena.sealed(R0, 0, 6).is_none(), "bytes of a device are copied, because it is written again");
    drop(arena);

    // The bytes outlive the node, and nobody sees them: a region of a device must be scrubbed first.
    let arena = Arena::new(&options(REGION_BYTES, 8)).unwrap();
    assert!(!arena.verify_zero(R0).unwrap());
    assert!(matches!(arena.give_back(R0), Err(RegionError::NotClean { .. })));
    arena.scrub(R0).unwrap();
    assert!(arena.verify_zero(R0).unwrap());
    arena.give_back(R0).unwrap();
}
