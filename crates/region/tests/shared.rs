//! Regions that a local client maps: what its descriptors permit, and what it can still do after its lease is
//! revoked.

mod arenas;

use arenas::*;
use farpool_region::{Arena, ArenaOptions, RegionError, SharedAccess};
use farpool_wire::{Epoch, RegionIndex};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mapping of a shared region, as a client makes it.
struct ClientMap {
    base: *mut u8,
    bytes: usize,
}

impl ClientMap {
    fn new(fd: BorrowedFd<'_>, bytes: u64, access: SharedAccess) -> Result<ClientMap, Errno> {
        let protection = match access {
            SharedAccess::Read => ProtFlags::READ,
            SharedAccess::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(ptr::null_mut(), bytes as usize, protection, MapFlags::SHARED, fd, 0)? };
        Ok(ClientMap { base: base.cast(), bytes: bytes as usize })
    }

    fn word(&self, offset: u64) -> u64 {
        assert!(offset as usize + 8 <= self.bytes);
        // SAFETY: tests pass offsets of words inside the mapping, which are aligned. The word is only loaded.
        unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast()) }.load(Ordering::SeqCst)
    }

    fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.bytes);
        // SAFETY: tests pass offsets inside the mapping.
        unsafe { self.base.add(offset).read_volatile() }
    }

    fn put(&self, offset: usize, byte: u8) {
        assert!(offset < self.bytes);
        // SAFETY: tests pass offsets inside the mapping, which they have made writable.
        unsafe { self.base.add(offset).write_volatile(byte) };
    }

    fn make_writable(&self) -> Result<(), Errno> {
        // SAFETY: changes the protection of this mapping, nothing else.
        unsafe { mprotect(self.base.cast(), self.bytes, MprotectFlags::READ | MprotectFlags::WRITE) }
    }
}

impl Drop for ClientMap {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// Bytes of the region of one test, by which its file is found among those of the other tests.
const FILE_BYTES: u64 = 8 * MIB;

/// Returns the inode of the file of [`FILE_BYTES`] bytes that this process maps. `None` if there is none.
fn only_file() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let is_it = address(end) - address(begin) == FILE_BYTES && line.contains("/memfd:farpool-region");
        is_it.then(|| words.nth(3).unwrap().parse().unwrap())
    };
    let files: Vec<u64> = maps.lines().filter_map(of_line).collect();
    assert!(files.len() <= 1, "{maps}");
    files.first().copied()
}

fn pages_bytes(fd: &OwnedFd) -> u64 {
    fstat(fd).unwrap().st_blocks as u64 * 512
}

/// Leases a region to a client that maps it.
fn leased_and_mapped(arena: &Arena, region: RegionIndex) -> (OwnedFd, ClientMap) {
    arena.share(region).unwrap();
    assert!(arena.verify_zero(region).unwrap());
    open(arena, region, 1);
    let fd = arena.shared_fd(region, SharedAccess::ReadWrite).unwrap();
    let map = ClientMap::new(fd.as_fd(), MIB, SharedAccess::ReadWrite).unwrap();
    (fd, map)
}

#[test]
fn words_cannot_be_mapped_or_made_writable_by_a_client() {
    let arena = small_arena(3);
    let fd = arena.words_fd();
    let bytes = arena.words_bytes();
    assert_eq!(ClientMap::new(fd, bytes, SharedAccess::ReadWrite).err(), Some(Errno::PERM));
    let map = ClientMap::new(fd, bytes, SharedAccess::Read).unwrap();
    assert_eq!(map.make_writable(), Err(Errno::ACCESS));
    assert_eq!(rustix::io::pwrite(fd, &[0; 8], 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(fd, punch, 0, bytes), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    // The client cannot map it writable through another description of the file either, which a process of the same
    // user can open.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let reopened = std::fs::File::options().read(true).write(true).open(path).unwrap();
    assert_eq!(ClientMap::new(reopened.as_fd(), bytes, SharedAccess::ReadWrite).err(), Some(Errno::PERM));
}

#[test]
fn words_show_epoch_and_suspension_to_a_client() {
    let arena = small_arena(3);
    let map = ClientMap::new(arena.words_fd(), arena.words_bytes(), SharedAccess::Read).unwrap();
    let word = || map.word(arena.word_offset(R1));
    assert_eq!(word(), 1);
    open(&arena, R1, 7);
    assert_eq!(word(), 14);
    arena.suspend(R1).unwrap();
    assert_eq!(word(), 15);
    arena.resume(R1).unwrap();
    assert_eq!(word(), 14);
    arena.close(R1, Epoch(8)).unwrap();
    assert_eq!(word(), 17);
    assert_eq!(map.word(arena.word_offset(R0)), 1, "the neighbour's word did not move");
}

#[test]
fn shared_region_client_and_node_see_the_same_bytes() {
    let arena = small_arena(1);
    let (_fd, map) = leased_and_mapped(&arena, R0);
    map.put(4097, 42);
    assert_eq!(read(&arena, R0, 4096, 3), [0, 42, 0]);
    write(&arena, R0, 9, &[5]);
    assert_eq!(map.get(9), 5);
}

/// If a client could do these, it could kill the node by SIGBUS, take more memory than it leased, or keep the node
/// from taking the region back.
#[test]
fn shared_region_client_cannot_resize_or_seal_its_file() {
    let arena = small_arena(1);
    let (fd, _map) = leased_and_mapped(&arena, R0);
    assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&fd, 2 * MIB), Err(Errno::PERM));
    assert_eq!(fallocate(&fd, FallocateFlags::KEEP_SIZE, MIB, MIB), Err(Errno::PERM));
    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        assert_eq!(fcntl_add_seals(&fd, seal), Err(Errno::PERM));
    }
}

/// Invariants I2 and I4: an old client that kept its mapping sees zeros, and writes to a file that nobody else sees.
#[test]
fn shared_region_revoked_under_a_zombie_then_pages_return_and_the_next_holder_is_alone() {
    let arena = small_arena(1);
    let (fd, zombie) = leased_and_mapped(&arena, R0);
    zombie.put(0, 1);
    assert_eq!(pages_bytes(&fd), MIB);
    arena.close(R0, Epoch(2)).unwrap();
    arena.scrub(R0).unwrap();
    assert_eq!(pages_bytes(&fd), 0, "the pages are the host's again");
    assert_eq!(zombie.get(0), 0);
    zombie.put(0, 66);
    for shared in [false, true] {
        if shared {
            arena.share(R0).unwrap();
        }
        assert!(arena.verify_zero(R0).unwrap());
    }
    open(&arena, R0, 3);
    zombie.put(1, 66);
    assert_eq!(read(&arena, R0, 0, 2), [0, 0]);
}

/// A sealed file must not change under its readers, though its writer may have kept the old mapping.
#[test]
fn reseat_of_a_mapped_region_keeps_its_bytes_and_shuts_the_writer_out() {
    let arena = small_arena(1);
    let (old, zombie) = leased_and_mapped(&arena, R0);
    zombie.put(3, 33);
    zombie.put(MIB as usize - 1, 99);
    arena.close(R0, Epoch(2)).unwrap();
    arena.reseat(R0, None).unwrap();
    open_sealed(&arena, R0, 2);
    zombie.put(3, 66);
    assert_eq!(read(&arena, R0, 2, 3), [0, 33, 0]);
    assert_eq!(read(&arena, R0, MIB - 1, 1), [99]);
    assert_eq!(pages_bytes(&old), 4096, "only what the zombie filled since");

    let refused = arena.shared_fd(R0, SharedAccess::ReadWrite);
    assert!(matches!(refused, Err(RegionError::NotShared { .. })));
    let fd = arena.shared_fd(R0, SharedAccess::Read).unwrap();
    assert_eq!(ClientMap::new(fd.as_fd(), MIB, SharedAccess::ReadWrite).err(), Some(Errno::ACCESS));
    let reader = ClientMap::new(fd.as_fd(), MIB, SharedAccess::Read).unwrap();
    assert_eq!((reader.get(3), reader.make_writable()), (33, Err(Errno::ACCESS)));
}

#[test]
fn reseat_of_an_anonymous_region_makes_it_mappable() {
    let arena = small_arena(1);
    open(&arena, R0, 1);
    write(&arena, R0, 100, b"table");
    assert_eq!(arena.is_shared(R0), Some(false));
    assert!(matches!(arena.shared_fd(R0, SharedAccess::Read), Err(RegionError::NotShared { .. })));
    arena.close(R0, Epoch(2)).unwrap();
    arena.reseat(R0, None).unwrap();
    open_sealed(&arena, R0, 2);
    let fd = arena.shared_fd(R0, SharedAccess::Read).unwrap();
    let reader = ClientMap::new(fd.as_fd(), MIB, SharedAccess::Read).unwrap();
    assert_eq!((reader.get(99), reader.get(100), reader.get(104)), (0, b't', b'e'));
    arena.close(R0, Epoch(3)).unwrap();
    arena.scrub(R0).unwrap();
    assert_eq!((arena.is_shared(R0), arena.verify_zero(R0).unwrap()), (Some(false), true));
}

/// A region that was made a file ahead of its lease costs nothing to seal, and stays a file while only the node has it.
#[test]
fn file_that_no_client_was_given_is_sealed_without_a_copy_and_wiped_in_place() {
    let arena = Arena::new(&ArenaOptions::new(FILE_BYTES, 1)).unwrap();
    arena.share(R0).unwrap();
    let file = only_file();
    open(&arena, R0, 1);
    write(&arena, R0, 100, b"table");
    arena.close(R0, Epoch(2)).unwrap();
    arena.scrub(R0).unwrap();
    assert_eq!((arena.verify_zero(R0).unwrap(), only_file()), (true, file));
    open(&arena, R0, 2);
    write(&arena, R0, 100, b"other");
    arena.close(R0, Epoch(3)).unwrap();
    arena.reseat(R0, None).unwrap();
    open_sealed(&arena, R0, 3);
    assert_eq!((read(&arena, R0, 99, 6), only_file()), (b"\0other".to_vec(), file));
    arena.close(R0, Epoch(4)).unwrap();
    arena.scrub(R0).unwrap();
    assert_eq!((arena.is_shared(R0), only_file()), (Some(false), None), "readers may have it");
    for give_back in [Arena::give_back, Arena::scrub_away] {
        arena.share(R0).unwrap();
        give_back(&arena, R0).unwrap();
        assert_eq!((arena.is_shared(R0), only_file()), (Some(false), None));
    }
}

/// Memory that is ready takes the bytes of a region whose writer has mapped it: no page is made meanwhile.
#[test]
fn sealed_region_takes_the_file_of_a_free_one() {
    let arena = small_arena(3);
    let (old, zombie) = leased_and_mapped(&arena, R0);
    zombie.put(3, 33);
    arena.close(R0, Epoch(2)).unwrap();
    arena.share(R1).unwrap();
    assert!(arena.is_copied_to_seal(R0));
    arena.reseat(R0, Some(R1)).unwrap();
    assert!(!arena.is_copied_to_seal(R0));
    assert_eq!((arena.is_shared(R1), arena.verify_zero(R1).unwrap()), (Some(false), true));
    open_sealed(&arena, R0, 2);
    open(&arena, R1, 1);
    write(&arena, R1, 3, &[44]);
    zombie.put(3, 66);
    assert_eq!((read(&arena, R0, 2, 3), pages_bytes(&old)), (vec![0, 33, 0], 4096));
}

/// A region that is leased, sealed, not clean, or without a file keeps what it has.
#[test]
fn file_of_a_region_that_is_not_free_is_not_taken() {
    let arena = small_arena(3);
    let (_fd, of_r1) = leased_and_mapped(&arena, R1);
    of_r1.put(0, 11);
    for spare in [R0, R1, RegionIndex(2), RegionIndex(3)] {
        open(&arena, R0, arena.enter(R0).unwrap().fence().epoch.0 + 1);
        write(&arena, R0, 0, &[22]);
        let epoch = arena.enter(R0).unwrap().fence().epoch.0 + 1;
        arena.close(R0, Epoch(epoch)).unwrap();
        arena.reseat(R0, Some(spare)).unwrap();
        open_sealed(&arena, R0, epoch);
        assert_eq!((read(&arena, R0, 0, 1), of_r1.get(0)), (vec![22], 11), "spare {spare}");
        arena.close(R0, Epoch(epoch + 1)).unwrap();
        arena.scrub(R0).unwrap();
    }
    arena.close(R1, Epoch(2)).unwrap();
    open(&arena, R0, 90);
    arena.close(R0, Epoch(91)).unwrap();
    arena.reseat(R0, Some(R1)).unwrap();
    assert!(!arena.verify_zero(R1).unwrap(), "its bytes are still to be wiped");
}

/// Whoever has a descriptor, even one to read, would see what the next holder writes.
#[test]
fn file_of_a_lease_that_a_client_was_given_to_read_is_not_used_again() {
    let arena = small_arena(1);
    arena.share(R0).unwrap();
    open(&arena, R0, 1);
    let fd = arena.shared_fd(R0, SharedAccess::Read).unwrap();
    write(&arena, R0, 0, &[7]);
    arena.close(R0, Epoch(2)).unwrap();
    arena.scrub(R0).unwrap();
    assert_eq!((arena.is_shared(R0), pages_bytes(&fd)), (Some(false), 0));
}

/// A program reads columns in place: the region may be taken back meanwhile, but its bytes may not change.
#[test]
fn sealed_bytes_stay_as_they_are_while_somebody_looks_at_them_whatever_becomes_of_the_region() {
    let arena = small_arena(1);
    let (_fd, zombie) = leased_and_mapped(&arena, R0);
    zombie.put(3, 33);
    assert!(arena.sealed(R0, 0, 8).is_none(), "its writer may change it");
    arena.close(R0, Epoch(2)).unwrap();
    arena.reseat(R0, None).unwrap();
    assert!(arena.sealed(R0, 0, 8).is_none(), "nobody has been let in");
    let refused = arena.open(R0, Epoch(2), Some(handle_of(2)), None);
    assert!(matches!(refused, Err(RegionError::NotClean { .. })), "{refused:?}");
    open_sealed(&arena, R0, 2);
    for (offset, bytes) in [(MIB, 1), (MIB - 1, 2), (u64::MAX, 1), (1, usize::MAX)] {
        assert!(arena.sealed(R0, offset, bytes).is_none());
    }
    let sealed = arena.sealed(R0, 2, 3).unwrap();
    let reader = arena.shared_fd(R0, SharedAccess::Read).unwrap();
    zombie.put(3, 66);
    assert_eq!(sealed.as_ref(), [0, 33, 0]);
    arena.close(R0, Epoch(3)).unwrap();
    arena.scrub(R0).unwrap();
    assert!(arena.verify_zero(R0).unwrap(), "the next holder's memory is another");
    open(&arena, R0, 4);
    write(&arena, R0, 3, &[99]);
    assert_eq!(sealed.as_ref(), [0, 33, 0]);
    assert_eq!(pages_bytes(&reader), MIB);
    drop(sealed);
    assert_eq!(pages_bytes(&reader), 0, "the pages are the host's again");
}

/// A node that ends tells nobody: clients that map its regions must read the bytes that the regions hold, not zeros.
#[test]
fn shared_region_of_an_arena_that_ended_holds_its_bytes() {
    let arena = small_arena(1);
    let (fd, map) = leased_and_mapped(&arena, R0);
    map.put(3, 33);
    drop(arena);
    assert_eq!((map.get(3), pages_bytes(&fd)), (33, MIB));
}
